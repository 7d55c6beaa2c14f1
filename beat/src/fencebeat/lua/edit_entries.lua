-- edit_entries: change one entry at run time, or ask for extra runs of it, in one step and from any host.
--
-- KEYS  name      type    holds
--    1  entries   hash    entry -> definition, JSON; a field `generation`, which grows with every change here
--    2  last      hash    entry -> mark in microseconds; only grows, stays when its entry goes; a field `generation`
--    3  due       zset    entry, scored by when it is next due, in milliseconds; a paused entry is not in it
--    4  paused    hash    entry -> who paused it, JSON
--    5  edits     stream  one record for each change: how the leader's memory keeps up
--    6  audit     stream  one record for every decision
--    7  requests  hash    id -> an extra run that somebody asked for, JSON
--
-- ARGV  operation (add, edit, remove, pause, resume, run), entry, by whom, the host's clock in us, tolerance in us,
--       most audit records, definition the sender read (empty: none), mark the sender read (empty: none),
--       new definition (add, edit) or pause (pause), new mark (empty: stays), its next fire time (us; empty: never),
--       when it is next due (us; empty: never), first moment whose ticks are closed (us; empty: none are), reason;
--       for `run` then pairs: id, request
-- Returns {unknown, record}, {unusable, key, text}, {clock, server time in us}, {moved} where something is not as the sender
--       read it or its time has passed; nothing changed then. Else {changed, generation}.
-- Order: all checks, then all writes. No term is asked for: an edit is data, and the leader acts by it under its own.

local op, name, by, host_now, tolerance, keep = unpack(ARGV, 1, 6)
local read, mark_read, content, mark, following, due_at, first, reason = unpack(ARGV, 7, 14)
local EDITS = 10000 -- most records of changes; a leader that missed more loads all entries
local function whole(value)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < 0 or number >= 9007199254740992 then return nil end
  return number
end
local OUTCOMES = {add = 'added', edit = 'changed', remove = 'removed', pause = 'held', resume = 'resumed', run = 'asked'}

for i, want in ipairs({'hash', 'hash', 'zset', 'hash', 'stream', 'stream', 'hash'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
assert(OUTCOMES[op] and reason and name ~= 'generation', 'a change that cannot be read')
assert(whole(host_now) and whole(tolerance) and whole(keep), 'clock, tolerance and audit length are numbers')
for _, value in ipairs({mark_read, mark, following, due_at, first}) do
  assert(value == '' or whole(value), 'not a time')
end
for i = 1, 2 do
  if not whole(redis.call('HGET', KEYS[i], 'generation')) then return {'unknown', KEYS[i]} end
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if math.abs(tonumber(host_now) - now) > tonumber(tolerance) then return {'clock', string.format('%.0f', now)} end
if (redis.call('HGET', KEYS[1], name) or '') ~= read or (redis.call('HGET', KEYS[2], name) or '') ~= mark_read then
  return {'moved'}
end
if mark ~= '' then
  -- The mark is the time at which the sender read the clock. A fire time that has passed since would be one of the past.
  if mark_read ~= '' and tonumber(mark) < tonumber(mark_read) then return {'moved'} end
  if following ~= '' and tonumber(following) <= now then return {'moved'} end
  if tonumber(mark) > now and mark ~= mark_read then return {'moved'} end
end

local generation = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'generation', 1))
if op == 'add' or op == 'edit' then redis.call('HSET', KEYS[1], name, content) end
if op == 'remove' then redis.call('HDEL', KEYS[1], name) redis.call('HDEL', KEYS[4], name) end
if op == 'pause' then redis.call('HSET', KEYS[4], name, content) end
if op == 'resume' then redis.call('HDEL', KEYS[4], name) end
if mark ~= '' then redis.call('HSET', KEYS[2], name, mark) end
if op == 'remove' or op == 'pause' or redis.call('HEXISTS', KEYS[4], name) == 1 then
  redis.call('ZREM', KEYS[3], name)
elseif op ~= 'run' then
  if due_at == '' then
    redis.call('ZREM', KEYS[3], name)
  else
    redis.call('ZADD', KEYS[3], string.format('%.0f', math.ceil(tonumber(due_at) / 1000)), name)
  end
end
for i = 15, #ARGV - 1, 2 do
  if redis.call('HEXISTS', KEYS[7], ARGV[i]) == 0 then redis.call('HSET', KEYS[7], ARGV[i], ARGV[i + 1]) end
end
redis.call('XADD', KEYS[5], 'MAXLEN', '~', EDITS, '*', 'generation', generation, 'op', op, 'entry', name, 'by', by)
local fields = {'outcome', OUTCOMES[op], 'entry', name, 'by', by}
local function add(field, value)
  if value and value ~= '' then fields[#fields + 1], fields[#fields + 2] = field, value end
end
add('fire_time', redis.call('HGET', KEYS[2], name))
add('first', first)
add('reason', reason)
redis.call('XADD', KEYS[6], 'MAXLEN', '~', keep, '*', unpack(fields))
return {'changed', generation}
