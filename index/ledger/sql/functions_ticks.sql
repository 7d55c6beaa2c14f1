-- The copy of the scheduler's records: what survives when Redis forgets, and what a recovery makes of it.

-- name: decides
-- Whether an audit record moved its entry's mark. A commit also records ticks that stay due (its `changed`, `held`, `early`,
-- `refused`, with the holder that sent them); a synchronisation or an edit records what it closes, without a holder.
CREATE OR REPLACE FUNCTION decides(p_record jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT p_record->>'outcome' IN ('emitted', 'unroutable', 'paused', 'skipped', 'superseded')
      OR (p_record->>'outcome' IN ('added', 'changed', 'removed', 'held', 'resumed') AND NOT p_record ? 'holder')
$$;

-- name: keep_audit
-- Keep audit records, raise the marks of the entries they name and the floor of the token. The same record twice changes nothing: every beat copies.
CREATE OR REPLACE FUNCTION keep_audit(p_namespace text, p_ids text[], p_records jsonb[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_copied bigint;
BEGIN
  INSERT INTO tick_audit (namespace, stream_id, record)
  SELECT p_namespace, r.id, r.record FROM unnest(p_ids, p_records) WITH ORDINALITY AS r(id, record, place)
   ORDER BY r.place ON CONFLICT (namespace, stream_id) DO NOTHING;
  GET DIAGNOSTICS v_copied = ROW_COUNT;
  INSERT INTO tick_mark AS m (namespace, entry, fire_time)
  SELECT p_namespace, r.record->>'entry', to_timestamp(max((r.record->>'fire_time')::numeric) / 1000000.0)
    FROM unnest(p_records) AS r(record)
   WHERE r.record ? 'entry' AND r.record->>'fire_time' ~ '^[0-9]{1,16}$' AND decides(r.record)
   GROUP BY 2 ORDER BY 2
  ON CONFLICT (namespace, entry) DO UPDATE SET fire_time = excluded.fire_time WHERE m.fire_time < excluded.fire_time;
  INSERT INTO token_floor AS f (namespace, token)
  SELECT p_namespace, max((r.record->>'token')::bigint) FROM unnest(p_records) AS r(record)
   WHERE r.record->>'token' ~ '^[0-9]{1,16}$' HAVING count(*) > 0
  ON CONFLICT (namespace) DO UPDATE SET token = excluded.token WHERE f.token < excluded.token;
  RETURN v_copied;
END $$;

-- name: copy_audit
-- As processes of an earlier version call it.
CREATE OR REPLACE FUNCTION copy_audit(p_ids text[], p_records jsonb[]) RETURNS bigint LANGUAGE sql AS $$
  SELECT keep_audit('fencebeat', p_ids, p_records)
$$;

-- name: known_floor
-- Highest token that a claim or the copied audit of the namespace has seen; a claim may not say whose it is. 0: none.
CREATE OR REPLACE FUNCTION known_floor(p_namespace text) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT greatest((SELECT max(c.token) FROM tick_claim c WHERE c.namespace = ''),
                  (SELECT max(c.token) FROM tick_claim c WHERE c.namespace = p_namespace),
                  (SELECT f.token FROM token_floor f WHERE f.namespace = p_namespace), 0)
$$;

-- name: keep_entries
-- Keep definitions and pauses (null: none) of one version. With a base: a change of just that version; without: a page of a complete copy, and `p_last` says that nothing else exists. False, and nothing changed, where another copy was faster.
CREATE OR REPLACE FUNCTION keep_entries(
  p_namespace text, p_token bigint, p_generation bigint, p_base bigint, p_names text[], p_definitions text[],
  p_pauses text[], p_last boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_kept tick_entry_version;
BEGIN
  INSERT INTO tick_entry_version (namespace, token, generation) VALUES (p_namespace, 0, 0) ON CONFLICT DO NOTHING;
  SELECT * INTO v_kept FROM tick_entry_version WHERE namespace = p_namespace FOR UPDATE;
  IF p_base IS NOT NULL AND (v_kept.token, v_kept.generation) <> (p_token, p_base) THEN
    RETURN false;
  END IF;
  IF (v_kept.token, v_kept.generation) >= (p_token, p_generation) THEN
    RETURN false;
  END IF;
  INSERT INTO tick_entry AS e (namespace, entry, definition, pause, token, generation)
  SELECT p_namespace, c.name, c.definition, c.pause, p_token, p_generation
    FROM unnest(p_names, p_definitions, p_pauses) AS c(name, definition, pause) ORDER BY c.name
  ON CONFLICT (namespace, entry) DO UPDATE SET definition = excluded.definition, pause = excluded.pause,
    token = excluded.token, generation = excluded.generation;
  IF p_last THEN
    DELETE FROM tick_entry e WHERE e.namespace = p_namespace
       AND ((e.definition IS NULL AND e.pause IS NULL)
         OR (p_base IS NULL AND (e.token, e.generation) < (p_token, p_generation)));
    UPDATE tick_entry_version SET token = p_token, generation = p_generation WHERE namespace = p_namespace;
  END IF;
  RETURN true;
END $$;

-- name: passes
-- Whether an audit record closes the tick at `p_fire_time` of its entry without emission. `first` is the first fire time of a run that a commit passed or a recovery could not account for; an edit's is the mark before it, which it does not close.
CREATE OR REPLACE FUNCTION passes(p_record jsonb, p_fire_time bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN NOT (p_record->>'fire_time') ~ '^[0-9]{1,16}$' OR (p_record->>'fire_time')::bigint < p_fire_time THEN false
    WHEN p_record->>'outcome' IN ('changed', 'resumed') AND NOT p_record ? 'count'
      THEN NOT p_record ? 'holder' AND p_record->>'first' ~ '^[0-9]{1,16}$'
           AND (p_record->>'first')::bigint < p_fire_time
    WHEN p_record->>'first' ~ '^[0-9]{1,16}$' THEN (p_record->>'first')::bigint <= p_fire_time
    ELSE (p_record->>'fire_time')::bigint = p_fire_time
  END
$$;

-- name: as_uuid
-- A task id as uuid; null for a text that is none, which no claim can have.
CREATE OR REPLACE FUNCTION as_uuid(p_text text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_text ~* '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN p_text::uuid END
$$;

-- name: sent_ticks
-- The emitted ticks that nothing has closed since: no closed claim, and no later record that passes the tick over. Emitted again it is one tick.
-- A backfill (`request`) lies below its entry's mark and is not due again, so it counts as unguarded, and it closes nothing.
CREATE OR REPLACE FUNCTION sent_ticks(p_namespace text)
RETURNS TABLE (stream_id text, entry text, fire_time bigint, task_id text, guarded boolean, sent_ms bigint)
LANGUAGE sql STABLE AS $$
  SELECT DISTINCT ON (a.entry, a.fire_time)
         a.stream_id, a.entry, a.fire_time, a.record->>'task_id', coalesce(a.record->>'guarded' = '1', false) AND NOT a.record ? 'request', a.sent_ms
    FROM tick_audit a
   WHERE a.namespace = p_namespace AND a.outcome = 'emitted' AND NOT a.settled
     AND a.entry IS NOT NULL AND a.fire_time IS NOT NULL
     AND NOT EXISTS (SELECT FROM tick_claim c WHERE c.tick_id = as_uuid(a.record->>'task_id') AND c.closed_at IS NOT NULL)
     AND NOT EXISTS (SELECT FROM tick_audit l
                      WHERE l.namespace = p_namespace AND l.entry = a.entry AND l.fire_time >= a.fire_time
                        AND l.outcome IN ('unroutable', 'paused', 'skipped', 'superseded', 'changed', 'resumed', 'gap')
                        AND l.position > a.position AND NOT l.record ? 'request' AND passes(l.record, a.fire_time))
   ORDER BY a.entry, a.fire_time, a.record ? 'request', a.position DESC
$$;

-- name: newest_copy_ms
-- When the newest copied record was written, by the scheduler's server: the last moment that is known.
CREATE OR REPLACE FUNCTION newest_copy_ms(p_namespace text) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT a.sent_ms FROM tick_audit a WHERE a.namespace = p_namespace ORDER BY a.position DESC LIMIT 1
$$;

-- name: recovered_marks_page
-- The marks of the next `p_limit` entries after `p_after`, by name: the highest fire time up to which every tick was decided without emission or has a closed claim. Ticks of unguarded tasks leave no claim: they are passed, and listed by `lost_ticks_between`.
-- Of each entry the earliest open tick is looked for in order of fire times, so that it costs no more when a million wait behind it.
CREATE OR REPLACE FUNCTION recovered_marks_page(p_namespace text, p_after text, p_limit int)
RETURNS TABLE (entry text, mark bigint) LANGUAGE sql STABLE AS $$
  SELECT m.entry, least((extract(epoch FROM m.fire_time) * 1000000)::bigint, o.earliest - 1)
    FROM (SELECT k.entry, k.fire_time FROM tick_mark k
           WHERE k.namespace = p_namespace AND k.entry > p_after ORDER BY k.entry LIMIT p_limit) m
    LEFT JOIN LATERAL (SELECT s.fire_time AS earliest FROM sent_ticks(p_namespace) s
                        WHERE s.entry = m.entry AND s.guarded ORDER BY s.fire_time LIMIT 1) o ON true
   ORDER BY m.entry
$$;

-- name: lost_ticks_between
-- Runs of emitted ticks of unguarded tasks that may have been on the queue when it was lost: sent at most `p_queued` before the newest copied record. A run is broken by every other decision of its entry. Of entries after `p_after`, up to `p_last`.
CREATE OR REPLACE FUNCTION lost_ticks_between(p_namespace text, p_queued interval, p_after text, p_last text)
RETURNS TABLE (entry text, first bigint, fire_time bigint, count bigint, task_id text) LANGUAGE sql STABLE AS $$
  WITH since AS (
    SELECT newest_copy_ms(p_namespace) - (extract(epoch FROM p_queued) * 1000)::bigint AS ms
  ), decided AS (
    SELECT s.entry, s.fire_time, s.task_id, true AS sent FROM sent_ticks(p_namespace) s, since
     WHERE NOT s.guarded AND s.sent_ms >= since.ms AND s.entry > p_after AND s.entry <= p_last
    UNION ALL
    SELECT d.entry, d.fire_time, NULL, false FROM tick_audit d, since
     WHERE d.namespace = p_namespace AND d.sent_ms >= since.ms AND d.entry > p_after AND d.entry <= p_last
       AND d.fire_time IS NOT NULL
       AND d.outcome IN ('unroutable', 'paused', 'skipped', 'superseded', 'changed', 'resumed', 'gap')
  ), runs AS (
    SELECT d.*, count(*) FILTER (WHERE NOT d.sent)
                  OVER (PARTITION BY d.entry ORDER BY d.fire_time, d.sent DESC ROWS UNBOUNDED PRECEDING) AS run
      FROM decided d
  )
  SELECT r.entry, min(r.fire_time), max(r.fire_time), count(*), (array_agg(r.task_id ORDER BY r.fire_time DESC))[1]
    FROM runs r WHERE r.sent GROUP BY r.entry, r.run ORDER BY r.entry, 3
$$;

-- name: recovered_marks
-- As processes of an earlier version call it: every entry at once.
CREATE OR REPLACE FUNCTION recovered_marks(p_namespace text) RETURNS TABLE (entry text, mark bigint)
LANGUAGE sql STABLE AS $$
  SELECT m.entry, m.mark FROM recovered_marks_page(p_namespace, '', NULL) m
$$;

-- name: lost_ticks
-- As processes of an earlier version call it: every entry at once.
CREATE OR REPLACE FUNCTION lost_ticks(p_namespace text, p_queued interval)
RETURNS TABLE (entry text, first bigint, fire_time bigint, count bigint, task_id text) LANGUAGE sql STABLE AS $$
  SELECT l.* FROM lost_ticks_between(p_namespace, p_queued, '', (SELECT max(m.entry) FROM tick_mark m WHERE m.namespace = p_namespace)) l
$$;

-- name: settle_page
-- Tell the copies which emitted ticks no recovery has to ask for again: closed ones, and those of unguarded tasks sent long before the newest record. So a recovery reads what is open, not all that was ever sent.
-- Looks at the next `p_limit` unsettled ones, by entry and fire time; returns where to go on, nulls at the end.
-- Each is counted by itself: of a NOT EXISTS the planner makes a join with all that is open, row by row.
CREATE OR REPLACE FUNCTION settle_page(
  p_namespace text, p_queued interval, p_entry text, p_fire_time bigint, p_limit int
) RETURNS TABLE (settled bigint, last_entry text, last_fire_time bigint) LANGUAGE plpgsql AS $$
DECLARE
  v_since bigint := newest_copy_ms(p_namespace) - (extract(epoch FROM p_queued) * 1000)::bigint;
BEGIN
  SELECT p.entry, p.fire_time INTO last_entry, last_fire_time FROM (
    SELECT a.entry, a.fire_time FROM tick_audit a
     WHERE a.namespace = p_namespace AND a.outcome = 'emitted' AND NOT a.settled
       AND (a.entry, a.fire_time) > (p_entry, p_fire_time)
     ORDER BY a.entry, a.fire_time LIMIT p_limit) p
   ORDER BY p.entry DESC, p.fire_time DESC LIMIT 1;
  UPDATE tick_audit a SET settled = true
   WHERE a.namespace = p_namespace AND a.outcome = 'emitted' AND NOT a.settled
     AND (a.entry, a.fire_time) > (p_entry, p_fire_time) AND (a.entry, a.fire_time) <= (last_entry, last_fire_time)
     AND (a.sent_ms < v_since OR coalesce(a.record->>'guarded' = '1', false))
     AND (SELECT count(*) FROM sent_ticks(p_namespace) s
           WHERE s.entry = a.entry AND s.fire_time = a.fire_time AND (s.guarded OR s.sent_ms >= v_since)) = 0;
  GET DIAGNOSTICS settled = ROW_COUNT;
  RETURN NEXT;
END $$;

-- name: settle_ticks
-- As processes of an earlier version call it: all at once.
CREATE OR REPLACE FUNCTION settle_ticks(p_namespace text, p_queued interval) RETURNS bigint LANGUAGE sql AS $$
  SELECT p.settled FROM settle_page(p_namespace, p_queued, '', 0, NULL) p
$$;

-- name: trim_audit
-- Forget copies older than that, but of each entry the newest decision and every emitted tick that is still open: a recovery asks for these. Marks stay.
CREATE OR REPLACE FUNCTION trim_audit(p_older interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_namespace text;
  v_deleted bigint;
  v_total bigint := 0;
BEGIN
  FOR v_namespace IN SELECT DISTINCT f.namespace FROM tick_audit f LOOP
    DELETE FROM tick_audit a
     WHERE a.namespace = v_namespace AND a.at < clock_timestamp() - p_older
       AND (SELECT count(*) FROM sent_ticks(v_namespace) s
                        WHERE s.guarded AND s.entry = a.entry AND s.fire_time = a.fire_time) = 0  -- see settle_page
       AND NOT (decides(a.record) AND a.fire_time IS NOT NULL AND a.fire_time =
                (SELECT (extract(epoch FROM m.fire_time) * 1000000)::bigint FROM tick_mark m
                  WHERE m.namespace = v_namespace AND m.entry = a.entry));
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    v_total := v_total + v_deleted;
  END LOOP;
  RETURN v_total;
END $$;
