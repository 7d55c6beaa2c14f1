-- The document protocol: each function is one step, called in autocommit, so that no client round trip lies between a
-- first row lock and COMMIT. A function and not one statement: each statement in it takes a fresh snapshot, so the
-- second one sees what the first waited for.
--
-- Order of locks everywhere: control row `all` (share), target row (share), head row (update).
-- Each acts only WHERE epoch and nonce are the caller's, under the incarnation of its claim, and where no switch of
-- the document's scopes has changed since; else it changes nothing and says `fenced` or `stopped`.

-- name: mark_dirty
-- Mark listed documents whose version was not tried yet. Returns how many marks were made.
CREATE OR REPLACE FUNCTION mark_dirty(p_tenant text, p_source text, p_target text, p_uids text[], p_versions text[])
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_marked bigint;
BEGIN
  INSERT INTO doc_head AS h (tenant_id, target_id, doc_uid, source_id, listed_version, dirty_seq, dirty_since)
  SELECT p_tenant, p_target, l.uid, p_source, l.version, 1, clock_timestamp()
    FROM unnest(p_uids, p_versions) AS l(uid, version) ORDER BY l.uid
  ON CONFLICT (tenant_id, target_id, doc_uid) DO UPDATE
     SET dirty_seq = h.dirty_seq + 1, listed_version = excluded.listed_version, absent = false,
         source_id = excluded.source_id, not_before = '-infinity',
         dirty_since = CASE WHEN h.dirty_seq > h.done_seq THEN h.dirty_since ELSE clock_timestamp() END
   WHERE (h.tried_version IS DISTINCT FROM excluded.listed_version OR h.absent)
     AND NOT (h.dirty_seq > h.done_seq AND NOT h.absent AND h.listed_version IS NOT DISTINCT FROM excluded.listed_version);
  GET DIAGNOSTICS v_marked = ROW_COUNT;
  RETURN v_marked;
END $$;

-- name: mark_absent
-- Mark documents that an approved, completed listing did not have. Returns how many marks were made.
CREATE OR REPLACE FUNCTION mark_absent(p_tenant text, p_source text, p_target text, p_uids text[])
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_marked bigint;
BEGIN
  UPDATE doc_head h
     SET absent = true, dirty_seq = h.dirty_seq + 1, not_before = '-infinity',
         dirty_since = CASE WHEN h.dirty_seq > h.done_seq THEN h.dirty_since ELSE clock_timestamp() END
   WHERE h.tenant_id = p_tenant AND h.target_id = p_target AND h.source_id = p_source
     AND h.doc_uid = ANY (p_uids) AND NOT h.absent;
  GET DIAGNOSTICS v_marked = ROW_COUNT;
  RETURN v_marked;
END $$;

-- name: acquire_documents
-- Claim up to p_limit dirty documents under their next epochs, oldest first, each tenant in turn. A document whose last
-- claim ended without an outcome is claimed alone; after p_alone such claims it becomes a dead letter.
CREATE OR REPLACE FUNCTION acquire_documents(p_target text, p_limit int, p_lease interval, p_alone int DEFAULT 3)
RETURNS TABLE (
  tenant_id text, source_id text, doc_uid text, epoch bigint, nonce uuid, dirty_seq bigint, incarnation bigint,
  alone boolean, source_version text, content_hash bytea, meta_hash bytea,
  manifest_ids text[], manifest_starts int[], manifest_ends int[], absent boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_stopped text[];
  v_incarnation bigint;
  v_suspect doc_head;
BEGIN
  PERFORM FROM control WHERE scope = 'all' FOR SHARE;  -- a switch updates this row: it comes wholly before or after us
  v_stopped := stopped_scopes(2);
  IF v_stopped && ARRAY['all', 'target:' || p_target] THEN
    RETURN;
  END IF;
  SELECT t.incarnation INTO v_incarnation FROM target t WHERE t.target_id = p_target AND t.state = 'live' FOR SHARE;
  IF NOT FOUND THEN
    RETURN;
  END IF;

  -- Suspects first: they are few, and each takes at most p_alone claims. Their pauses grow fourfold (2, 8, 32 s after the
  -- lapsed lease), and any of them may be next: a burst of kills from outside must not look like the fault of the one
  -- document that every new worker happens to begin with.
  LOOP
    SELECT h.* INTO v_suspect FROM doc_head h
     WHERE h.target_id = p_target AND h.dirty_seq > h.done_seq AND h.crashes > 0
       AND h.lease_until + interval '2 seconds' * 4 ^ (h.crashes - 1) < clock_timestamp()
       AND NOT doc_scopes(h.tenant_id, h.source_id, h.target_id) && v_stopped
     ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED;
    EXIT WHEN NOT FOUND;
    IF v_suspect.crashes <= p_alone THEN
      RETURN QUERY
      UPDATE doc_head h
         SET epoch = h.epoch + 1, nonce = gen_random_uuid(), crashes = h.crashes + 1,
             lease_until = clock_timestamp() + p_lease,
             switch_seq = highest_change(doc_scopes(h.tenant_id, h.source_id, h.target_id))
       WHERE h.tenant_id = v_suspect.tenant_id AND h.target_id = p_target AND h.doc_uid = v_suspect.doc_uid
      RETURNING h.tenant_id, h.source_id, h.doc_uid, h.epoch, h.nonce, h.dirty_seq, v_incarnation, true,
                h.source_version, h.content_hash, h.meta_hash,
                h.manifest_ids, h.manifest_starts, h.manifest_ends, h.absent;
      RETURN;
    END IF;
    PERFORM bury_attempt(v_suspect, v_suspect.dirty_seq, NULL,
      format('its worker died %s times while it worked on this document alone', p_alone), 'worker_killed');
  END LOOP;

  RETURN QUERY
  WITH candidate AS (
    SELECT c.* FROM (SELECT DISTINCT s.tenant_id FROM source s) AS t
    CROSS JOIN LATERAL (
      SELECT h.tenant_id, h.doc_uid, row_number() OVER (ORDER BY h.dirty_since, h.doc_uid) AS turn
        FROM doc_head h
       WHERE h.target_id = p_target AND h.tenant_id = t.tenant_id AND h.dirty_seq > h.done_seq
         AND h.crashes = 0 AND h.not_before <= clock_timestamp()
         AND NOT doc_scopes(h.tenant_id, h.source_id, h.target_id) && v_stopped
       ORDER BY h.dirty_since, h.doc_uid LIMIT 2 * p_limit  -- some of them may be locked by another claim
    ) AS c
  ), chosen AS (
    SELECT h.tenant_id, h.doc_uid FROM doc_head h
      JOIN candidate c ON c.tenant_id = h.tenant_id AND c.doc_uid = h.doc_uid
     WHERE h.target_id = p_target AND h.dirty_seq > h.done_seq AND h.crashes = 0
     ORDER BY c.turn, h.dirty_since LIMIT p_limit FOR UPDATE OF h SKIP LOCKED
  )
  UPDATE doc_head h
     SET epoch = h.epoch + 1, nonce = gen_random_uuid(), crashes = h.crashes + 1,
         lease_until = clock_timestamp() + p_lease,
         switch_seq = highest_change(doc_scopes(h.tenant_id, h.source_id, h.target_id))
    FROM chosen c
   WHERE h.target_id = p_target AND h.tenant_id = c.tenant_id AND h.doc_uid = c.doc_uid
  RETURNING h.tenant_id, h.source_id, h.doc_uid, h.epoch, h.nonce, h.dirty_seq, v_incarnation, false,
            h.source_version, h.content_hash, h.meta_hash,
            h.manifest_ids, h.manifest_starts, h.manifest_ends, h.absent;
END $$;

-- name: attempt_state
-- May this attempt act? Takes the three locks in order. `ok`, `fenced` or `stopped`.
CREATE OR REPLACE FUNCTION attempt_state(
  p_tenant text, p_target text, p_uid text, p_epoch bigint, p_nonce uuid, p_incarnation bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_head doc_head;
  v_scopes text[];
BEGIN
  PERFORM FROM control WHERE scope = 'all' FOR SHARE;
  PERFORM FROM target t WHERE t.target_id = p_target AND t.incarnation = p_incarnation AND t.state = 'live' FOR SHARE;
  IF NOT FOUND THEN
    RETURN 'fenced';
  END IF;
  SELECT h.* INTO v_head FROM doc_head h
   WHERE h.tenant_id = p_tenant AND h.target_id = p_target AND h.doc_uid = p_uid FOR UPDATE;
  IF NOT FOUND OR v_head.epoch <> p_epoch OR v_head.nonce IS DISTINCT FROM p_nonce THEN
    RETURN 'fenced';
  END IF;
  v_scopes := doc_scopes(p_tenant, v_head.source_id, p_target);
  IF stopped_scopes(3) && v_scopes OR highest_change(v_scopes) <> v_head.switch_seq THEN
    RETURN 'stopped';
  END IF;
  RETURN 'ok';
END $$;

-- name: stage_document
-- Record what this attempt is about to write, before it writes.
CREATE OR REPLACE FUNCTION stage_document(
  p_tenant text, p_target text, p_uid text, p_epoch bigint, p_nonce uuid, p_incarnation bigint, p_ids text[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text := attempt_state(p_tenant, p_target, p_uid, p_epoch, p_nonce, p_incarnation);
BEGIN
  IF v_state = 'ok' THEN
    INSERT INTO doc_staged (tenant_id, target_id, doc_uid, epoch, ids) VALUES (p_tenant, p_target, p_uid, p_epoch, p_ids)
    ON CONFLICT (tenant_id, target_id, doc_uid, epoch) DO UPDATE SET ids = excluded.ids;
  END IF;
  RETURN v_state;
END $$;

-- name: commit_document
-- Make a new version the one that readers see. On pgvector the chunks are swapped in this same step.
CREATE OR REPLACE FUNCTION commit_document(
  p_tenant text, p_target text, p_uid text, p_epoch bigint, p_nonce uuid, p_incarnation bigint,
  p_dirty_seq bigint, p_version text, p_content_hash bytea, p_meta_hash bytea, p_meta jsonb,
  p_ids text[], p_starts int[], p_ends int[], p_absent boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text := attempt_state(p_tenant, p_target, p_uid, p_epoch, p_nonce, p_incarnation);
  v_kind text;
  v_gc text[] := '{}';
BEGIN
  IF v_state <> 'ok' THEN
    RETURN v_state;
  END IF;
  SELECT t.kind INTO v_kind FROM target t WHERE t.target_id = p_target;
  IF v_kind = 'pgvector' THEN
    PERFORM pgvector_swap(p_target, p_tenant, p_uid, p_epoch, p_ids);
  ELSE
    SELECT coalesce(array_agg(DISTINCT g.id), '{}') INTO v_gc FROM (
      SELECT unnest(h.pending_gc || h.manifest_ids) AS id FROM doc_head h
       WHERE h.tenant_id = p_tenant AND h.target_id = p_target AND h.doc_uid = p_uid
      UNION
      SELECT unnest(s.ids) FROM doc_staged s
       WHERE s.tenant_id = p_tenant AND s.target_id = p_target AND s.doc_uid = p_uid AND s.epoch <= p_epoch
    ) AS g WHERE g.id <> ALL (p_ids);
  END IF;
  DELETE FROM doc_staged s
   WHERE s.tenant_id = p_tenant AND s.target_id = p_target AND s.doc_uid = p_uid AND s.epoch <= p_epoch;
  DELETE FROM dead_letter d WHERE d.tenant_id = p_tenant AND d.target_id = p_target AND d.doc_uid = p_uid;
  UPDATE doc_head h
     SET committed_epoch = p_epoch,
         committed_xid = CASE WHEN h.manifest_ids = p_ids THEN h.committed_xid ELSE pg_current_xact_id() END,
         source_version = p_version, tried_version = p_version,
         content_hash = p_content_hash, meta_hash = p_meta_hash, meta = p_meta,
         manifest_ids = p_ids, manifest_starts = p_starts, manifest_ends = p_ends, pending_gc = v_gc,
         done_seq = p_dirty_seq, crashes = 0, failures = 0, last_error = NULL, lease_until = NULL,
         dirty_since = CASE WHEN h.dirty_seq > p_dirty_seq THEN clock_timestamp() END,
         absent = CASE WHEN h.dirty_seq > p_dirty_seq THEN h.absent ELSE p_absent END,  -- a newer mark knows better
         state = CASE WHEN p_absent THEN 'absent' ELSE 'indexed' END, committed_at = clock_timestamp()
   WHERE h.tenant_id = p_tenant AND h.target_id = p_target AND h.doc_uid = p_uid;
  RETURN 'committed';
END $$;

-- name: bury_attempt
-- End a locked head's claim as a dead letter; where it could not tell its version, it was the one listed. The version that readers see stays; tombstones for what the attempts
-- staged must lie above their writes, so the epoch is raised and becomes the committed one.
CREATE OR REPLACE FUNCTION bury_attempt(
  p_head doc_head, p_dirty_seq bigint, p_version text, p_reason text, p_fingerprint text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_staged text[];
BEGIN
  SELECT coalesce(array_agg(DISTINCT g.id), '{}') INTO v_staged FROM (
    SELECT unnest(p_head.pending_gc) AS id
    UNION
    SELECT unnest(s.ids) FROM doc_staged s
     WHERE s.tenant_id = p_head.tenant_id AND s.target_id = p_head.target_id AND s.doc_uid = p_head.doc_uid
  ) AS g WHERE g.id <> ALL (p_head.manifest_ids);
  DELETE FROM doc_staged s
   WHERE s.tenant_id = p_head.tenant_id AND s.target_id = p_head.target_id AND s.doc_uid = p_head.doc_uid;
  IF (SELECT t.kind FROM target t WHERE t.target_id = p_head.target_id) = 'pgvector' THEN
    v_staged := '{}';  -- nothing was written outside this database
  END IF;
  UPDATE doc_head h
     SET epoch = p_head.epoch + 1, committed_epoch = p_head.epoch + 1, nonce = NULL, pending_gc = v_staged,
         done_seq = p_dirty_seq, tried_version = coalesce(p_version, p_head.listed_version), state = 'dead', last_error = p_reason,
         crashes = 0, failures = 0, lease_until = NULL,
         dirty_since = CASE WHEN h.dirty_seq > p_dirty_seq THEN clock_timestamp() END
   WHERE h.tenant_id = p_head.tenant_id AND h.target_id = p_head.target_id AND h.doc_uid = p_head.doc_uid;
  INSERT INTO dead_letter (tenant_id, target_id, doc_uid, source_id, version, reason, fingerprint)
  VALUES (p_head.tenant_id, p_head.target_id, p_head.doc_uid, p_head.source_id,
          coalesce(p_version, p_head.listed_version), p_reason, p_fingerprint)
  ON CONFLICT (tenant_id, target_id, doc_uid) DO UPDATE
     SET version = excluded.version, reason = excluded.reason, fingerprint = excluded.fingerprint, at = clock_timestamp();
END $$;

-- name: dead_letter_document
-- End this attempt as a dead letter, under the conditions of a commit.
CREATE OR REPLACE FUNCTION dead_letter_document(
  p_tenant text, p_target text, p_uid text, p_epoch bigint, p_nonce uuid, p_incarnation bigint,
  p_dirty_seq bigint, p_version text, p_reason text, p_fingerprint text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text := attempt_state(p_tenant, p_target, p_uid, p_epoch, p_nonce, p_incarnation);
  v_head doc_head;
BEGIN
  IF v_state <> 'ok' THEN
    RETURN v_state;
  END IF;
  SELECT h.* INTO v_head FROM doc_head h
   WHERE h.tenant_id = p_tenant AND h.target_id = p_target AND h.doc_uid = p_uid;
  PERFORM bury_attempt(v_head, p_dirty_seq, p_version, p_reason, p_fingerprint);
  RETURN 'dead_lettered';
END $$;

-- name: hand_back_document
-- Give a claim back. Without a reason the claim is undone (switch, breaker, shutdown); with one it counts as a failure
-- and waits before the next try. Asks no switch: giving back must work while everything is stopped.
CREATE OR REPLACE FUNCTION hand_back_document(
  p_tenant text, p_target text, p_uid text, p_epoch bigint, p_nonce uuid, p_reason text, p_delay interval
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  UPDATE doc_head h
     SET lease_until = NULL, crashes = CASE WHEN p_reason IS NULL THEN greatest(h.crashes - 1, 0) ELSE 0 END,
         failures = h.failures + CASE WHEN p_reason IS NULL THEN 0 ELSE 1 END,
         last_error = coalesce(p_reason, h.last_error), not_before = clock_timestamp() + p_delay
   WHERE h.tenant_id = p_tenant AND h.target_id = p_target AND h.doc_uid = p_uid
     AND h.epoch = p_epoch AND h.nonce = p_nonce AND h.lease_until IS NOT NULL;
  RETURN CASE WHEN FOUND THEN 'handed_back' ELSE 'fenced' END;
END $$;

-- name: renew_claims
-- Extend the leases of these attempts. Returns the uids that are still ours.
CREATE OR REPLACE FUNCTION renew_claims(
  p_target text, p_tenants text[], p_uids text[], p_epochs bigint[], p_nonces uuid[], p_lease interval
) RETURNS SETOF text LANGUAGE sql AS $$
  UPDATE doc_head h SET lease_until = clock_timestamp() + p_lease
    FROM unnest(p_tenants, p_uids, p_epochs, p_nonces) AS a(tenant, uid, epoch, nonce)
   WHERE h.target_id = p_target AND h.tenant_id = a.tenant AND h.doc_uid = a.uid
     AND h.epoch = a.epoch AND h.nonce = a.nonce AND h.lease_until IS NOT NULL
  RETURNING h.doc_uid
$$;

-- name: collect_candidates
-- Ids that wait for a tombstone, with the committed epoch they are gone under, read in one step.
CREATE OR REPLACE FUNCTION collect_candidates(p_target text, p_limit int)
RETURNS TABLE (tenant_id text, doc_uid text, committed_epoch bigint, incarnation bigint, ids text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_stopped text[];
  v_incarnation bigint;
BEGIN
  PERFORM FROM control WHERE scope = 'all' FOR SHARE;
  v_stopped := stopped_scopes(3);
  SELECT t.incarnation INTO v_incarnation FROM target t WHERE t.target_id = p_target AND t.state = 'live' FOR SHARE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  RETURN QUERY
  SELECT h.tenant_id, h.doc_uid, h.committed_epoch, v_incarnation, h.pending_gc FROM doc_head h
   WHERE h.target_id = p_target AND cardinality(h.pending_gc) > 0
     AND NOT doc_scopes(h.tenant_id, h.source_id, h.target_id) && v_stopped
   ORDER BY h.tenant_id, h.doc_uid LIMIT p_limit;
END $$;

-- name: collect_done
-- Forget ids whose tombstones are written, only while the committed epoch is still the one they were written under.
CREATE OR REPLACE FUNCTION collect_done(
  p_target text, p_tenant text, p_uid text, p_committed_epoch bigint, p_incarnation bigint, p_ids text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM control WHERE scope = 'all' FOR SHARE;
  PERFORM FROM target t WHERE t.target_id = p_target AND t.incarnation = p_incarnation FOR SHARE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE doc_head h SET pending_gc = ARRAY(SELECT unnest(h.pending_gc) EXCEPT SELECT unnest(p_ids))
   WHERE h.tenant_id = p_tenant AND h.target_id = p_target AND h.doc_uid = p_uid
     AND h.committed_epoch = p_committed_epoch
     AND NOT doc_scopes(h.tenant_id, h.source_id, h.target_id) && stopped_scopes(3);
  RETURN FOUND;
END $$;

-- name: register_target
-- The target for a chunker and a model; made on first use with a fresh incarnation, which no older write can exceed.
CREATE OR REPLACE FUNCTION register_target(
  p_target text, p_kind text, p_dimension int, p_chunker_fp text, p_model_fp text
) RETURNS TABLE (incarnation bigint, state text, opened boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO target (target_id, kind, dimension, chunker_fp, model_fp, incarnation)
  VALUES (p_target, p_kind, p_dimension, p_chunker_fp, p_model_fp,
          extract(epoch FROM clock_timestamp() - timestamptz '2025-01-01 00:00:00+00')::bigint)
  ON CONFLICT (target_id) DO NOTHING;
  RETURN QUERY SELECT t.incarnation, t.state, t.opened FROM target t WHERE t.target_id = p_target;
END $$;
