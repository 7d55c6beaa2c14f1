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
--       {due, server time in us, next score after now (empty: none), generation of the entries, how many entries there are,
--       entry, mark, entry, mark, ...}, the longest due first. It writes nothing.

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
local generation = redis.call('HGET', KEYS[3], 'generation')
for _, i in ipairs({3, 4, 6}) do
  if not redis.call('HGET', KEYS[i], 'generation') then return {'unknown', KEYS[i]} end
end
if not tonumber(generation) then return {'unusable', KEYS[3], 'its generation is no number'} end

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local following = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local reply = {'due', string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2])), following[2] or '',
  generation, string.format('%.0f', redis.call('HLEN', KEYS[3]) - 1)}
local names = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, ARGV[4])
for from = 1, #names, 1000 do -- as many as Lua's stack bears
  local marks = redis.call('HMGET', KEYS[4], unpack(names, from, math.min(from + 999, #names)))
  for i, mark in ipairs(marks) do
    reply[#reply + 1] = names[from + i - 1]
    reply[#reply + 1] = mark or ''
  end
end
return reply
