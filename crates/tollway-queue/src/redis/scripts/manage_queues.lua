-- Makes, changes, forgets and lists queues; here the settings need not be there yet.
--
--   KEYS[1], KEYS[2], ARGV[1], ARGV[2]   as in layout.lua
--   ARGV[3]  'put'     ARGV[4] queue, ARGV[5] settings for scripts, ARGV[6] settings as written,
--                      ARGV[7] whether it has limits of its own, ARGV[8..] shared limits that bind it
--            'shared'  ARGV[4] name, ARGV[5] limits (one)
--            'remove'  ARGV[4] queue: deletes a chunk of its keys; { whether it was there, more }

local call = redis.call
local P, S = KEYS[1], KEYS[2]
local what, name = ARGV[3], ARGV[4]

-- Notes which shared limits bind the queue: those of `names`.
local function share(names)
  local shares = {}
  for _, shared in ipairs(names) do shares[shared] = true end
  for _, shared in ipairs(call('HKEYS', S .. 'l')) do
    call(shares[shared] and 'SADD' or 'SREM', S .. '~u:' .. shared, name)
  end
end

if what == 'put' then
  for n = 8, #ARGV do
    if call('HEXISTS', S .. 'l', ARGV[n]) == 0 then
      return { err = 'NOTFOUND no shared limit ' .. ARGV[n] }
    end
  end
  share({ unpack(ARGV, 8) })
  if call('HGET', P .. 'c', 's') ~= ARGV[5] then
    -- A version is told by no other settings, also of a queue that was removed and made again.
    local time = call('TIME')
    call('HSET', P .. 'c', 's', ARGV[5], 'v', ('%d'):format(time[1] * 1000000 + time[2]))
  end
  call('HINCRBY', P .. 'c', 'rf', 1)
  -- What runs holds nothing of limits that are gone, and must not hold them when they are back.
  if ARGV[7] == '0' then call('DEL', P .. 'q') end
  call('HSET', S .. 'c', name, ARGV[6])
  return 1
elseif what == 'shared' then
  call('HSET', S .. 'l', name, ARGV[5])
  return 1
end

-- Unlinking frees a key's memory elsewhere, however many jobs it holds.
local was = call('HDEL', S .. 'c', name)
if was == 1 then share({}) end
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
for _, key in ipairs({ 'c', 'j', 'u', 'r', 'l', 'n', 'h', 'i', 'ds', 'gs', 'o', 'p', 'q', 'ki', 'e', 'ez', 'x', 'xz',
  't', 'tz', 'm' }) do
  call('UNLINK', P .. key)
end
return { was, 0 }
