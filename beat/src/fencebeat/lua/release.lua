-- release: end a term and wake those who wait, if it is still the term. The fence keeps its token.
--
-- KEYS  name    type    holds
--    1  lock    string  nonce of the holder; expires with the lease
--    2  signal  list    wakes those who wait for the lock
--    3  term    hash    token, nonce, ...: the fence
--    4  audit   stream  one record for every decision
--
-- ARGV  token, nonce, how many to wake (0: nobody), ms for which a signal is kept
-- Returns {resigned}, or {refused}; then nothing changed.

local KEEP = 100000 -- most audit records, about; `store.AUDIT_LENGTH`
for i, want in ipairs({'string', 'list', 'hash', 'stream'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= want and not (kind == 'none' and (want == 'list' or want == 'stream')) then
    return {'refused'}
  end
end
local term = redis.call('HMGET', KEYS[3], 'token', 'nonce')
if redis.call('GET', KEYS[1]) ~= ARGV[2] or term[1] ~= ARGV[1] or term[2] ~= ARGV[2] then
  return {'refused'}
end
local waiters, keep = tonumber(ARGV[3]), tonumber(ARGV[4])
if not waiters or not keep then
  return redis.error_reply('ERR the number of waiters and the time of the signal are numbers')
end

redis.call('DEL', KEYS[1]) -- first, and without need for memory: a full server must be able to change its leader
redis.call('DEL', KEYS[2])
for _ = 1, waiters do
  redis.call('LPUSH', KEYS[2], '1') -- one element wakes one waiter, and a frozen one may swallow it
end
if waiters > 0 then redis.call('PEXPIRE', KEYS[2], keep) end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', KEEP, '*', 'outcome', 'resigned', 'token', ARGV[1], 'nonce', ARGV[2])
return {'resigned'}
