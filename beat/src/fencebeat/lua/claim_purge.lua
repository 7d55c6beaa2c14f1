-- claim_purge: forget some claims that were closed long ago, but never the newest of an entry.
--
-- KEYS  name    type  holds
--    1  closed  zset  task id, scored by the time of closing in ms (TIME)
--    2  newest  hash  entry -> fire time and task id of its newest closed claim
--
-- ARGV  age in ms, prefix of the claims' keys, how many to look at, how many of the oldest to pass over
-- Returns {deleted, kept}: kept are newest ones, to be passed over by the next call. The claims' own keys (prefix and
-- task id) are made here, which needs one database and no cluster, like the broker.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local before = string.format('%.0f', now - tonumber(ARGV[1]))
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. before, 'LIMIT', ARGV[4], ARGV[3])
local deleted, kept = 0, 0
for _, task_id in ipairs(old) do
  local entry = redis.call('HGET', ARGV[2] .. task_id, 'entry')
  local newest = entry and redis.call('HGET', KEYS[2], entry)
  if newest and string.match(newest, '%S+$') == task_id then
    kept = kept + 1
  else
    redis.call('DEL', ARGV[2] .. task_id)
    redis.call('ZREM', KEYS[1], task_id)
    deleted = deleted + 1
  end
end
return {deleted, kept}
