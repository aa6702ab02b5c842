-- Makes, changes, forgets and lists queues and shared limits; here settings need not be there yet.
--
--   KEYS[1], KEYS[2], ARGV[1], ARGV[2]   as in layout.lua
--   ARGV[3]  'put'     ARGV[4] queue, ARGV[5] author, ARGV[6] settings, ARGV[7] whether it has limits
--                      of its own, ARGV[8..] shared limits that bind it; told (below)
--            'judge'   ARGV[4] queue, ARGV[5] author: what 'put' would be told, and changes nothing
--            'shared'  ARGV[4] name, ARGV[5] author, ARGV[6] limits (one); told
--            'unshare' ARGV[4] name of a shared limit that no queue has; whether it was there
--            'remove'  ARGV[4] queue, ARGV[5] 1 if only without jobs and dead letters: deletes a chunk
--                      of its keys; { whether it was there, whether there is more }
--
--   author   | c | version that it must be, in digits; empty: any |
--            | f | 1 if it was edited just now, else 0 | digest 16 |
--   record   | number 8 | is from a file 1 | at 8 | digests 16 x n, the last one given last |
--   told     | taken 1 | number 8 | is from a file 1 | at 8 |

local call, pack, unpack_bytes = redis.call, struct.pack, struct.unpack
local P, S = KEYS[1], KEYS[2]
local what, name = ARGV[3], ARGV[4]
local DIGESTS_MAX, REMEMBER_MS = 32, 60000

local time = call('TIME')
local micros = ('%d'):format(time[1] * 1000000 + time[2])
local now = ARGV[1] ~= '' and tonumber(ARGV[1]) or tonumber(micros)

-- What a change by `author` makes of a record (see versions.rs): what is told, and the new record if
-- it is taken.
local function judge(kept, author)
  local number, from_file, at, digests = 0, 0, 0, ''
  if kept then
    number, from_file, at = unpack_bytes('<dBd', kept)
    digests = kept:sub(18)
  end
  local is_file = author:sub(1, 1) == 'f'
  if is_file then
    local digest, found = author:sub(3), nil
    for n = 1, #digests, 16 do
      if digests:sub(n, n + 15) == digest then found = n end
    end
    if found and (found + 15 == #digests or author:sub(2, 2) == '0') then
      return pack('<BdBd', 0, number, from_file, at)
    end
    if found then digests = digests:sub(1, found - 1) .. digests:sub(found + 16) end
    digests = digests:sub(-16 * (DIGESTS_MAX - 1)) .. digest
  elseif #author > 1 and tonumber(author:sub(2)) ~= number then
    return nil, { err = ('CONFLICT it was changed meanwhile: found version %d, expected %s')
      :format(number, author:sub(2)) }
  end
  local version = pack('<dBd', number + 1, is_file and 1 or 0, now)
  return pack('<B', 1) .. version, version .. digests
end

-- Remembers what a request was told, so that one that is asked again is told the same.
local function tell(told)
  if ARGV[2] ~= '' then call('SET', S .. '~a:' .. ARGV[2], told, 'PX', REMEMBER_MS) end
  return told
end

-- Notes which shared limits bind the queue: those of `names`.
local function share(names)
  local shares = {}
  for _, shared in ipairs(names) do shares[shared] = true end
  for _, shared in ipairs(call('HKEYS', S .. 'l')) do
    call(shares[shared] and 'SADD' or 'SREM', S .. '~u:' .. shared, name)
  end
end

local told_before = ARGV[2] ~= '' and call('GET', S .. '~a:' .. ARGV[2])
if told_before then return told_before end

if what == 'judge' then
  local told, record = judge(call('HGET', P .. 'c', 'ver'), ARGV[5])
  return told or record
elseif what == 'put' then
  for n = 8, #ARGV do
    if call('HEXISTS', S .. 'l', ARGV[n]) == 0 then
      return { err = 'NOTFOUND no shared limit ' .. ARGV[n] }
    end
  end
  local told, record = judge(call('HGET', P .. 'c', 'ver'), ARGV[5])
  if not told then return record end
  if not record then return tell(told) end
  share({ unpack(ARGV, 8) })
  if call('HGET', P .. 'c', 's') ~= ARGV[6] then
    -- A version is told by no other settings, also of a queue that was removed and made again.
    call('HSET', P .. 'c', 's', ARGV[6], 'v', micros)
  end
  call('HSET', P .. 'c', 'ver', record)
  call('HINCRBY', P .. 'c', 'rf', 1)
  -- What runs holds nothing of limits that are gone, and must not hold them when they are back.
  if ARGV[7] == '0' then call('DEL', P .. 'q') end
  call('HSET', S .. 'c', name, ARGV[6])
  return tell(told)
elseif what == 'shared' then
  local told, record = judge(call('HGET', S .. 'lv', name), ARGV[5])
  if not told then return record end
  if record then call('HSET', S .. 'l', name, ARGV[6]) call('HSET', S .. 'lv', name, record) end
  return tell(told)
elseif what == 'unshare' then
  local user = call('SRANDMEMBER', S .. '~u:' .. name)
  if user then
    return { err = ('CONFLICT queue %s shares %s: change the queue first'):format(user, name) }
  end
  call('HDEL', S .. 'lv', name)
  call('UNLINK', S .. '~s:' .. name)
  return call('HDEL', S .. 'l', name)
end

if ARGV[5] == '1' then
  local jobs, dead = call('HLEN', P .. 'j'), call('ZCARD', P .. 'xz')
  if jobs + dead > 0 then
    return { err = ('CONFLICT the queue holds %d jobs and %d dead letters: remove them first')
      :format(jobs, dead) }
  end
end
-- Unlinking frees a key's memory elsewhere, however many jobs it holds.
local was = call('HDEL', S .. 'c', name)
if was == 1 then share({}) end
-- First, so that nothing is enqueued any more while chunks are deleted.
call('UNLINK', P .. 'c')
local groups = call('ZRANGE', P .. 'i', 0, 499)
for _, group in ipairs(groups) do
  call('UNLINK', P .. 'f:' .. group, P .. 'w:' .. group, P .. 'd:' .. group, P .. 'g:' .. group)
  call('ZREM', P .. 'i', group)
end
local keys = call('ZRANGE', P .. 'ki', 0, 499)
for _, key in ipairs(keys) do
  call('UNLINK', P .. 'k:' .. key)
  call('ZREM', P .. 'ki', key)
end
if #groups == 500 or #keys == 500 then return { was, 1 } end
for _, key in ipairs({ 'j', 'v', 'u', 'r', 'l', 'n', 'h', 'i', 'ds', 'y', 'gs', 'o', 'p', 'q', 'ki', 'e', 'ez', 'x', 'xz',
  't', 'tz', 'm' }) do
  call('UNLINK', P .. key)
end
return { was, 0 }
