-- Says that a process is alive, and answers those that are; and when claims go to the store again.
--
--   KEYS   1  [prefix:]tollway:processes   zset     process -> when it counts as gone
--          2  [prefix:]tollway:return      string   after an outage: when claims go to the store
--
--   ARGV   1  for how long it is believed, in milliseconds   2  process
--          3  the channel of a process without its name
--          4  how many must be there before claims go to the store again; 0 if theirs do, or if
--          this process has waited for the others for long enough, 1
--          5  so many milliseconds after that they do, for all at once
--
-- Who is new is told to the others, so that each knows its part of the limits if the store is lost
-- at once. Answers { milliseconds until claims go to the store, -1 if not yet, processes ... }.

local TOLD_MAX, KEPT_MS = 64, 1000

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local is_new = redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2]) == 1
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), 2 * ARGV[1]))
local alive = redis.call('ZRANGE', KEYS[1], 0, -1)
if is_new and #alive <= TOLD_MAX then
  local told = '\np\n' .. table.concat(alive, ' ')
  for _, process in ipairs(alive) do
    if process ~= ARGV[2] then redis.call('PUBLISH', ARGV[3] .. process, told) end
  end
end

local wait, least = -1, tonumber(ARGV[4])
if least > 0 then
  local at = tonumber(redis.call('GET', KEYS[2]) or false)
  if not at and #alive >= least then
    at = now + ARGV[5]
    redis.call('SET', KEYS[2], string.format('%d', at), 'PX', ARGV[5] + KEPT_MS)
  end
  wait = at and math.max(at - now, 0) or -1
end
table.insert(alive, 1, tostring(wait))
return alive
