-- renew_flags: write the complete copy of the flags, unless a newer one is there. Needs no term: it can only inform.
--
-- KEYS  name   type  holds
--    1  flags  hash  scope -> flag as JSON; `generation`, without which the flags are unknown; `renewed` in us (TIME)
--
-- ARGV  generation; then for each flag in force: scope, flag as JSON
-- Returns {renewed}; {stale, stored generation}; {unknown} where there is no generation, which recover.lua alone
-- writes (a store that lost its past must not look as if it knew it). In the last two cases nothing changed.

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return {'unknown'} end
local stored = tonumber(redis.call('HGET', KEYS[1], 'generation') or '')
local given = tonumber(ARGV[1])
if not given or given ~= math.floor(given) or given < 0 or given >= 9007199254740992 or #ARGV % 2 == 0 then
  return redis.error_reply('ERR a generation below 2^53, then pairs of scope and flag')
end
if not stored then return {'unknown'} end
if given < stored then return {'stale', string.format('%.0f', stored)} end

local fields = {'generation', string.format('%.0f', given), 'renewed', ''}
local kept = {generation = true, renewed = true}
for i = 2, #ARGV, 2 do
  if kept[ARGV[i]] then return redis.error_reply('ERR a scope twice, or one with a reserved name: ' .. ARGV[i]) end
  kept[ARGV[i]] = true
  fields[#fields + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i + 1]
end
local gone = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not kept[field] then gone[#gone + 1] = field end
end
local time = redis.call('TIME')
fields[4] = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))

-- In parts, because Lua can unpack only some thousands of values at once. New stops first, lifted ones last.
for i = 1, #fields, 1000 do
  redis.call('HSET', KEYS[1], unpack(fields, i, math.min(i + 999, #fields)))
end
for i = 1, #gone, 1000 do
  redis.call('HDEL', KEYS[1], unpack(gone, i, math.min(i + 999, #gone)))
end
return {'renewed'}
