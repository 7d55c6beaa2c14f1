-- The ledger: the only truth about documents. Columns are documented here and nowhere else.

CREATE TABLE control (              -- what is stopped, and how far; the row `all` always exists
  scope      text PRIMARY KEY,      -- all, tenant:x, source:tenant/x, target:x, queue:x, entry:x
  level      text NOT NULL DEFAULT 'run' CHECK (level IN ('run', 'emit', 'start', 'write')),
  change     bigint NOT NULL DEFAULT 0,      -- number of the last change of this scope
  counter    bigint NOT NULL DEFAULT 0,      -- row `all` only: the one growing counter changes are numbered from
  reason     text NOT NULL DEFAULT '',
  author     text NOT NULL DEFAULT '',
  since      timestamptz NOT NULL DEFAULT clock_timestamp(),
  until      timestamptz,                    -- judged by this server's clock only
  prev_level text NOT NULL DEFAULT 'run' CHECK (prev_level IN ('run', 'emit', 'start', 'write')),
  prev_until timestamptz                     -- what holds again once `until` has passed
);
INSERT INTO control (scope) VALUES ('all');

CREATE TABLE audit (                -- append-only: who switched what, when, why, until, from where
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  change bigint NOT NULL,
  scope  text NOT NULL,
  before text NOT NULL,
  after  text NOT NULL,
  reason text NOT NULL,
  author text NOT NULL,
  origin text NOT NULL,
  until  timestamptz
);

CREATE TABLE target (
  target_id   text PRIMARY KEY,
  kind        text NOT NULL CHECK (kind IN ('opensearch', 'pgvector', 'memory')),
  dimension   int NOT NULL,
  chunker_fp  text NOT NULL,
  model_fp    text NOT NULL,
  incarnation bigint NOT NULL,      -- raised after a restore or a change from outside; upper half of every index version
  state       text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'lost')),
  opened      boolean NOT NULL DEFAULT false,  -- the physical index has been seen with our mark
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE source (
  tenant_id       text NOT NULL,
  source_id       text NOT NULL,
  listed_at       timestamptz,
  complete        boolean NOT NULL DEFAULT false,
  items           int NOT NULL DEFAULT 0,
  problems        jsonb NOT NULL DEFAULT '[]',
  pending_deletes int NOT NULL DEFAULT 0,     -- above zero: they wait for approval
  last_error      text,
  PRIMARY KEY (tenant_id, source_id)
);

CREATE TABLE doc_head (             -- one row per document and target; it stays when the document is deleted
  tenant_id       text NOT NULL,
  target_id       text NOT NULL REFERENCES target,
  doc_uid         text NOT NULL,
  source_id       text NOT NULL,
  epoch           bigint NOT NULL DEFAULT 0,  -- number of the last attempt
  nonce           uuid,                       -- of the last attempt; epochs repeat after a restore, nonces do not
  committed_epoch bigint NOT NULL DEFAULT 0,
  committed_xid   xid8,                       -- transaction that swapped the manifest, for strict readers
  source_version  text,                       -- version of the committed text
  tried_version   text,                       -- version last tried, dead letters included; listings compare with it
  listed_version  text,                       -- version of the last mark
  absent          boolean NOT NULL DEFAULT false,  -- an approved, completed listing did not have it
  content_hash    bytea,
  meta_hash       bytea,
  meta            jsonb NOT NULL DEFAULT '{}',     -- of the committed version: display name, URL, ACL, tags
  manifest_ids    text[] NOT NULL DEFAULT '{}',    -- what readers may see, in order
  manifest_starts int[] NOT NULL DEFAULT '{}',     -- spans of the chunks, in characters of the normalised text
  manifest_ends   int[] NOT NULL DEFAULT '{}',
  pending_gc      text[] NOT NULL DEFAULT '{}',    -- ids to be replaced by tombstones
  dirty_seq       bigint NOT NULL DEFAULT 0,       -- grows with each mark; dirty means dirty_seq > done_seq
  done_seq        bigint NOT NULL DEFAULT 0,       -- number claimed by the last attempt that came to an end
  dirty_since     timestamptz,
  crashes         int NOT NULL DEFAULT 0,          -- claims without an outcome since the last outcome, an open one included
  failures        int NOT NULL DEFAULT 0,          -- attempts that ended with a reason to try again, in a row
  switch_seq      bigint NOT NULL DEFAULT 0,       -- highest change of the document's scopes, at the claim
  state           text NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'indexed', 'absent', 'dead')),
  last_error      text,
  lease_until     timestamptz,                     -- of the open claim
  not_before      timestamptz NOT NULL DEFAULT '-infinity',  -- back-off
  committed_at    timestamptz,
  PRIMARY KEY (tenant_id, target_id, doc_uid),
  CHECK (cardinality(manifest_ids) = cardinality(manifest_starts) AND cardinality(manifest_ids) = cardinality(manifest_ends))
);
CREATE INDEX doc_head_dirty ON doc_head (target_id, tenant_id, dirty_since) WHERE dirty_seq > done_seq;
CREATE INDEX doc_head_gc ON doc_head (target_id) WHERE cardinality(pending_gc) > 0;
CREATE INDEX doc_head_source ON doc_head (tenant_id, source_id, target_id);

CREATE TABLE doc_staged (           -- intent: what an attempt is about to write, recorded before its first write
  tenant_id text NOT NULL,
  target_id text NOT NULL,
  doc_uid   text NOT NULL,
  epoch     bigint NOT NULL,
  ids       text[] NOT NULL,
  PRIMARY KEY (tenant_id, target_id, doc_uid, epoch)
);

CREATE TABLE dead_letter (
  tenant_id   text NOT NULL,
  target_id   text NOT NULL,
  doc_uid     text NOT NULL,
  source_id   text NOT NULL,
  version     text,                 -- of the source, as tried
  reason      text NOT NULL,
  fingerprint text NOT NULL,        -- kind of failure, for grouping
  at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, target_id, doc_uid)
);

CREATE TABLE embedding_cache (
  model_fp   text NOT NULL,
  input_hash bytea NOT NULL,        -- blake2b-256 of the exact input
  vector     bytea NOT NULL,        -- float32, little-endian
  used_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (model_fp, input_hash)
);

CREATE TABLE tick_claim (           -- a worker's claim on a tick; written by the worker guard
  tick_id     uuid PRIMARY KEY,
  entry       text NOT NULL,
  fire_time   timestamptz NOT NULL,
  token       bigint NOT NULL,
  attempt     int NOT NULL DEFAULT 1,
  holder      text NOT NULL,
  lease_until timestamptz NOT NULL,
  closed_at   timestamptz,
  outcome     text
);

CREATE INDEX tick_claim_token ON tick_claim (token DESC);

CREATE TABLE tick_mark (            -- highest fire time decided of each entry, copied from the scheduler's audit
  entry     text PRIMARY KEY,
  fire_time timestamptz NOT NULL
);

CREATE TABLE token_floor (          -- highest fencing token seen in the scheduler's audit; one row
  one   boolean PRIMARY KEY DEFAULT true CHECK (one),
  token bigint NOT NULL
);
INSERT INTO token_floor (token) VALUES (0);

CREATE TABLE tick_audit (           -- copy of the scheduler's audit stream
  stream_id text PRIMARY KEY,
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  record    jsonb NOT NULL
);

CREATE TABLE doctor_report (        -- last results, for status and metrics
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  target_id text NOT NULL,
  report    jsonb NOT NULL
);

GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO fencebeat_app;
REVOKE UPDATE, DELETE ON audit FROM fencebeat_app;
