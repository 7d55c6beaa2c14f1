-- seal: put the fence of a term that was won in another store (etcd) into the broker. Its first act there.
--
-- KEYS  name    type    holds
--    1  term    hash    token, nonce, holder, since (us), lease (ms): the fence
--    2  audit   stream  one record for every decision
--    3  signal  list    wakes those who wait for the lock; what an earlier release left is removed
--
-- ARGV  token, nonce, holder, lease in ms, floor: the highest token any effect store has seen
-- Returns {sealed}, also when asked again by the same term; {refused, highest number known} when the token is not
-- above the sealed one and the floor; {floor, text} for a floor that no clock can explain; {unusable, key, text}.

local KEEP = 100000 -- most audit records, about; `store.AUDIT_LENGTH`
local DAY, LIMIT = 86400 * 1000000, 9007199254740992
for i, want in ipairs({'hash', 'stream', 'list'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want} end
end
local token, lease, floor = tonumber(ARGV[1]), tonumber(ARGV[4]), tonumber(ARGV[5])
if not token or token < 1 or token ~= math.floor(token) or token >= LIMIT or not lease or lease < 1 then
  return redis.error_reply('ERR a token below 2^53 and a lease in ms')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if not floor or floor < 0 or floor ~= math.floor(floor) or floor > now + DAY then
  return {'floor', ARGV[5] .. ' against a server time of ' .. string.format('%.0f', now)}
end
local term = redis.call('HMGET', KEYS[1], 'token', 'nonce')
local stored = tonumber(term[1] or '0')
if not stored or stored < 0 or stored ~= math.floor(stored) then
  return {'unusable', KEYS[1], 'its token is no number'}
end
if stored == token and term[2] == ARGV[2] then return {'sealed'} end
if token <= stored or token <= floor then
  return {'refused', string.format('%.0f', math.max(stored, floor))}
end
redis.call('HSET', KEYS[1], 'token', string.format('%.0f', token), 'nonce', ARGV[2], 'holder', ARGV[3],
  'since', string.format('%.0f', now), 'lease', string.format('%.0f', lease))
redis.call('DEL', KEYS[3])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', KEEP, '*', 'outcome', 'elected', 'token', string.format('%.0f', token),
  'nonce', ARGV[2], 'holder', ARGV[3])
return {'sealed'}
