-- acquire: begin a term, or extend the caller's own, in one step. The fence is sealed here.
--
-- KEYS  name    type    holds
--    1  lock    string  nonce of the holder; expires with the lease
--    2  signal  list    wakes those who wait for the lock
--    3  term    hash    token, nonce, holder, since (us), lease (ms): the fence
--    4  audit   stream  one record for every decision
--
-- ARGV  nonce, holder, lease in ms, floor: the highest token any effect store has seen
-- Returns {elected, token}; {extended, token} to the holder's own nonce; {standby, ms left} when another term runs;
-- {floor, text} for a floor that no clock can explain; {unusable, key, text} for a record that cannot be read.
-- Order: all checks, types and numbers included, then all writes. Redis does not undo a script that fails half way.

local KEEP = 100000 -- most audit records, about; `store.AUDIT_LENGTH`
local nonce, holder, lease, floor = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local DAY, LIMIT = 86400 * 1000000, 9007199254740992

for i, want in ipairs({'string', 'list', 'hash', 'stream'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if not lease or lease < 1 or lease ~= math.floor(lease) then
  return redis.error_reply('ERR the lease is a whole number of milliseconds')
end
if not floor or floor < 0 or floor ~= math.floor(floor) or floor > now + DAY then
  return {'floor', ARGV[4] .. ' against a server time of ' .. string.format('%.0f', now)}
end
local term = redis.call('HMGET', KEYS[3], 'token', 'nonce', 'lease')
local stored = tonumber(term[1] or '0')
if not stored or stored < 0 or stored ~= math.floor(stored) or stored >= LIMIT - 1 then
  return {'unusable', KEYS[3], 'its token is no number below 2^53'}
end

local held = redis.call('GET', KEYS[1])
if held and held == nonce and term[2] == nonce then
  redis.call('PEXPIRE', KEYS[1], lease)
  return {'extended', string.format('%.0f', stored)}
end
if held and held ~= nonce then
  -- A server clock that was set back leaves a 5 s lease hours to live: one lease from now is all it may have.
  local theirs = term[2] == held and tonumber(term[3] or '') or lease
  if theirs < 1 then theirs = lease end
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > theirs then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', theirs))
    left = theirs
  end
  return {'standby', string.format('%.0f', left)}
end

-- Free, expired, or ours while the term was lost: a new token either way.
local token = string.format('%.0f', math.max(stored, floor, now) + 1)
redis.call('SET', KEYS[1], nonce, 'PX', lease) -- first, because it needs memory: a full server refuses here or never
redis.call('HSET', KEYS[3], 'token', token, 'nonce', nonce, 'holder', holder,
  'since', string.format('%.0f', now), 'lease', string.format('%.0f', lease))
redis.call('DEL', KEYS[2]) -- what an earlier release left would wake waiters for nothing
redis.call('XADD', KEYS[4], 'MAXLEN', '~', KEEP, '*', 'outcome', 'elected', 'token', token, 'nonce', nonce,
  'holder', holder)
return {'elected', token}
