-- claim_extend: hold a claim for a lease from now; with a lease of 0, give it back.
--
-- KEYS  name   type  holds
--    1  claim  hash  see claim.lua
--
-- ARGV  attempt, lease in ms
-- Returns 1, or 0 where it is closed or another attempt has taken it; then nothing changed.

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return 0 end
local known = redis.call('HMGET', KEYS[1], 'attempt', 'outcome')
if known[1] ~= ARGV[1] or known[2] then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + tonumber(ARGV[2]) * 1000))
return 1
