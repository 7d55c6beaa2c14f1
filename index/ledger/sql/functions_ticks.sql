-- The copy of the scheduler's audit stream: what survives when Redis forgets.

-- name: copy_audit
-- Keep audit records, raise the marks of the entries they name and the floor of the token. The same record twice changes nothing: every beat copies.
CREATE OR REPLACE FUNCTION copy_audit(p_ids text[], p_records jsonb[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_copied bigint;
BEGIN
  INSERT INTO tick_audit (stream_id, record)
  SELECT r.id, r.record FROM unnest(p_ids, p_records) AS r(id, record) ON CONFLICT (stream_id) DO NOTHING;
  GET DIAGNOSTICS v_copied = ROW_COUNT;
  INSERT INTO tick_mark AS m (entry, fire_time)
  SELECT r.record->>'entry', to_timestamp(max((r.record->>'fire_time')::numeric) / 1000000.0)
    FROM unnest(p_records) AS r(record)
   WHERE r.record ? 'entry' AND r.record->>'fire_time' ~ '^[0-9]+$'
   GROUP BY 1 ORDER BY 1
  ON CONFLICT (entry) DO UPDATE SET fire_time = excluded.fire_time WHERE m.fire_time < excluded.fire_time;
  UPDATE token_floor f SET token = n.newest
    FROM (SELECT max((r.record->>'token')::bigint) AS newest FROM unnest(p_records) AS r(record)
           WHERE r.record->>'token' ~ '^[0-9]+$') AS n
   WHERE n.newest > f.token;
  RETURN v_copied;
END $$;

-- name: trim_audit
-- Forget copies older than that: marks stay.
CREATE OR REPLACE FUNCTION trim_audit(p_older interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_deleted bigint;
BEGIN
  DELETE FROM tick_audit a WHERE a.at < clock_timestamp() - p_older;
  GET DIAGNOSTICS v_deleted = ROW_COUNT;
  RETURN v_deleted;
END $$;
