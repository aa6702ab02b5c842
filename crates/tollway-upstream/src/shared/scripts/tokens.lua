-- Takes a batch of the tokens that all processes of one credential share per period.
--
--   KEYS   1  [prefix:]tollway:tokens   zset   `<batch>.<count>` -> when its tokens are free again
--
--   ARGV   1  tokens per period        2  period in milliseconds, with the margin for jitter
--          3  milliseconds for which the batch may be spent     4  tokens wanted
--          5  name of the batch: the same name asks again after a lost answer
--
--   taken      may be spent until          free again
--     |───────────── spend ─────────────|───── period ─────|
--
-- So whichever stretch of one period is looked at, the tokens spent in it were all held at one
-- time, and those are at most ARGV[1]. Unspent tokens are simply lost: a batch is small, short,
-- and asked for by somebody who has use for it.
--
-- Answers { tokens granted, milliseconds until one is free, if none was }.

local limit, period_ms, spend_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local wanted, batch = tonumber(ARGV[4]), ARGV[5]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local held = 0
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local owner, count = string.match(name, '^(.*)%.(%d+)$')
  if owner == batch then return { tonumber(count), 0 } end
  held = held + (tonumber(count) or 0)
end
local granted = math.min(wanted, limit - held)
if granted < 1 then
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  return { 0, math.max((tonumber(first[2]) or now) - now, 0) + 1 }
end
redis.call('ZADD', KEYS[1], now + spend_ms + period_ms, batch .. '.' .. granted)
redis.call('PEXPIRE', KEYS[1], 2 * (spend_ms + period_ms))
return { granted, 0 }
