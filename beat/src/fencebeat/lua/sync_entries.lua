-- sync_entries: make stored static entries those of the leader's configuration, in one step, under its term. It is told
-- what differs only; a schedule of which very much differs comes in several pages, of which the last brings the digest.
--
-- KEYS  name     type    holds
--    1  lock     string  nonce of the holder; expires with the lease (not asked where etcd keeps the lock)
--    2  term     hash    token, nonce, ...: the fence; `digest` of the static entries that are stored, `digest_before` of
--                         those that they replaced
--    3  entries  hash    entry -> definition, JSON with `source` and `version`; a field `generation`
--    4  last     hash    entry -> mark in microseconds; only grows, stays when its entry goes; a field `generation`
--    5  due      zset    entry, scored by when it is next due in milliseconds; not the paused ones
--    6  audit    stream  one record for every decision
--    7  paused   hash    entry -> who paused it; not touched here
--    8  edits    stream  one record for each change, with the generation that it made
--
-- ARGV  token, nonce, `lock` or `term`, most audit records, digest of the schedule (empty: more pages follow), generation of
--       the entries that the sender read,
--       number of lines; then for each: name, definition, mark the sender read (empty: none), new mark,
--                                       when it is next due (us; empty: never),
--                                       reason for which ticks between the two marks are closed (empty: none are)
--       number of entries that are due although nothing says so; then for each: name, mark read, when it is next due
--       number of static entries to remove; their names
-- Returns {fenced, token sealed}, {unknown, record}, {unusable, key, text}, {moved, entry} where a generation or a mark is not
--       the one that the sender read; nothing changed then. Else {synced, number removed, generation}.
-- Order: all checks, then all writes. A page that changes nothing makes no generation. Entries that come from elsewhere are
-- not touched.

local KEEP_EDITS = 10000
local token, nonce, carrier, keep, digest = unpack(ARGV, 1, 5)
local function whole(value)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < 0 or number >= 9007199254740992 then return nil end
  return number
end
local function text(number) return string.format('%.0f', number) end
local function milliseconds(value) return text(math.ceil(tonumber(value) / 1000)) end

for i, want in ipairs({'string', 'hash', 'hash', 'hash', 'zset', 'stream', 'hash', 'stream'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
local fence = redis.call('HMGET', KEYS[2], 'token', 'nonce', 'holder')
if fence[1] ~= token or fence[2] ~= nonce or (carrier ~= 'term' and redis.call('GET', KEYS[1]) ~= nonce) then
  return {'fenced', fence[1] or ''}
end
for _, i in ipairs({3, 4}) do
  if not redis.call('HGET', KEYS[i], 'generation') then return {'unknown', KEYS[i]} end
end
local generation = redis.call('HGET', KEYS[3], 'generation')
if not whole(generation) then return {'unusable', KEYS[3], 'its generation is no number'} end
if generation ~= ARGV[6] then return {'moved', 'generation'} end

local at = 6
local function take()
  at = at + 1
  return assert(ARGV[at], 'the request ends in the middle')
end
local function may_be_time(value)
  assert(value == '' or whole(value), 'not a time')
  return value
end
local lines, repairs, gone = {}, {}, {}
for i = 1, assert(whole(take()), 'not a number of lines') do
  local line = {name = take(), definition = take(), read = take(), mark = assert(whole(take()), 'not a mark'),
    following = may_be_time(take()), reason = take()}
  assert(line.name ~= 'generation', 'a reserved name')
  if (redis.call('HGET', KEYS[4], line.name) or '') ~= line.read then return {'moved', line.name} end
  assert(line.read == '' or line.mark >= assert(whole(line.read), 'a mark is no time'), 'a mark would fall')
  lines[i] = line
end
for i = 1, assert(whole(take()), 'not a number of repairs') do
  local repair = {name = take(), read = take(), following = tostring(assert(whole(take()), 'not a time'))}
  if (redis.call('HGET', KEYS[4], repair.name) or '') ~= repair.read then return {'moved', repair.name} end
  repairs[i] = repair
end
for _ = 1, assert(whole(take()), 'not a number of names') do
  local name = take()
  local known, definition = pcall(cjson.decode, redis.call('HGET', KEYS[3], name) or '')
  if known and type(definition) == 'table' and definition.source == 'static' then gone[#gone + 1] = name end
end

if digest ~= '' then
  local before = redis.call('HGET', KEYS[2], 'digest')
  if before and before ~= digest then redis.call('HSET', KEYS[2], 'digest_before', before) end
  redis.call('HSET', KEYS[2], 'digest', digest)
end
local function record(...)
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', keep, '*', 'token', token, ...)
end
local function make_due(name, following)
  if following == '' or redis.call('HEXISTS', KEYS[7], name) == 1 then
    redis.call('ZREM', KEYS[5], name)
  else
    redis.call('ZADD', KEYS[5], milliseconds(following), name)
  end
end
for _, line in ipairs(lines) do
  redis.call('HSET', KEYS[3], line.name, line.definition)
  redis.call('HSET', KEYS[4], line.name, text(line.mark))
  make_due(line.name, line.following)
  if line.read == '' then
    record('outcome', 'added', 'entry', line.name, 'fire_time', text(line.mark))
  elseif line.reason ~= '' then
    record('outcome', 'changed', 'entry', line.name, 'first', line.read, 'fire_time', text(line.mark),
      'reason', line.reason)
  end
end
for _, repair in ipairs(repairs) do make_due(repair.name, repair.following) end
for _, name in ipairs(gone) do
  redis.call('HDEL', KEYS[3], name)
  redis.call('ZREM', KEYS[5], name)
  record('outcome', 'changed', 'entry', name, 'fire_time', redis.call('HGET', KEYS[4], name) or '0',
    'reason', 'the entry was removed from the configuration')
end
if #lines + #gone > 0 then
  generation = text(redis.call('HINCRBY', KEYS[3], 'generation', 1))
  redis.call('XADD', KEYS[8], 'MAXLEN', '~', KEEP_EDITS, '*', 'generation', generation, 'op', 'sync', 'entry', '',
    'by', fence[3] or '')
end
return {'synced', text(#gone), generation}
