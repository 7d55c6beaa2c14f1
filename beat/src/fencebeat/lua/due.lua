-- due: which entries are due now. It looks at the fence and at the generations first, so that a leader notices a lost
-- term or a store that went empty even while nothing is due.
--
-- KEYS  name     type    holds
--    1  lock     string  nonce of the holder; expires with the lease (not asked where etcd keeps the lock)
--    2  term     hash    token, nonce, ...: the fence
--    3  entries  hash    entry -> definition; a field `generation`
--    4  last     hash    entry -> mark in microseconds; a field `generation`
--    5  due      zset    entry, scored by its next fire time in milliseconds
--    6  flags    hash    scope -> stop; a field `generation`
--
-- ARGV  token, nonce, `lock` or `term` (what carries the term), most entries to return
-- Returns {fenced, token sealed}, {unknown, record}, {unusable, key, text}, or
--       {due, server time in us, next score after now (empty: none), entry, mark, entry, mark, ...}. It writes nothing.

for i, want in ipairs({'string', 'hash', 'hash', 'hash', 'zset', 'hash'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
local fence = redis.call('HMGET', KEYS[2], 'token', 'nonce')
if fence[1] ~= ARGV[1] or fence[2] ~= ARGV[2] or (ARGV[3] ~= 'term' and redis.call('GET', KEYS[1]) ~= ARGV[2]) then
  return {'fenced', fence[1] or ''}
end
for _, i in ipairs({3, 4, 6}) do
  if not redis.call('HGET', KEYS[i], 'generation') then return {'unknown', KEYS[i]} end
end

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local following = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local reply = {'due', string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2])), following[2] or ''}
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, ARGV[4])) do
  reply[#reply + 1] = entry
  reply[#reply + 1] = redis.call('HGET', KEYS[4], entry) or ''
end
return reply
