-- pgvector as a target. Chunk tables have row-level security that binds their owner too; the application's role may
-- read the rows of the tenant named in `fencebeat.tenant` and change nothing. What changes or counts rows of several
-- tenants is a function with its owner's rights, a fixed search_path and no dynamic text but quoted identifiers.

-- name: pgvector_table
-- Name of the table of a target: readable, and unique by the hash behind it.
CREATE OR REPLACE FUNCTION pgvector_table(p_target text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT 'chunks_' || left(regexp_replace(lower(p_target), '[^a-z0-9_]', '_', 'g'), 40) || '_' || left(md5(p_target), 8)
$$;

-- name: pgvector_create
-- Make the table of a target with its mark, where there is none. The mark is the table's comment: it goes where the table goes.
CREATE OR REPLACE FUNCTION pgvector_create(p_target text, p_dimension int, p_mark jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
  v_table text := pgvector_table(p_target);
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended(v_table, 0));
  IF to_regclass(quote_ident(v_table)) IS NOT NULL THEN
    RETURN;
  END IF;
  EXECUTE format(
    'CREATE TABLE %I (
       tenant_id text NOT NULL,
       doc_uid   text NOT NULL,
       chunk_id  text NOT NULL,
       title     text NOT NULL,
       headings  text[] NOT NULL,
       body      text NOT NULL,
       embedding vector(%s) NOT NULL,
       words     tsvector NOT NULL GENERATED ALWAYS AS (
         setweight(to_tsvector(''pg_catalog.english'', title), ''A'') || setweight(to_tsvector(''pg_catalog.english'', body), ''B'')
       ) STORED,
       PRIMARY KEY (tenant_id, doc_uid, chunk_id)
     )', v_table, p_dimension);
  EXECUTE format('CREATE INDEX ON %I USING hnsw (embedding vector_cosine_ops)', v_table);
  EXECUTE format('CREATE INDEX ON %I USING gin (words)', v_table);
  EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', v_table);
  EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', v_table);
  EXECUTE format(
    'CREATE POLICY one_tenant ON %I FOR SELECT TO fencebeat_app
       USING (tenant_id = current_setting(''fencebeat.tenant'', true))', v_table);
  EXECUTE format('CREATE POLICY maintenance ON %I TO %I USING (true) WITH CHECK (true)', v_table, current_user);
  EXECUTE format('GRANT SELECT ON %I TO fencebeat_app', v_table);
  EXECUTE format('COMMENT ON TABLE %I IS %L', v_table, p_mark::text);
END $$;

-- name: pgvector_raise_mark
-- Put a new mark on the table of a target.
CREATE OR REPLACE FUNCTION pgvector_raise_mark(p_target text, p_mark jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  EXECUTE format('COMMENT ON TABLE %I IS %L', pgvector_table(p_target), p_mark::text);
END $$;

-- name: pgvector_stage
-- Load chunks of one attempt, before its commit. An id given twice, or again, is loaded once.
CREATE OR REPLACE FUNCTION pgvector_stage(
  p_target text, p_tenant text, p_uid text, p_version bigint, p_chunks jsonb
) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
  INSERT INTO pgvector_staged (target_id, tenant_id, doc_uid, version, chunk_id, title, headings, body, embedding)
  SELECT DISTINCT ON (c.chunk_id) p_target, p_tenant, p_uid, p_version, c.chunk_id, c.title,
         ARRAY(SELECT jsonb_array_elements_text(c.headings)), c.body, c.embedding::vector
    FROM jsonb_to_recordset(p_chunks) AS c(chunk_id text, title text, headings jsonb, body text, embedding text)
   ORDER BY c.chunk_id
  ON CONFLICT DO NOTHING
$$;

-- name: pgvector_swap
-- Make the chunks of a document those of its new manifest. Called by commit_document, which holds the head's lock and
-- has checked the fence. A chunk row is inserted once and deleted once, never updated. A new chunk that this very
-- attempt has not staged is an error: a version is never committed without all its chunks.
CREATE OR REPLACE FUNCTION pgvector_swap(p_target text, p_tenant text, p_uid text, p_epoch bigint, p_manifest text[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
  v_table text := pgvector_table(p_target);
  v_version bigint;
  v_missing bigint;
BEGIN
  SELECT t.incarnation << 32 | p_epoch INTO STRICT v_version FROM target t WHERE t.target_id = p_target;
  EXECUTE format(
    'INSERT INTO %I (tenant_id, doc_uid, chunk_id, title, headings, body, embedding)
     SELECT s.tenant_id, s.doc_uid, s.chunk_id, s.title, s.headings, s.body, s.embedding
       FROM pgvector_staged s
      WHERE s.target_id = $1 AND s.tenant_id = $2 AND s.doc_uid = $3 AND s.version = $4 AND s.chunk_id = ANY ($5)
      ORDER BY s.chunk_id
     ON CONFLICT DO NOTHING', v_table) USING p_target, p_tenant, p_uid, v_version, p_manifest;
  EXECUTE format(
    'SELECT count(*) FROM (
       SELECT unnest($3) EXCEPT
       SELECT unnest(h.manifest_ids) FROM doc_head h WHERE h.tenant_id = $1 AND h.target_id = $4 AND h.doc_uid = $2
       EXCEPT SELECT c.chunk_id FROM %I c WHERE c.tenant_id = $1 AND c.doc_uid = $2
     ) AS m', v_table) INTO v_missing USING p_tenant, p_uid, p_manifest, p_target;
  IF v_missing > 0 THEN
    RAISE EXCEPTION '% chunks of % were not staged under version %', v_missing, p_uid, v_version;
  END IF;
  EXECUTE format('DELETE FROM %I WHERE tenant_id = $1 AND doc_uid = $2 AND chunk_id <> ALL ($3)', v_table)
    USING p_tenant, p_uid, p_manifest;
  DELETE FROM pgvector_staged s
   WHERE s.target_id = p_target AND s.tenant_id = p_tenant AND s.doc_uid = p_uid AND s.version <= v_version;
END $$;

-- name: pgvector_scan
-- Ids of all chunks of a target, or of one tenant in it, in order, after a key: for the doctor. No text.
CREATE OR REPLACE FUNCTION pgvector_scan(p_target text, p_tenant text, p_after text[], p_limit int)
RETURNS TABLE (tenant_id text, doc_uid text, chunk_id text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  RETURN QUERY EXECUTE format(
    'SELECT c.tenant_id, c.doc_uid, c.chunk_id FROM %I c
      WHERE ($1 IS NULL OR c.tenant_id = $1) AND (c.tenant_id, c.doc_uid, c.chunk_id) > ($2[1], $2[2], $2[3])
      ORDER BY c.tenant_id, c.doc_uid, c.chunk_id LIMIT $3', pgvector_table(p_target))
    USING p_tenant, p_after, p_limit;
END $$;

-- name: pgvector_purge
-- Delete what attempts staged that long ago and never committed. Returns how many rows.
CREATE OR REPLACE FUNCTION pgvector_purge(p_target text, p_older interval) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
  v_deleted bigint;
BEGIN
  DELETE FROM pgvector_staged s WHERE s.target_id = p_target AND s.staged_at < clock_timestamp() - p_older;
  GET DIAGNOSTICS v_deleted = ROW_COUNT;
  RETURN v_deleted;
END $$;

REVOKE EXECUTE ON FUNCTION pgvector_create(text, int, jsonb), pgvector_raise_mark(text, jsonb),
  pgvector_stage(text, text, text, bigint, jsonb), pgvector_swap(text, text, text, bigint, text[]),
  pgvector_scan(text, text, text[], int), pgvector_purge(text, interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgvector_create(text, int, jsonb), pgvector_raise_mark(text, jsonb),
  pgvector_stage(text, text, text, bigint, jsonb), pgvector_swap(text, text, text, bigint, text[]),
  pgvector_scan(text, text, text[], int), pgvector_purge(text, interval) TO fencebeat_app;
