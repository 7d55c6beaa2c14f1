-- renew: extend the lease of a term, if it is still the term.
--
-- KEYS  name  type    holds
--    1  lock  string  nonce of the holder; expires with the lease
--    2  term  hash    token, nonce, ...: the fence
--
-- ARGV  token, nonce, lease in ms
-- Returns {renewed, token}, or {refused, token the store has sealed, empty where it has none}; then nothing changed.

local sealed = ''
if redis.call('TYPE', KEYS[1]).ok ~= 'string' or redis.call('TYPE', KEYS[2]).ok ~= 'hash' then
  return {'refused', sealed}
end
local term = redis.call('HMGET', KEYS[2], 'token', 'nonce')
sealed = term[1] or ''
if redis.call('GET', KEYS[1]) ~= ARGV[2] or term[1] ~= ARGV[1] or term[2] ~= ARGV[2] then
  return {'refused', sealed}
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'renewed', sealed}
