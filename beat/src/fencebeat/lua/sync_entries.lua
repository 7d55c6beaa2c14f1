-- sync_entries: make the stored static entries those of the leader's configuration, in one step, under its term.
--
-- KEYS  name     type    holds
--    1  lock     string  nonce of the holder; expires with the lease (not asked where etcd keeps the lock)
--    2  term     hash    token, nonce, ...: the fence; also the digest of the schedule
--    3  entries  hash    entry -> definition, JSON with `source` and `version`; a field `generation`
--    4  last     hash    entry -> mark in microseconds; only grows, stays when its entry goes; a field `generation`
--    5  due      zset    entry, scored by its next fire time in milliseconds: derived, made anew here
--    6  audit    stream  one record for every decision
--
-- ARGV  token, nonce, `lock` or `term`, most audit records, digest of the schedule, number of entries; then for each:
--       name, definition, mark the sender read (empty: none), new mark, next fire time (empty: never),
--       reason for which ticks between the two marks are closed (empty: none are)
-- Returns {fenced, token sealed}, {unknown, record}, {unusable, key, text}, {moved, entry} where a mark is not the one that
--       the sender read; nothing changed then. Else {synced, number removed}.
-- Order: all checks, then all writes. An entry that is new, or whose timing was edited, gets a mark of now: it never fires
-- for the past, and an edit alone never emits. Entries that come from elsewhere are not touched.

local token, nonce, carrier, keep, digest = unpack(ARGV, 1, 5)
local function whole(value)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < 0 or number >= 9007199254740992 then return nil end
  return number
end

for i, want in ipairs({'string', 'hash', 'hash', 'hash', 'zset', 'stream'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
local fence = redis.call('HMGET', KEYS[2], 'token', 'nonce')
if fence[1] ~= token or fence[2] ~= nonce or (carrier ~= 'term' and redis.call('GET', KEYS[1]) ~= nonce) then
  return {'fenced', fence[1] or ''}
end
for _, i in ipairs({3, 4}) do
  if not redis.call('HGET', KEYS[i], 'generation') then return {'unknown', KEYS[i]} end
end

local wanted, lines = {}, {}
for i = 1, assert(whole(ARGV[6]), 'not a number of entries') do
  local from = 6 + (i - 1) * 6
  local line = {name = ARGV[from + 1], definition = ARGV[from + 2], read = ARGV[from + 3], mark = whole(ARGV[from + 4]),
    following = ARGV[from + 5], reason = ARGV[from + 6]}
  assert(line.reason and line.mark and (line.following == '' or whole(line.following)), 'a line that cannot be read')
  assert(line.name ~= 'generation', 'a reserved name')
  if (redis.call('HGET', KEYS[4], line.name) or '') ~= line.read then return {'moved', line.name} end
  assert(line.read == '' or line.mark >= assert(whole(line.read), 'a mark is no time'), 'a mark would fall')
  wanted[line.name], lines[i] = true, line
end
local gone = {}
local stored = redis.call('HGETALL', KEYS[3])
for i = 1, #stored, 2 do
  local known, definition = pcall(cjson.decode, stored[i + 1])
  if stored[i] ~= 'generation' and not wanted[stored[i]] and known and type(definition) == 'table'
    and definition.source == 'static' then
    gone[#gone + 1] = stored[i]
  end
end

redis.call('HSET', KEYS[2], 'digest', digest)
for _, line in ipairs(lines) do
  redis.call('HSET', KEYS[3], line.name, line.definition)
  redis.call('HSET', KEYS[4], line.name, string.format('%.0f', line.mark))
  if line.following == '' then
    redis.call('ZREM', KEYS[5], line.name)
  else
    redis.call('ZADD', KEYS[5], string.format('%.0f', math.ceil(tonumber(line.following) / 1000)), line.name)
  end
  if line.reason ~= '' then
    redis.call('XADD', KEYS[6], 'MAXLEN', '~', keep, '*', 'outcome', 'changed', 'entry', line.name, 'token', token,
      'first', line.read, 'fire_time', string.format('%.0f', line.mark), 'reason', line.reason)
  end
end
for _, name in ipairs(gone) do
  redis.call('HDEL', KEYS[3], name)
  redis.call('ZREM', KEYS[5], name)
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', keep, '*', 'outcome', 'changed', 'entry', name, 'token', token,
    'fire_time', redis.call('HGET', KEYS[4], name) or '0', 'reason', 'the entry was removed from the configuration')
end
return {'synced', string.format('%.0f', #gone)}
