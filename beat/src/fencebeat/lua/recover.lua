-- recover: give a store that lost its past a known state again, under the new term and with one TIME.
-- The only writer of a generation where there is none.
--
-- KEYS  name     type    holds
--    1  lock     string  nonce of the holder, where the lock is kept here
--    2  term     hash    token, nonce, ...: the fence
--    3  entries  hash    entry -> definition as JSON; `generation`
--    4  last     hash    entry -> mark in us; `generation`
--    5  flags    hash    scope -> flag as JSON; `generation`, `renewed` in us (TIME)
--    6  audit    stream  one record for every decision
--
-- ARGV  token, nonce, `lock` or `term` (what carries the term), 1 where others know of a past, generation of the flags,
--       number of entries, of marks, of flags; then the pairs of each, in this order
-- Returns {fenced, token the store has sealed}; {known} where nothing was missing; {first} on a first start;
-- {gap} where something was lost, which is recorded; {unusable, key, text}. Only in the third and fourth case
-- something changed. A record that has its generation stays as it is; an entry left without a mark counts as new.

local KEEP = 100000 -- most audit records, about; `store.AUDIT_LENGTH`
local token, nonce = ARGV[1], ARGV[2]
for i, want in ipairs({'string', 'hash', 'hash', 'hash', 'hash', 'stream'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want} end
end
local term = redis.call('HMGET', KEYS[2], 'token', 'nonce')
if term[1] ~= token or term[2] ~= nonce or (ARGV[3] ~= 'term' and redis.call('GET', KEYS[1]) ~= nonce) then
  return {'fenced', term[1] or ''}
end

local numbers = {}
for i = 5, 8 do
  local number = tonumber(ARGV[i])
  if not number or number < 0 or number ~= math.floor(number) then
    return redis.error_reply('ERR argument ' .. i .. ' is no whole number')
  end
  numbers[i - 4] = number
end
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))

local known, records, at = 0, {}, 9
for i = 1, 3 do
  local record = {key = KEYS[2 + i], fields = {}, names = {}}
  record.known = tonumber(redis.call('HGET', record.key, 'generation') or '') ~= nil
  if record.known then known = known + 1 end
  for _ = 1, numbers[i + 1] do
    if not ARGV[at + 1] then return redis.error_reply('ERR fewer pairs than announced') end
    record.names[ARGV[at]] = true
    record.fields[#record.fields + 1] = ARGV[at]
    record.fields[#record.fields + 1] = ARGV[at + 1]
    at = at + 2
  end
  records[i] = record
end
if ARGV[at] then return redis.error_reply('ERR more pairs than announced') end
for i = 1, #records[2].fields, 2 do
  if not tonumber(records[2].fields[i + 1]) then return redis.error_reply('ERR a mark is a number') end
end
if known == 3 then return {'known'} end

local entries, marks, flags = records[1], records[2], records[3]
if not marks.known then -- a mark only grows, also one that stayed behind without its generation
  for i = 1, #marks.fields, 2 do
    local stored = tonumber(redis.call('HGET', marks.key, marks.fields[i]) or '')
    if stored and stored > tonumber(marks.fields[i + 1]) then
      marks.fields[i + 1] = string.format('%.0f', stored)
    end
  end
  local there = redis.call('HKEYS', entries.key)
  for name in pairs(entries.names) do there[#there + 1] = name end
  for _, name in ipairs(there) do
    if name ~= 'generation' and not marks.names[name] and not tonumber(redis.call('HGET', marks.key, name) or '') then
      marks.names[name] = true
      marks.fields[#marks.fields + 1] = name
      marks.fields[#marks.fields + 1] = now
    end
  end
end
local generation = {token, token, string.format('%.0f', numbers[1])}

for i, record in ipairs(records) do
  if not record.known then
    for j = 1, #record.fields, 1000 do
      redis.call('HSET', record.key, unpack(record.fields, j, math.min(j + 999, #record.fields)))
    end
  end
end
if not flags.known then redis.call('HSET', flags.key, 'renewed', now) end
local outcome = (ARGV[4] == '1' or known > 0) and 'gap' or 'first'
if outcome == 'gap' then
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', KEEP, '*', 'outcome', 'gap', 'token', token, 'until', now,
    'reason', 'the store lost its past')
end
for i, record in ipairs(records) do -- the generations last
  if not record.known then redis.call('HSET', record.key, 'generation', generation[i]) end
end
return {outcome}
