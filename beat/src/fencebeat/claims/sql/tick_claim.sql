-- Claims of ticks, written by fencebeat's worker guard. May be run again: what is there stays.

CREATE TABLE IF NOT EXISTS tick_claim (
  tick_id     uuid PRIMARY KEY,     -- the task id, which is made of (namespace, entry, fire time)
  entry       text NOT NULL,
  fire_time   timestamptz NOT NULL,
  token       bigint NOT NULL,      -- highest fencing token of the terms that emitted it
  attempt     int NOT NULL DEFAULT 1,        -- grows with each takeover; an older attempt can change nothing
  holder      text NOT NULL,        -- host and process of this attempt, for people
  lease_until timestamptz NOT NULL, -- judged by this server's clock only
  closed_at   timestamptz,          -- when it was run to its end
  outcome     text,                 -- succeeded, failed, ignored
  namespace   text NOT NULL DEFAULT ''       -- of the schedule that emitted it
);
ALTER TABLE tick_claim ADD COLUMN IF NOT EXISTS namespace text NOT NULL DEFAULT '';

CREATE INDEX IF NOT EXISTS tick_claim_newest_token ON tick_claim (namespace, token DESC);
CREATE INDEX IF NOT EXISTS tick_claim_of_entry ON tick_claim (namespace, entry, fire_time DESC);
CREATE INDEX IF NOT EXISTS tick_claim_closed ON tick_claim (closed_at) WHERE closed_at IS NOT NULL;
