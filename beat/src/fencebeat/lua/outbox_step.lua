-- outbox_step: one step of publishing. Rows that the broker has confirmed leave the outbox, each with its audit record;
-- the next row that no stop holds back is returned, to be published at once. One request for each message.
--
-- KEYS  name    type    holds
--    1  lock    string  nonce of the holder; expires with the lease (not asked where etcd keeps the lock)
--    2  term    hash    token, nonce, ...: the fence
--    3  flags   hash    scope -> stop; fields `generation` and `renewed` (us), without which the flags are unknown
--    4  outbox  stream  one row for each message: field `message`, JSON with its `scopes`
--    5  audit   stream  one record for every decision
--
-- ARGV  token, nonce, `lock` or `term` (what carries the term), holder, flags generation that the publisher read (empty: no
--       effect store), most audit records, `next` or `settle` (return no row), id of the row looked at last (empty: begin
--       with the first), number of rows that are done, then for each: id, published or unroutable, entry, fire time,
--       task id, message id, reason (empty: none)
-- Returns {fenced, token sealed}, {unknown, record}, {unusable, key, text}, and then nothing was changed; else
--       {row, id of the last row looked at, rows held back by a stop, id, message}: publish it now; or
--       {more, id of the last row looked at, rows held back by a stop}: ask again from there; or
--       {none, id of the last row looked at, rows held back by a stop}: no more rows.
-- Order: all checks, then all writes, then the look at the next row. A row is taken out once, by whoever is first; its
--       audit record is written by the same call.

local lock, term, flags, outbox, audit = unpack(KEYS)
local token, nonce, carrier, holder, seen, keep = unpack(ARGV, 1, 6)
local FRESH = 2000000 -- a stop must be in force within 2 s, so older flags are unknown
local PAGE = 100      -- rows looked at in one call: under a stop of thousands, other clients wait for 2 ms at most

for i, want in ipairs({'string', 'hash', 'hash', 'stream', 'stream'}) do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= want then
    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}
  end
end
local count = tonumber(ARGV[9])
if not tonumber(keep) or not count or #ARGV ~= 9 + 7 * count then
  return redis.error_reply('ERR the request is not one of whole rows')
end
local function id_of(text) return text:match('^%d+%-%d+$') end
if ARGV[8] ~= '' and not id_of(ARGV[8]) then return redis.error_reply('ERR not the id of a row') end
for i = 1, count do
  if not id_of(ARGV[3 + 7 * i]) then return redis.error_reply('ERR not the id of a row') end
end

local fence = redis.call('HMGET', term, 'token', 'nonce')
local ours = fence[1] == token and fence[2] == nonce
if not ours or (carrier ~= 'term' and redis.call('GET', lock) ~= nonce) then return {'fenced', fence[1] or ''} end
local copy = redis.call('HMGET', flags, 'generation', 'renewed')
local generation, renewed = tonumber(copy[1] or ''), tonumber(copy[2] or '')
if not generation then return {'unknown', flags} end
if seen ~= '' then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  if not renewed or generation < tonumber(seen) or math.abs(now - renewed) > FRESH then return {'unknown', flags} end
end

for i = 1, count do
  local id, outcome, entry, fire_time, task_id, message_id, reason = unpack(ARGV, 3 + 7 * i, 9 + 7 * i)
  -- The record first: a full server refuses the call at its first write that needs memory, before anything was written.
  if #redis.call('XRANGE', outbox, id, id) == 1 then
    local fields = {'outcome', outcome, 'entry', entry, 'fire_time', fire_time, 'token', token, 'holder', holder,
      'task_id', task_id, 'message_id', message_id}
    if reason ~= '' then fields[15], fields[16] = 'reason', reason end
    redis.call('XADD', audit, 'MAXLEN', '~', keep, '*', unpack(fields))
    redis.call('XDEL', outbox, id)
  end
end

local last, held = ARGV[8], 0
if ARGV[7] ~= 'next' then return {'none', last, held} end
local function stopped(text)
  local readable, message = pcall(cjson.decode, text or '')
  if not readable or type(message) ~= 'table' or type(message.scopes) ~= 'table' then return false end
  for _, scope in ipairs(message.scopes) do
    if redis.call('HEXISTS', flags, scope) == 1 then return true end -- whatever it says
  end
  return false
end
local rows = redis.call('XRANGE', outbox, last == '' and '-' or '(' .. last, '+', 'COUNT', PAGE)
for _, row in ipairs(rows) do
  last = row[1]
  local text = ''
  for i = 1, #row[2], 2 do
    if row[2][i] == 'message' then text = row[2][i + 1] end
  end
  -- A row that cannot be read is returned, too: the publisher says so, and publishes nothing of it.
  if not stopped(text) then return {'row', last, held, last, text} end
  held = held + 1
end
return {#rows == PAGE and 'more' or 'none', last, held}
