-- edit_flags: set or lift stops where no effect store holds the truth, in one step and from any host.
--
-- KEYS  name   type    holds
--    1  flags  hash    scope -> flag as JSON; `generation`, without which the flags are unknown; `renewed` in us (TIME)
--    2  audit  stream  one record for every decision
--
-- ARGV  generation that the sender read (empty: whatever it is), generation that the new one has to be above,
--       outcome, reason and author for the audit; then for each scope: scope, flag as JSON (empty: it is lifted)
-- Returns {changed, new generation}, {unknown} where there is no generation, {moved, generation} where it is not the one
-- that the sender read, {unusable, key, text}. Only in the first case something changed.

local KEEP = 100000 -- most audit records, about; `store.AUDIT_LENGTH`
for i, want in ipairs({'hash', 'stream'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want} end
end
local function text(number) return string.format('%.0f', number) end
local stored, above = tonumber(redis.call('HGET', KEYS[1], 'generation') or ''), tonumber(ARGV[2])
if not above or above ~= math.floor(above) or above < 0 or above >= 9007199254740991 or #ARGV % 2 == 0 or #ARGV < 5 then
  return redis.error_reply('ERR a generation below 2^53, outcome, reason, author, then pairs of scope and flag')
end
if not stored then return {'unknown'} end
if ARGV[1] ~= '' and tonumber(ARGV[1]) ~= stored then return {'moved', text(stored)} end
local scopes = {}
for i = 6, #ARGV, 2 do
  if ARGV[i] == 'generation' or ARGV[i] == 'renewed' then return redis.error_reply('ERR a reserved name') end
  scopes[#scopes + 1] = ARGV[i]
end

local time = redis.call('TIME')
for i = 6, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
for i = 6, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
local generation = text(math.max(stored, above) + 1)
redis.call('HSET', KEYS[1], 'renewed', text(tonumber(time[1]) * 1000000 + tonumber(time[2])), 'generation', generation)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', KEEP, '*', 'outcome', ARGV[3], 'scopes', table.concat(scopes, ' '),
  'reason', ARGV[4], 'by', ARGV[5])
return {'changed', generation}
