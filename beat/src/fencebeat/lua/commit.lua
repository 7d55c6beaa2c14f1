-- commit: decide, enqueue, advance and record a batch of ticks in one step.
--
-- KEYS  name     type    holds
--    1  lock     string  nonce of the holder; expires with the lease (not asked where etcd keeps the lock)
--    2  term     hash    token, nonce, holder, since, lease: sealed when the lock was taken
--    3  entries  hash    entry -> definition, JSON with its version; a field `generation`
--    4  last     hash    entry -> mark: highest fire time decided, in microseconds; only grows; a field `generation`
--    5  due      zset    entry, scored by when it is next due, in milliseconds
--    6  flags    hash    scope -> stop; fields `generation` and `renewed` (us), without which the flags are unknown
--    7  audit    stream  one record for every decision below
--    8  paused   hash    entry -> who paused it; whatever it says, the entry is paused
--    9  emitted  hash    entry -> fire time of its last emitted tick and when it was emitted, in microseconds, a space between
--  10+  queue    list    where the messages go; a stream for the outbox
--
-- ARGV  token, nonce, `lock` or `term` (what carries the term), lease in ms, holder, sender's clock in us, tolerance in us,
--       flags generation that the sender read (empty: no effect store), most audit records, number of ticks; then for each
--         emit, entry, version, fire time, when it is next due (us; empty: never), task id, message id, 1 where its task
--               is guarded (else empty), what is worth telling of it (empty: nothing),
--               number of queues, queues, number of commands, then for each: lpush, index of its key, message
--                                                                          pexpire, index of its key, ms
--                                                                          publish, channel, message
--                                                                          xadd, index of its key, message
--         pass, entry, version, first fire time, last fire time, how many, when it is next due, outcome, reason
-- Returns {fenced, token sealed}, {unknown, record}, {clock, server time} for the batch, and then nothing is decided; else
--       {committed, server time, outcome of each tick}: emitted, unroutable, paused (by a stop), duplicate, or a pass's own
--       outcome; changed (another version is stored), held (the entry is paused), early (later than the server's time),
--       refused (its queue is no list): these four, and whatever of the same entry follows them, stay open.
--       {unusable, key, text} for a record that cannot be read.
-- Order: all checks, types and numbers included, then all writes. Redis does not undo a script that fails half way.

local lock, term, entries, last, due, flags, audit, paused, emitted = unpack(KEYS, 1, 9)
local token, nonce, carrier, lease, holder = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local sender_now, tolerance, seen, keep = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9]
local FRESH = 2000000 -- a stop must be in force within 2 s, so older flags are unknown

local call, ARGV, KEYS, floor, tonumber, format = redis.call, ARGV, KEYS, math.floor, tonumber, string.format -- near
local function text(number) return format('%.0f', number) end
local function whole(value)
  local number = tonumber(value)
  if not number or number ~= floor(number) or number < 0 or number >= 9007199254740992 then return nil end
  return number
end

for i, want in ipairs({'string', 'hash', 'hash', 'hash', 'zset', 'hash', 'stream', 'hash', 'hash'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
if not lease or not sender_now or not tolerance or not whole(keep) then
  return redis.error_reply('ERR lease, clock, tolerance and audit length are numbers')
end

-- The batch, read before anything is judged: a malformed request changes nothing.
-- Tables are made with all their fields at once: one that grows costs the server as much as a command.
local at = 10 -- the last argument that was read
local function number(value, what)
  return whole(value) or error('not ' .. what .. ': ' .. tostring(value))
end
local function number_or_never(value)
  if value == '' then return nil end
  return number(value, 'a time')
end
local WANTED = {lpush = 'list', pexpire = 'list', xadd = 'stream'}
local function read_command()
  local name, where, value = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  at = at + 3
  if WANTED[name] then
    if name == 'pexpire' then number(value, 'a time limit') end
    return {name = name, value = value, key = KEYS[9 + number(where, 'the index of a key')] or error('no such key')}
  end
  if name ~= 'publish' then error('not a command') end
  return {name = name, value = value, key = where}
end
local function read_tick()
  local kind, entry, version = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if kind == 'emit' then
    local fire, queues, commands = number(ARGV[at + 4], 'a fire time'), {}, {}
    local tick = {
      kind = kind, entry = entry, version = version, fire = fire, stamp = text(fire),
      following = number_or_never(ARGV[at + 5]), task_id = ARGV[at + 6], message_id = ARGV[at + 7],
      guarded = ARGV[at + 8], reason = ARGV[at + 9] ~= '' and ARGV[at + 9],
      queues = queues, commands = commands, held = false, result = false,
    }
    at = at + 10
    for i = 1, number(ARGV[at], 'a number of queues') do queues[i] = ARGV[at + i] end
    at = at + #queues + 1
    for i = 1, number(ARGV[at], 'a number of commands') do commands[i] = read_command() end
    return tick
  end
  if kind ~= 'pass' then error('neither emit nor pass') end
  local fire = number(ARGV[at + 5], 'a fire time')
  local tick = {
    kind = kind, entry = entry, version = version, first = number(ARGV[at + 4], 'a fire time'),
    fire = fire, stamp = text(fire), count = number(ARGV[at + 6], 'a count'),
    following = number_or_never(ARGV[at + 7]), outcome = ARGV[at + 8], reason = ARGV[at + 9],
  }
  at = at + 9
  return tick
end
local ticks = {}
for i = 1, assert(whole(ARGV[10]), 'not a number of ticks') do ticks[i] = read_tick() end
if at ~= #ARGV then error('the request ends in the middle of a tick, or has more than its ticks') end

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

local function each(values, call) -- in calls that Lua's stack bears
  for from = 1, #values, 500 do call(from - 1, unpack(values, from, math.min(from + 499, #values))) end
end
local names, stored, definitions = {}, {}, {} -- of each tick: the mark and the definition that its entry has now
for i, tick in ipairs(ticks) do names[i] = tick.entry end
each(names, function(before, ...)
  for i, mark in ipairs(call('HMGET', last, ...)) do stored[before + i] = mark end
  for i, definition in ipairs(call('HMGET', entries, ...)) do definitions[before + i] = definition end
end)

local kinds, stops, marks, refused = {}, {}, {}, {}
local stopping = call('HLEN', flags) > 1 + call('HEXISTS', flags, 'renewed') -- any scope at all
local pausing = call('HLEN', paused) > 0
local function queues_are_right(tick)
  for _, command in ipairs(tick.commands) do
    local want = WANTED[command.name]
    if want then
      local kind = kinds[command.key] or call('TYPE', command.key).ok
      kinds[command.key] = kind
      if kind ~= 'none' and kind ~= want then return false end
    end
  end
  return true
end
local function stop_of(scope)
  if stops[scope] == nil then stops[scope] = call('HGET', flags, scope) end
  return stops[scope] and scope .. ': ' .. stops[scope] -- whatever it says: what cannot be read is no permission
end
local function stopped(tick)
  if not stopping then return nil end
  local reason = stop_of('all') or stop_of('entry:' .. tick.entry)
  for _, queue in ipairs(tick.queues) do reason = reason or stop_of('queue:' .. queue) end
  return reason or nil
end
local function is_version(text, tick)
  if not text then return false end
  local ending = '"version": "' .. tick.version .. '"}' -- as `Entry.definition` writes it; spares reading the rest
  if string.sub(text, -#ending) == ending then return true end
  local known, definition = pcall(cjson.decode, text)
  return known and type(definition) == 'table' and definition.version == tick.version
end
local function decide(tick, i)
  if not is_version(definitions[i], tick) then return 'changed' end
  local mark = marks[tick.entry] or stored[i]
  if not mark then return 'changed' end
  if type(mark) == 'string' then
    mark = whole(mark)
    if not mark then return nil, tick.entry end
  end
  if tick.fire > now then return 'early' end
  tick.held = pausing and call('HEXISTS', paused, tick.entry) == 1
  if tick.fire <= mark then return 'duplicate' end
  if tick.held then return 'held' end
  if tick.kind == 'pass' then return tick.outcome end
  if not queues_are_right(tick) then return 'refused' end
  local stop = stopped(tick)
  if stop then
    tick.reason = stop
    return 'paused'
  end
  if #tick.commands == 0 then return 'unroutable' end
  return 'emitted'
end

local STAYS = {changed = true, held = true, early = true, refused = true}
local moved, nexts, sent, pushed, lists, others, when = {}, {}, {}, {}, {}, {}, ' ' .. text(now)
for i, tick in ipairs(ticks) do
  local result, broken = refused[tick.entry], nil
  if not result then result, broken = decide(tick, i) end
  if broken then return {'unusable', last, 'the mark of ' .. broken .. ' is no time'} end
  tick.result = result
  if STAYS[result] then
    refused[tick.entry] = result
  elseif result ~= 'duplicate' then
    if not marks[tick.entry] then moved[#moved + 1] = tick.entry end
    marks[tick.entry] = tick.fire
    nexts[tick.entry] = tick.following or false
    if result == 'emitted' then
      sent[#sent + 1], sent[#sent + 2] = tick.entry, tick.stamp .. when
      for _, command in ipairs(tick.commands) do
        if command.name == 'lpush' then
          local list = lists[command.key]
          if not list then
            list = {}
            lists[command.key], pushed[#pushed + 1] = list, command.key
          end
          list[#list + 1] = command.value
        else
          others[#others + 1] = command
        end
      end
    end
  end
end

-- From here on only writes. The first one needs memory, so a full server refuses the batch there or not at all.
local new_marks, new_times, over = {}, {}, {}
for _, entry in ipairs(moved) do
  new_marks[#new_marks + 1], new_marks[#new_marks + 2] = entry, text(marks[entry])
  if nexts[entry] then
    new_times[#new_times + 1], new_times[#new_times + 2] = text(math.ceil(nexts[entry] / 1000)), entry
  else
    over[#over + 1] = entry
  end
end
each(new_marks, function(_, ...) call('HSET', last, ...) end)
for _, key in ipairs(pushed) do
  each(lists[key], function(_, ...) call('LPUSH', key, ...) end)
end
for _, command in ipairs(others) do
  if command.name == 'xadd' then
    call('XADD', command.key, '*', 'message', command.value)
  else
    call(string.upper(command.name), command.key, command.value)
  end
end
each(sent, function(_, ...) call('HSET', emitted, ...) end)
for _, tick in ipairs(ticks) do
  if tick.result == 'duplicate' and tick.following and not tick.held then
    call('ZADD', due, 'GT', text(math.ceil(tick.following / 1000)), tick.entry)
  end
end
each(new_times, function(_, ...) call('ZADD', due, ...) end)
each(over, function(_, ...) call('ZREM', due, ...) end)
local reply = {'committed', text(now)}
for i, tick in ipairs(ticks) do
  local result = tick.result
  reply[i + 2] = result
  if result == 'emitted' and tick.guarded == '' then
    call('XADD', audit, 'MAXLEN', '~', keep, '*', 'outcome', result, 'entry', tick.entry, 'fire_time', tick.stamp,
      'token', token, 'holder', holder, 'task_id', tick.task_id, 'message_id', tick.message_id)
  else
    local fields = {'outcome', result, 'entry', tick.entry, 'fire_time', tick.stamp, 'token', token,
      'holder', holder}
    local function add(name, value)
      if value then fields[#fields + 1], fields[#fields + 2] = name, value end
    end
    add('task_id', tick.task_id)
    if result == 'emitted' then add('message_id', tick.message_id) add('guarded', tick.guarded) end
    add('reason', tick.reason)
    if tick.kind == 'pass' then add('first', text(tick.first)) add('count', text(tick.count)) end
    call('XADD', audit, 'MAXLEN', '~', keep, '*', unpack(fields))
  end
end
if carrier ~= 'term' then call('PEXPIRE', lock, lease) end
return reply
