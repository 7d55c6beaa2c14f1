-- commit: decide, enqueue, advance and record a batch of ticks in one step.
--
-- KEYS  name     type    holds
--    1  lock     string  nonce of the holder; expires with the lease (not asked where etcd keeps the lock)
--    2  term     hash    token, nonce, holder, since, lease: sealed when the lock was taken
--    3  entries  hash    entry -> definition, JSON with its version; a field `generation`
--    4  last     hash    entry -> mark: highest fire time decided, in microseconds; only grows; a field `generation`
--    5  due      zset    entry, scored by its next fire time in milliseconds
--    6  flags    hash    scope -> stop; fields `generation` and `renewed` (us), without which the flags are unknown
--    7  audit    stream  one record for every decision below
--   8+  queue    list    where the messages go
--
-- ARGV  token, nonce, `lock` or `term` (what carries the term), lease in ms, holder, sender's clock in us, tolerance in us,
--       flags generation that the sender read (empty: no effect store), most audit records, number of ticks; then for each
--         emit, entry, version, fire time, next fire time (empty: never), task id, message id,
--               number of scopes, scopes, number of commands, then for each: lpush, index of its key, message
--                                                                          pexpire, index of its key, ms
--                                                                          publish, channel, message
--         pass, entry, version, first fire time, last fire time, how many, next fire time, outcome, reason
-- Returns {fenced, token sealed}, {unknown, record}, {clock, server time} for the batch, and then nothing is decided; else
--       {committed, server time, outcome of each tick}: emitted, unroutable, paused, duplicate, or a pass's own outcome;
--       changed (another version is stored), early (later than the server's time), refused (its queue is no list): these
--       three, and whatever of the same entry follows them, stay due.
--       {unusable, key, text} for a record that cannot be read.
-- Order: all checks, types and numbers included, then all writes. Redis does not undo a script that fails half way.

local lock, term, entries, last, due, flags, audit = unpack(KEYS, 1, 7)
local token, nonce, carrier, lease, holder = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local sender_now, tolerance, seen, keep = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9]
local FRESH = 2000000 -- a stop must be in force within 2 s, so older flags are unknown

local function text(number) return string.format('%.0f', number) end
local function whole(value)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < 0 or number >= 9007199254740992 then return nil end
  return number
end

for i, want in ipairs({'string', 'hash', 'hash', 'hash', 'zset', 'hash', 'stream'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
if not lease or not sender_now or not tolerance or not whole(keep) then
  return redis.error_reply('ERR lease, clock, tolerance and audit length are numbers')
end

-- The batch, read before anything is judged: a malformed request changes nothing.
local at = 10
local function take()
  at = at + 1
  local value = ARGV[at]
  if value == nil then error('the request ends in the middle of a tick') end
  return value
end
local function number_or_never(value)
  if value == '' then return nil end
  local number = whole(value)
  if not number then error('not a time: ' .. value) end
  return number
end
local function read_tick()
  local tick = {kind = take(), entry = take(), version = take()}
  if tick.kind == 'emit' then
    tick.fire = assert(whole(take()), 'not a fire time')
    tick.following = number_or_never(take())
    tick.task_id, tick.message_id = take(), take()
    tick.scopes, tick.commands = {}, {}
    for i = 1, assert(whole(take()), 'not a number of scopes') do tick.scopes[i] = take() end
    for i = 1, assert(whole(take()), 'not a number of commands') do
      local command = {name = take(), where = take(), value = take()}
      if command.name == 'lpush' or command.name == 'pexpire' then
        local index = assert(whole(command.where), 'not the index of a key')
        command.key = assert(KEYS[7 + index], 'no such key')
        if command.name == 'pexpire' then assert(whole(command.value), 'not a time limit') end
      else
        assert(command.name == 'publish', 'not a command')
        command.key = command.where
      end
      tick.commands[i] = command
    end
  else
    assert(tick.kind == 'pass', 'neither emit nor pass')
    tick.first = assert(whole(take()), 'not a fire time')
    tick.fire = assert(whole(take()), 'not a fire time')
    tick.count = assert(whole(take()), 'not a count')
    tick.following = number_or_never(take())
    tick.outcome, tick.reason = take(), take()
  end
  return tick
end
local ticks = {}
for i = 1, assert(whole(ARGV[10]), 'not a number of ticks') do ticks[i] = read_tick() end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local fence = redis.call('HMGET', term, 'token', 'nonce')
local ours = fence[1] == token and fence[2] == nonce
if not ours or (carrier ~= 'term' and redis.call('GET', lock) ~= nonce) then
  local names = {}
  for i, tick in ipairs(ticks) do names[i] = tick.entry .. '@' .. text(tick.fire) end
  redis.call('XADD', audit, 'MAXLEN', '~', keep, '*', 'outcome', 'fenced', 'token', token, 'holder', holder,
    'sealed', fence[1] or '', 'ticks', table.concat(names, '\n'))
  return {'fenced', fence[1] or ''}
end
for _, key in ipairs({entries, last, flags}) do
  if not redis.call('HGET', key, 'generation') then return {'unknown', key} end
end
if seen ~= '' then
  local copy = redis.call('HMGET', flags, 'generation', 'renewed')
  local generation, renewed = tonumber(copy[1] or ''), tonumber(copy[2] or '')
  -- A renewal that lies ahead (the server's clock was set back) is as doubtful as an old one: nobody knows its age.
  if not generation or not renewed or generation < tonumber(seen) or math.abs(now - renewed) > FRESH then
    return {'unknown', flags}
  end
end
if sender_now > now + tolerance then return {'clock', text(now)} end

local marks, waits, refused = {}, {}, {}
local function queues_are_lists(tick)
  for _, command in ipairs(tick.commands) do
    if command.name ~= 'publish' then
      local kind = redis.call('TYPE', command.key).ok
      if kind ~= 'none' and kind ~= 'list' then return false end
    end
  end
  return true
end
local function stopped(tick)
  for _, scope in ipairs(tick.scopes) do
    local flag = redis.call('HGET', flags, scope)
    if flag then return scope .. ': ' .. flag end -- whatever it says: what cannot be read is no permission
  end
end
local function decide(tick)
  local stored = redis.call('HGET', entries, tick.entry)
  local known, definition = pcall(cjson.decode, stored or '')
  if not stored or not known or type(definition) ~= 'table' or definition.version ~= tick.version then
    return 'changed'
  end
  local mark = marks[tick.entry] or redis.call('HGET', last, tick.entry)
  if not mark then return 'changed' end
  if type(mark) == 'string' then
    mark = whole(mark)
    if not mark then return nil, tick.entry end
  end
  if tick.fire > now then return 'early' end
  if tick.fire <= mark then return 'duplicate' end
  if tick.kind == 'pass' then return tick.outcome end
  if not queues_are_lists(tick) then return 'refused' end
  tick.reason = stopped(tick)
  if tick.reason then return 'paused' end
  if #tick.commands == 0 then return 'unroutable' end
  return 'emitted'
end

local STAYS = {changed = true, early = true, refused = true}
for _, tick in ipairs(ticks) do
  local result, broken = refused[tick.entry], nil
  if not result then result, broken = decide(tick) end
  if broken then return {'unusable', last, 'the mark of ' .. broken .. ' is no time'} end
  tick.result = result
  if STAYS[result] then
    refused[tick.entry] = result
  elseif result ~= 'duplicate' then
    marks[tick.entry] = tick.fire
  end
end

-- From here on only writes. The first one needs memory, so a full server refuses the batch there or not at all.
local reply = {'committed', text(now)}
for i, tick in ipairs(ticks) do
  local result = tick.result
  reply[i + 2] = result
  if result == 'duplicate' then
    if tick.following then redis.call('ZADD', due, 'GT', text(math.ceil(tick.following / 1000)), tick.entry) end
  elseif not STAYS[result] then
    redis.call('HSET', last, tick.entry, text(tick.fire))
    if result == 'emitted' then
      for _, command in ipairs(tick.commands) do
        redis.call(string.upper(command.name), command.key, command.value)
      end
    end
    if tick.following then
      redis.call('ZADD', due, text(math.ceil(tick.following / 1000)), tick.entry)
    else
      redis.call('ZREM', due, tick.entry)
    end
  end
  local fields = {'outcome', result, 'entry', tick.entry, 'fire_time', text(tick.fire), 'token', token,
    'holder', holder}
  local function add(name, value)
    if value then fields[#fields + 1], fields[#fields + 2] = name, value end
  end
  add('task_id', tick.task_id)
  add('message_id', result == 'emitted' and tick.message_id)
  add('reason', tick.reason)
  if tick.kind == 'pass' then add('first', text(tick.first)) add('count', text(tick.count)) end
  redis.call('XADD', audit, 'MAXLEN', '~', keep, '*', unpack(fields))
end
if carrier ~= 'term' then redis.call('PEXPIRE', lock, lease) end
return reply
