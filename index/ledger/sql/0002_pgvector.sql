-- pgvector as a target: a table of chunks for each target (made by pgvector_create), and one place to stage in.
-- A document's mutable meta is in its head (doc_head.meta), never in a chunk row: an update would insert into HNSW again.

CREATE EXTENSION IF NOT EXISTS vector;

CREATE TABLE pgvector_staged (      -- chunks an attempt has loaded and not yet committed; only functions touch it
  target_id text NOT NULL,
  tenant_id text NOT NULL,
  doc_uid   text NOT NULL,
  version   bigint NOT NULL,        -- incarnation << 32 | epoch: epochs repeat after a restore, versions do not
  chunk_id  text NOT NULL,
  title     text NOT NULL,
  headings  text[] NOT NULL,
  body      text NOT NULL,
  embedding vector NOT NULL,
  staged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (target_id, tenant_id, doc_uid, version, chunk_id)
);
CREATE INDEX pgvector_staged_age ON pgvector_staged (target_id, staged_at);
REVOKE ALL ON pgvector_staged FROM PUBLIC, fencebeat_app;
