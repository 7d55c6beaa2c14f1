-- The copy of the scheduler's records, by namespace: several schedulers may share one ledger.

ALTER TABLE tick_audit DROP CONSTRAINT tick_audit_pkey;
ALTER TABLE tick_audit                -- rows of before belong to the default namespace
  ADD COLUMN namespace text NOT NULL DEFAULT 'fencebeat',
  ADD COLUMN position  bigint GENERATED ALWAYS AS IDENTITY,  -- the stream's order, also where a new stream has lower ids
  ADD COLUMN sent_ms   bigint GENERATED ALWAYS AS (split_part(stream_id, '-', 1)::bigint) STORED,
  ADD COLUMN outcome   text   GENERATED ALWAYS AS (record->>'outcome') STORED,
  ADD COLUMN entry     text   GENERATED ALWAYS AS (record->>'entry') STORED,
  ADD COLUMN fire_time bigint GENERATED ALWAYS AS (CASE WHEN record->>'fire_time' ~ '^[0-9]{1,16}$'
                                                        THEN (record->>'fire_time')::bigint END) STORED,  -- us
  ADD COLUMN settled   boolean NOT NULL DEFAULT false,  -- an emitted tick of which a recovery need not know any more
  ADD PRIMARY KEY (namespace, stream_id);
ALTER TABLE tick_audit ALTER COLUMN namespace DROP DEFAULT;
CREATE INDEX tick_audit_sent ON tick_audit (namespace, entry, fire_time, position DESC)
  WHERE outcome = 'emitted' AND NOT settled;
CREATE INDEX tick_audit_passed ON tick_audit (namespace, entry, fire_time)
  WHERE outcome IN ('unroutable', 'paused', 'skipped', 'superseded', 'changed', 'resumed', 'gap');
CREATE INDEX tick_audit_newest ON tick_audit (namespace, position DESC);

ALTER TABLE tick_mark DROP CONSTRAINT tick_mark_pkey;
ALTER TABLE tick_mark ADD COLUMN namespace text NOT NULL DEFAULT 'fencebeat', ADD PRIMARY KEY (namespace, entry);
ALTER TABLE tick_mark ALTER COLUMN namespace DROP DEFAULT;

ALTER TABLE token_floor DROP COLUMN one;
ALTER TABLE token_floor ADD COLUMN namespace text NOT NULL DEFAULT 'fencebeat', ADD PRIMARY KEY (namespace);
ALTER TABLE token_floor ALTER COLUMN namespace DROP DEFAULT;

CREATE TABLE tick_entry (              -- copy of the scheduler's definitions and pauses
  namespace  text NOT NULL,
  entry      text NOT NULL,
  definition text,                     -- JSON, as the scheduler stores it; null: none
  pause      text,                     -- JSON: by, at, reason; null: not paused
  token      bigint NOT NULL,          -- version of the copy that wrote the row
  generation bigint NOT NULL,
  PRIMARY KEY (namespace, entry)
);

CREATE TABLE tick_entry_version (      -- the version that tick_entry is complete for
  namespace  text PRIMARY KEY,
  token      bigint NOT NULL,
  generation bigint NOT NULL
);

GRANT SELECT, INSERT, UPDATE, DELETE ON tick_entry, tick_entry_version TO fencebeat_app;
