-- recover: give a store that lost its past a known state again, under the new term: look, then pages, then done.
-- The only writer of a generation where there is none.
--
-- KEYS  name     type    holds
--    1  lock     string  nonce of the holder, where the lock is kept here
--    2  term     hash    token, nonce, ...: the fence; `digest` of the static entries that are stored; when a past was
--                        lost (`lost_past`, us), and how many ticks nobody can account for (`lost_ticks`)
--    3  entries  hash    entry -> definition as JSON; `generation`
--    4  last     hash    entry -> mark in us; `generation`
--    5  flags    hash    scope -> flag as JSON; `generation`, `renewed` in us (TIME)
--    6  audit    stream  one record for every decision
--    7  paused   hash    entry -> who paused it, when and why, as JSON
--
-- ARGV  token, nonce, `lock` or `term` (what carries the term), step; then by step
--       look   nothing
--       page   number of entries, of marks, of pauses, of gaps, of marks of new entries; then entry, definition; entry,
--              mark; entry, pause; entry, first fire time, last fire time, how many, task id of the last; entry, mark
--       done   1 where anybody knows of a past, TIME of the look, number of marks recovered, of ticks in the gaps,
--              text of a `flags_lost` record (empty: none), generation of the flags, then the flags: scope, flag as JSON
-- Returns {fenced, token the store has sealed}, {unusable, key, text}, {known} where no record lacks its generation; else
--       look   {unknown, TIME in us, then 1 or 0 for entries, last, flags: whether it has its generation}
--       page   {written}
--       done   {first} on a first start, {gap} where something was lost, which is recorded
-- A record that has its generation stays as it is, and a mark only grows, also one that stayed behind. Until `done` the
-- store still counts as unknown, so whatever ends the process between two pages, the next term begins again.

local KEEP = 100000 -- most audit records, about; `store.AUDIT_LENGTH`
local token, nonce, step = ARGV[1], ARGV[2], ARGV[4]
for i, want in ipairs({'string', 'hash', 'hash', 'hash', 'hash', 'stream', 'hash'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want} end
end
local term = redis.call('HMGET', KEYS[2], 'token', 'nonce')
if term[1] ~= token or term[2] ~= nonce or (ARGV[3] ~= 'term' and redis.call('GET', KEYS[1]) ~= nonce) then
  return {'fenced', term[1] or ''}
end

local entries, last, flags, audit, paused = unpack(KEYS, 3, 7)
local function text(number) return string.format('%.0f', number) end
local function knows(key) return tonumber(redis.call('HGET', key, 'generation') or '') ~= nil end
local has = {entries = knows(entries), last = knows(last), flags = knows(flags)}
if has.entries and has.last and has.flags then return {'known'} end

local time = redis.call('TIME')
local now = text(tonumber(time[1]) * 1000000 + tonumber(time[2]))
if step == 'look' then
  return {'unknown', now, has.entries and '1' or '0', has.last and '1' or '0', has.flags and '1' or '0'}
end

local at = 4
local function take()
  at = at + 1
  return assert(ARGV[at], 'the request ends in the middle')
end
local function whole()
  local value = take()
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < 0 or number >= 9007199254740992 then
    error('not a whole number: ' .. value)
  end
  return number
end
local function pairs_of(count)
  local list = {}
  for _ = 1, count do
    local name = take()
    assert(name ~= 'generation' and name ~= 'renewed', 'a reserved name')
    list[#list + 1] = {name, take()}
  end
  return list
end
local function put(key, list)
  for _, pair in ipairs(list) do redis.call('HSET', key, pair[1], pair[2]) end
end

if step == 'page' then
  local counts = {whole(), whole(), whole(), whole(), whole()}
  local definitions = pairs_of(counts[1])
  local marks = {}
  for i = 1, counts[2] do marks[i] = {take(), whole()} end
  local pauses, gaps = pairs_of(counts[3]), {}
  for i = 1, counts[4] do gaps[i] = {take(), text(whole()), text(whole()), text(whole()), take()} end
  local begun = {}
  for i = 1, counts[5] do begun[i] = {take(), text(whole())} end
  assert(ARGV[at + 1] == nil, 'more than was announced')

  if not has.entries then
    put(entries, definitions)
    put(paused, pauses)
  end
  if not has.last then
    for _, mark in ipairs(marks) do
      local stored = tonumber(redis.call('HGET', last, mark[1]) or '')
      redis.call('HSET', last, mark[1], text(math.max(stored or 0, mark[2])))
    end
    for _, mark in ipairs(begun) do
      if not redis.call('HGET', last, mark[1]) then
        redis.call('HSET', last, mark[1], mark[2])
        redis.call('XADD', audit, 'MAXLEN', '~', KEEP, '*', 'outcome', 'added', 'entry', mark[1], 'fire_time', mark[2],
          'token', token)
      end
    end
    for _, gap in ipairs(gaps) do
      redis.call('XADD', audit, 'MAXLEN', '~', KEEP, '*', 'outcome', 'gap', 'entry', gap[1], 'first', gap[2],
        'fire_time', gap[3], 'count', gap[4], 'task_id', gap[5], 'token', token, 'reason', 'may have been lost')
    end
  end
  return {'written'}
end

assert(step == 'done', 'neither look, page nor done')
local past, looked, recovered, lost, flags_lost = take() == '1', text(whole()), text(whole()), text(whole()), take()
local generation = text(whole())
assert((#ARGV - at) % 2 == 0, 'pairs of scope and flag')
local stops = pairs_of((#ARGV - at) / 2)

if not has.flags then
  put(flags, stops)
  redis.call('HSET', flags, 'renewed', looked) -- they were read after the look
  if flags_lost ~= '' then
    redis.call('XADD', audit, 'MAXLEN', '~', KEEP, '*', 'outcome', 'flags_lost', 'token', token, 'reason', flags_lost)
  end
end
local outcome = (past or has.entries or has.last or has.flags) and 'gap' or 'first'
if outcome == 'gap' then
  redis.call('XADD', audit, 'MAXLEN', '~', KEEP, '*', 'outcome', 'gap', 'token', token, 'until', looked,
    'recovered', recovered, 'lost', lost, 'reason', 'the store lost its past')
  redis.call('HSET', KEYS[2], 'lost_past', looked, 'lost_ticks', lost) -- for people: nobody decides by it
end
redis.call('HDEL', KEYS[2], 'digest') -- what is due is derived: the leader's next synchronisation has to be complete
if not has.entries then redis.call('HSET', entries, 'generation', token) end
if not has.last then redis.call('HSET', last, 'generation', token) end
if not has.flags then redis.call('HSET', flags, 'generation', generation) end
return {outcome}
