-- claim_close: record that a tick was run to its end.
--
-- KEYS  name    type  holds
--    1  claim   hash  see claim.lua
--    2  closed  zset  task id, scored by the time of closing in ms (TIME)
--    3  newest  hash  entry -> fire time and task id of its newest closed claim
--
-- ARGV  task id, attempt, outcome
-- Returns 1, also where this attempt has closed it before (the first outcome stays); 0 where another attempt has taken
-- it; then nothing changed.

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return 0 end
local known = redis.call('HMGET', KEYS[1], 'attempt', 'outcome', 'entry', 'fire_time')
if known[1] ~= ARGV[2] then return 0 end
if known[2] then return 1 end
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'zset' then return {'unusable', KEYS[2], 'a ' .. kind} end
kind = redis.call('TYPE', KEYS[3]).ok
if kind ~= 'none' and kind ~= 'hash' then return {'unusable', KEYS[3], 'a ' .. kind} end
local newest = tonumber(string.match(redis.call('HGET', KEYS[3], known[3]) or '', '^%S+') or '-1')

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('HSET', KEYS[1], 'outcome', ARGV[3], 'closed_at', string.format('%.0f', now))
redis.call('ZADD', KEYS[2], string.format('%.0f', now / 1000), ARGV[1])
if tonumber(known[4]) > (newest or -1) then redis.call('HSET', KEYS[3], known[3], known[4] .. ' ' .. ARGV[1]) end
return 1
