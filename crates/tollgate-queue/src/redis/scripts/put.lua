-- Makes, changes, forgets and lists queues; here the settings need not be there yet.
--
--   KEYS[1], KEYS[2], ARGV[1], ARGV[2]   as in layout.lua
--   ARGV[3]  'put'     ARGV[4] queue, ARGV[5] settings for scripts, ARGV[6] settings as written
--            'shared'  ARGV[4] name, ARGV[5] limits (one)
--            'remove'  ARGV[4] queue: deletes a chunk of its keys; { whether it was there, more }

local call = redis.call
local P, S = KEYS[1], KEYS[2]
local what, name = ARGV[3], ARGV[4]

if what == 'put' then
  if call('HGET', P .. 'c', 's') ~= ARGV[5] then
    call('HSET', P .. 'c', 's', ARGV[5])
    call('HINCRBY', P .. 'c', 'v', 1)
  end
  call('HINCRBY', P .. 'c', 'rf', 1)
  call('HSET', S .. 'c', name, ARGV[6])
  return 1
elseif what == 'shared' then
  call('HSET', S .. 'l', name, ARGV[5])
  return 1
end

-- Unlinking frees a key's memory elsewhere, however many jobs it holds.
local was = call('HDEL', S .. 'c', name)
local groups = call('ZRANGE', P .. 'i', 0, 499)
for _, group in ipairs(groups) do
  call('UNLINK', P .. 'w:' .. group, P .. 'd:' .. group, P .. 'g:' .. group)
  call('ZREM', P .. 'i', group)
end
local keys = call('ZRANGE', P .. 'ki', 0, 499)
for _, key in ipairs(keys) do
  call('UNLINK', P .. 'k:' .. key)
  call('ZREM', P .. 'ki', key)
end
if #groups == 500 or #keys == 500 then return { was, 1 } end
for _, key in ipairs({ 'c', 'j', 'u', 'r', 'l', 'h', 'i', 'o', 'p', 'q', 'ki', 'e', 'ez', 'x', 'xz', 't',
  'tz', 'm' }) do
  call('UNLINK', P .. key)
end
return { was, 0 }
