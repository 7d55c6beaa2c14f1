-- renew_flags: write the complete copy of the flags, unless a newer one is there. Needs no term: it can only inform.
--
-- KEYS  name   type  holds
--    1  flags  hash  scope -> flag as JSON; `generation`, without which the flags are unknown; `renewed` in us (TIME)
--
-- ARGV  generation, TIME in us just before the flags were read from the effect store; then for each flag in force: scope,
--       flag as JSON. A copy is as old as its reading, not as its writing: its writer may have stood still in between.
-- Returns {renewed}; {stale, stored generation}; {unknown} where there is no generation, which recover.lua alone
-- writes (a store that lost its past must not look as if it knew it). In the last two cases nothing changed.

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return {'unknown'} end
local stored = tonumber(redis.call('HGET', KEYS[1], 'generation') or '')
local function whole(value)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < 0 or number >= 9007199254740992 then return nil end
  return number
end
local given, read_at = whole(ARGV[1]), whole(ARGV[2])
if not given or not read_at or #ARGV % 2 == 1 then
  return redis.error_reply('ERR a generation and a time below 2^53, then pairs of scope and flag')
end
if not stored then return {'unknown'} end
if given < stored then return {'stale', string.format('%.0f', stored)} end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local renewed = whole(redis.call('HGET', KEYS[1], 'renewed') or '')
if given > stored or not renewed or renewed < read_at or renewed > now then
  renewed = read_at -- of the same flags, the youngest reading counts
end
local fields = {'generation', string.format('%.0f', given), 'renewed', string.format('%.0f', renewed)}
local kept = {generation = true, renewed = true}
for i = 3, #ARGV, 2 do
  if kept[ARGV[i]] then return redis.error_reply('ERR a scope twice, or one with a reserved name: ' .. ARGV[i]) end
  kept[ARGV[i]] = true
  fields[#fields + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i + 1]
end
local gone = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not kept[field] then gone[#gone + 1] = field end
end

-- In parts, because Lua can unpack only some thousands of values at once. New stops first, lifted ones last.
for i = 1, #fields, 1000 do
  redis.call('HSET', KEYS[1], unpack(fields, i, math.min(i + 999, #fields)))
end
for i = 1, #gone, 1000 do
  redis.call('HDEL', KEYS[1], unpack(gone, i, math.min(i + 999, #gone)))
end
return {'renewed'}
