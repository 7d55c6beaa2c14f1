-- Switches: pure helpers and the one function that changes them.

-- name: stop_rank
-- How far a row stops work now: 0 run, 1 emit, 2 start, 3 write. An expired stop gives way to the one before it.
CREATE OR REPLACE FUNCTION stop_rank(p_level text, p_until timestamptz, p_prev_level text, p_prev_until timestamptz)
RETURNS int LANGUAGE sql VOLATILE AS $$
  SELECT array_position(ARRAY['run', 'emit', 'start', 'write'],
    CASE WHEN p_until IS NULL OR p_until > clock_timestamp() THEN p_level
         WHEN p_prev_until IS NULL OR p_prev_until > clock_timestamp() THEN p_prev_level
         ELSE 'run' END) - 1
$$;

-- name: stopped_scopes
-- The scopes that are stopped at least at `p_rank` now.
CREATE OR REPLACE FUNCTION stopped_scopes(p_rank int) RETURNS text[] LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(array_agg(c.scope), '{}') FROM control c
   WHERE stop_rank(c.level, c.until, c.prev_level, c.prev_until) >= p_rank
$$;

-- name: doc_scopes
-- The scopes over a document, as in index.model.scopes_of.
CREATE OR REPLACE FUNCTION doc_scopes(p_tenant text, p_source text, p_target text) RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY['all', 'tenant:' || p_tenant, 'source:' || p_tenant || '/' || p_source, 'target:' || p_target]
$$;

-- name: highest_change
-- The newest change among some scopes; an attempt remembers it and may not commit once it differs.
CREATE OR REPLACE FUNCTION highest_change(p_scopes text[]) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(max(c.change), 0) FROM control c WHERE c.scope = ANY (p_scopes)
$$;

-- name: apply_switch
-- Set one scope to a level. Locks `all` for update, so every claim, stage and commit lies wholly before or after it.
CREATE OR REPLACE FUNCTION apply_switch(
  p_scope text, p_level text, p_reason text, p_author text, p_origin text, p_for interval DEFAULT NULL
) RETURNS TABLE (change bigint, before text, until timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_change bigint;
  v_before text;
  v_until timestamptz := CASE WHEN p_for IS NULL THEN NULL ELSE clock_timestamp() + p_for END;
BEGIN
  UPDATE control SET counter = counter + 1 WHERE scope = 'all' RETURNING counter INTO v_change;
  INSERT INTO control (scope) VALUES (p_scope) ON CONFLICT (scope) DO NOTHING;
  SELECT (ARRAY['run', 'emit', 'start', 'write'])[1 + stop_rank(c.level, c.until, c.prev_level, c.prev_until)]
    INTO v_before FROM control c WHERE c.scope = p_scope FOR UPDATE;
  UPDATE control c
     SET prev_level = CASE WHEN v_until IS NULL THEN 'run' ELSE v_before END,
         prev_until = CASE WHEN v_until IS NOT NULL AND c.until > clock_timestamp() THEN c.until END,
         level = p_level, change = v_change, reason = p_reason, author = p_author,
         since = clock_timestamp(), until = v_until
   WHERE c.scope = p_scope;
  INSERT INTO audit (change, scope, before, after, reason, author, origin, until)
  VALUES (v_change, p_scope, v_before, p_level, p_reason, p_author, p_origin, v_until);
  RETURN QUERY SELECT v_change, v_before, v_until;
END $$;

-- name: expire_switches
-- Record stops whose time is over, once each: the row returns to the state before, with a change of its own.
CREATE OR REPLACE FUNCTION expire_switches() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_row control;
  v_count int := 0;
  v_after text;
BEGIN
  IF NOT EXISTS (SELECT FROM control c WHERE c.until <= clock_timestamp()) THEN
    RETURN 0;
  END IF;
  UPDATE control SET counter = counter WHERE scope = 'all';  -- the lock every change takes first
  FOR v_row IN SELECT * FROM control c WHERE c.until <= clock_timestamp() ORDER BY c.scope FOR UPDATE LOOP
    v_after := CASE WHEN v_row.prev_until IS NULL OR v_row.prev_until > clock_timestamp()
                    THEN v_row.prev_level ELSE 'run' END;
    UPDATE control SET counter = counter + 1 WHERE scope = 'all';
    UPDATE control c
       SET level = v_after, until = CASE WHEN v_after <> 'run' THEN v_row.prev_until END,
           prev_level = 'run', prev_until = NULL, since = clock_timestamp(),
           change = (SELECT a.counter FROM control a WHERE a.scope = 'all')
     WHERE c.scope = v_row.scope;
    INSERT INTO audit (change, scope, before, after, reason, author, origin, until)
    SELECT c.change, c.scope, v_row.level, v_after, 'expired: ' || v_row.reason, 'expiry', 'ledger', c.until
      FROM control c WHERE c.scope = v_row.scope;
    v_count := v_count + 1;
  END LOOP;
  RETURN v_count;
END $$;

-- name: switches_in_force
-- Every scope that is stopped now. `until` is the end of the stop that counts now.
CREATE OR REPLACE FUNCTION switches_in_force() RETURNS TABLE (
  scope text, level text, change bigint, reason text, author text, since timestamptz, until timestamptz
) LANGUAGE sql VOLATILE AS $$
  SELECT c.scope, (ARRAY['run', 'emit', 'start', 'write'])[1 + r.rank], c.change, c.reason, c.author, c.since,
         CASE WHEN c.until IS NULL OR c.until > clock_timestamp() THEN c.until ELSE c.prev_until END
    FROM control c
    CROSS JOIN LATERAL (SELECT stop_rank(c.level, c.until, c.prev_level, c.prev_until) AS rank) r
   WHERE r.rank > 0 ORDER BY c.scope
$$;
