-- answer_request: emit one extra run that somebody asked for, or drop it, and remove the request in the same step.
-- No mark and no due time moves: an extra run is not a tick of the schedule.
--
-- KEYS  name      type    holds
--    1  lock      string  nonce of the holder; expires with the lease (not asked where etcd keeps the lock)
--    2  term      hash    token, nonce, ...: the fence
--    3  entries   hash    entry -> definition, JSON with its version; a field `generation`
--    4  last      hash    a field `generation`
--    5  flags     hash    scope -> stop; fields `generation` and `renewed` (us)
--    6  audit     stream  one record for every decision
--    7  requests  hash    id -> request, JSON
--   8+  queue     list    where the message goes; a stream for the outbox
--
-- ARGV  token, nonce, `lock` or `term`, holder, sender's clock in us, tolerance in us, flags generation that the sender read
--       (empty: no effect store), most audit records, id, request as the sender read it, entry, version, `emit` or an
--       outcome without emission, outcome of an emission, fire time (us; empty: not one of the schedule), tick, task id,
--       message id, 1 where its task is guarded (else empty), reason,
--       number of queues, queues, number of commands, then for each: lpush | pexpire | xadd, index of its key, value
--                                                                    publish, channel, message
-- Returns {fenced, token sealed}, {unknown, record}, {clock, server time}, {unusable, key, text}: nothing changed. Else
--       {answered, outcome}: duplicate (the request is gone) and changed (another version is stored) change nothing;
--       paused (a stop), unroutable, refused (the queue is no list) and what the sender says remove the request unsent.
-- Order: all checks, then all writes.

local token, nonce, carrier, holder = unpack(ARGV, 1, 4)
local sender_now, tolerance, seen, keep = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local id, request, entry, version, verdict, outcome = unpack(ARGV, 9, 14)
local fire_time, tick, task_id, message_id, guarded, reason = unpack(ARGV, 15, 20)
local FRESH = 2000000 -- a stop must be in force within 2 s, so older flags are unknown
local WANTED = {lpush = 'list', pexpire = 'list', xadd = 'stream'}

for i, want in ipairs({'string', 'hash', 'hash', 'hash', 'hash', 'stream', 'hash'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
assert(sender_now and tolerance and tonumber(keep), 'clock, tolerance and audit length are numbers')
local at = 20
local function take()
  at = at + 1
  return (assert(ARGV[at], 'the request ends in the middle'))
end
local queues, commands = {}, {}
for i = 1, assert(tonumber(take()), 'not a number of queues') do queues[i] = take() end
for i = 1, assert(tonumber(take()), 'not a number of commands') do
  local command = {name = take(), where = take(), value = take()}
  if WANTED[command.name] then
    command.key = assert(KEYS[7 + assert(tonumber(command.where), 'not the index of a key')], 'no such key')
  else
    assert(command.name == 'publish', 'not a command')
    command.key = command.where
  end
  commands[i] = command
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fence = redis.call('HMGET', KEYS[2], 'token', 'nonce')
if fence[1] ~= token or fence[2] ~= nonce or (carrier ~= 'term' and redis.call('GET', KEYS[1]) ~= nonce) then
  return {'fenced', fence[1] or ''}
end
for i = 3, 5 do
  if not redis.call('HGET', KEYS[i], 'generation') then return {'unknown', KEYS[i]} end
end
if seen ~= '' then
  local copy = redis.call('HMGET', KEYS[5], 'generation', 'renewed')
  local generation, renewed = tonumber(copy[1] or ''), tonumber(copy[2] or '')
  if not generation or not renewed or generation < tonumber(seen) or math.abs(now - renewed) > FRESH then
    return {'unknown', KEYS[5]}
  end
end
if sender_now > now + tolerance then return {'clock', string.format('%.0f', now)} end

local function stop()
  local scopes = {'all', 'entry:' .. entry}
  for _, queue in ipairs(queues) do scopes[#scopes + 1] = 'queue:' .. queue end
  for _, scope in ipairs(scopes) do
    local flag = redis.call('HGET', KEYS[5], scope)
    if flag then return scope .. ': ' .. flag end -- whatever it says: what cannot be read is no permission
  end
end
local function queues_are_right()
  for _, command in ipairs(commands) do
    local kind = WANTED[command.name] and redis.call('TYPE', command.key).ok or 'none'
    if kind ~= 'none' and kind ~= WANTED[command.name] then return false end
  end
  return true
end
local function decide()
  if redis.call('HGET', KEYS[7], id) ~= request then return 'duplicate' end
  if verdict ~= 'emit' then return verdict end
  local known, definition = pcall(cjson.decode, redis.call('HGET', KEYS[3], entry) or '')
  if not known or type(definition) ~= 'table' or definition.version ~= version then return 'changed' end
  local stopped = stop()
  if stopped then
    reason = stopped
    return 'paused'
  end
  if not queues_are_right() then return 'refused' end
  if #commands == 0 then return 'unroutable' end
  return outcome
end
local result = decide()
if result == 'duplicate' or result == 'changed' then return {'answered', result} end

redis.call('HDEL', KEYS[7], id)
if result == outcome and verdict == 'emit' then
  for _, command in ipairs(commands) do
    if command.name == 'xadd' then
      redis.call('XADD', command.key, '*', 'message', command.value)
    else
      redis.call(string.upper(command.name), command.key, command.value)
    end
  end
end
local fields = {'outcome', result, 'entry', entry, 'token', token, 'holder', holder, 'request', id}
local function add(field, value)
  if value ~= '' then fields[#fields + 1], fields[#fields + 2] = field, value end
end
add('fire_time', fire_time)
add('tick', tick)
add('task_id', task_id)
if result == outcome then
  add('message_id', message_id)
  add('guarded', guarded)
end
add('reason', reason)
redis.call('XADD', KEYS[6], 'MAXLEN', '~', keep, '*', unpack(fields))
return {'answered', result}
