-- claim: take a tick, or say who holds it or how it ended.
--
-- KEYS  name    type    holds
--    1  claim   hash    entry, fire_time (us), token, attempt, holder, until (us, TIME), closed_at (us), outcome
--    2  floor   string  highest token of any claim
--
-- ARGV  entry, fire time in us, token, holder, lease in ms
-- Returns {claimed, attempt}, {running, us left} or {closed, outcome}; in the last two cases nothing changed.

local function unusable(key, found) return {'unusable', key, found} end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then return unusable(KEYS[1], 'a ' .. kind) end
kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'string' then return unusable(KEYS[2], 'a ' .. kind) end
local token, lease = tonumber(ARGV[3]), tonumber(ARGV[5])
if not token or not lease then return redis.error_reply('ERR token and lease are numbers') end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local known = redis.call('HMGET', KEYS[1], 'attempt', 'until', 'token', 'outcome')
local attempt = 0
if known[1] then
  attempt = tonumber(known[1])
  local ends, older = tonumber(known[2] or ''), tonumber(known[3] or '')
  if not attempt or not ends or not older then return unusable(KEYS[1], 'fields that are no numbers') end
  if known[4] then return {'closed', known[4]} end
  if ends > now then return {'running', string.format('%.0f', ends - now)} end
  token = math.max(token, older)
end
local floor = tonumber(redis.call('GET', KEYS[2]) or '0')
if not floor then return unusable(KEYS[2], 'no number') end

redis.call('HSET', KEYS[1], 'entry', ARGV[1], 'fire_time', ARGV[2], 'token', string.format('%.0f', token),
  'attempt', string.format('%.0f', attempt + 1), 'holder', ARGV[4],
  'until', string.format('%.0f', now + lease * 1000))
if token > floor then redis.call('SET', KEYS[2], string.format('%.0f', token)) end
return {'claimed', string.format('%.0f', attempt + 1)}
