-- quarantine: show which entries the leader leaves alone, and why; under its term.
--
-- KEYS  name        type    holds
--    1  lock        string  nonce of the holder; expires with the lease (not asked where etcd keeps the lock)
--    2  term        hash    token, nonce, ...: the fence
--    3  quarantine  hash    entry -> reason, since, until (us) as JSON: for display; what counts is the leader's memory
--
-- ARGV  token, nonce, `lock` or `term`, number of records, for each: entry, record; then the entries whose records go
-- Returns {fenced, token sealed}, {unusable, key, text}, {shown}. All checks come before the first write.

for i, want in ipairs({'string', 'hash', 'hash'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
local fence = redis.call('HMGET', KEYS[2], 'token', 'nonce')
if fence[1] ~= ARGV[1] or fence[2] ~= ARGV[2] or (ARGV[3] ~= 'term' and redis.call('GET', KEYS[1]) ~= ARGV[2]) then
  return {'fenced', fence[1] or ''}
end
local count = assert(tonumber(ARGV[4]), 'not a number of records')
assert(ARGV[4 + 2 * count], 'fewer records than announced')
for i = 1, count do redis.call('HSET', KEYS[3], ARGV[3 + 2 * i], ARGV[4 + 2 * i]) end
for i = 5 + 2 * count, #ARGV do redis.call('HDEL', KEYS[3], ARGV[i]) end
return {'shown'}
