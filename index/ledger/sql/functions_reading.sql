-- What status, doctor and syncs read and record besides the protocol.

-- name: record_listing
-- Remember the outcome of a listing; makes the source's row on first use.
CREATE OR REPLACE FUNCTION record_listing(
  p_tenant text, p_source text, p_complete boolean, p_items int, p_problems jsonb, p_pending_deletes int, p_error text
) RETURNS void LANGUAGE sql AS $$
  INSERT INTO source AS s
    (tenant_id, source_id, listed_at, complete, items, problems, pending_deletes, last_error)
  VALUES (p_tenant, p_source, clock_timestamp(), p_complete, p_items, p_problems, p_pending_deletes, p_error)
  ON CONFLICT (tenant_id, source_id) DO UPDATE
     SET listed_at = excluded.listed_at, complete = excluded.complete, items = excluded.items,
         problems = excluded.problems, pending_deletes = excluded.pending_deletes, last_error = excluded.last_error
$$;

-- name: doctor_heads
-- Every head of a target, with what of it a doctor may find in the index. unseen: it committed after the snapshot.
CREATE OR REPLACE FUNCTION doctor_heads(p_target text, p_tenant text, p_snapshot pg_snapshot)
RETURNS TABLE (
  tenant_id text, doc_uid text, source_id text, state text, manifest_ids text[], pending_gc text[], staged text[],
  committed_epoch bigint, dirty boolean, claimed boolean, unseen boolean
) LANGUAGE sql STABLE AS $$
  SELECT h.tenant_id, h.doc_uid, h.source_id, h.state, h.manifest_ids, h.pending_gc,
         ARRAY(SELECT unnest(s.ids) FROM doc_staged s
                WHERE s.tenant_id = h.tenant_id AND s.target_id = h.target_id AND s.doc_uid = h.doc_uid),
         h.committed_epoch, h.dirty_seq > h.done_seq, coalesce(h.lease_until > clock_timestamp(), false),
         coalesce(NOT pg_visible_in_snapshot(h.committed_xid, p_snapshot), false)
    FROM doc_head h
   WHERE h.target_id = p_target AND (p_tenant IS NULL OR h.tenant_id = p_tenant)
   ORDER BY h.tenant_id, h.doc_uid
$$;

-- name: target_progress
-- Where the documents of a target stand.
CREATE OR REPLACE FUNCTION target_progress(p_target text)
RETURNS TABLE (
  documents bigint, indexed bigint, dirty bigint, claimed bigint, dead bigint, absent bigint,
  chunks bigint, garbage bigint, oldest_dirty timestamptz
) LANGUAGE sql STABLE AS $$
  SELECT count(*), count(*) FILTER (WHERE h.state = 'indexed'), count(*) FILTER (WHERE h.dirty_seq > h.done_seq),
         count(*) FILTER (WHERE h.lease_until > clock_timestamp()), count(*) FILTER (WHERE h.state = 'dead'),
         count(*) FILTER (WHERE h.state = 'absent'), coalesce(sum(cardinality(h.manifest_ids)), 0)::bigint,
         coalesce(sum(cardinality(h.pending_gc)), 0)::bigint,
         min(h.dirty_since) FILTER (WHERE h.dirty_seq > h.done_seq)
    FROM doc_head h WHERE h.target_id = p_target
$$;
