-- Takes tokens that all processes of one credential share per period: of one limit a batch for all
-- requests of a process that wait, of several limits what one request needs, of all or of none.
--
--   KEYS   [prefix:]tollway:tokens   zset   `<batch>.<count>` -> when its tokens are free again
--
--   ARGV   1  milliseconds for which the batch may be spent
--          2  name of the batch: the same name asks again after a lost answer
--          3  tokens wanted of the first limit, if it is the only one
--          then for each key: tokens per period, the period in milliseconds with the margin for
--          jitter, and the fewest tokens that are of use
--
--   taken      may be spent until          free again
--     |───────────── spend ─────────────|───── period ─────|
--
-- So whichever stretch of one period is looked at, the tokens spent in it were all held at one
-- time, and those are at most the limit. Unspent tokens are simply lost: a batch is small, short,
-- and asked for by somebody who has use for it.
--
-- Answers { tokens granted of the first, 0 }, or { 0, milliseconds until enough are free of each }.

local spend_ms, batch = tonumber(ARGV[1]), ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- What is held of a limit, what this batch has of it already, and when `least` are free.
local function look(key, limit, least)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local batches = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  local held, own = 0, nil
  for i = 1, #batches, 2 do
    local owner, count = string.match(batches[i], '^(.*)%.(%d+)$')
    if owner == batch then own = tonumber(count) end
    held = held + (tonumber(count) or 0)
  end
  local free, at = limit - held, now
  for i = 1, #batches, 2 do
    if free >= least then break end
    free = free + (tonumber(string.match(batches[i], '(%d+)$')) or 0)
    at = tonumber(batches[i + 1])
  end
  return limit - held, own, at
end

local granted, latest = nil, now
for i, key in ipairs(KEYS) do
  local at = 1 + 3 * i
  local limit, least = tonumber(ARGV[at]), tonumber(ARGV[at + 2])
  local free, own, enough_at = look(key, limit, least)
  if own then return { own, 0 } end
  if enough_at > latest then latest = enough_at end
  if i == 1 then granted = #KEYS == 1 and math.min(tonumber(ARGV[3]), free) or least end
end
if latest > now then return { 0, latest - now + 1 } end
for i, key in ipairs(KEYS) do
  local at = 1 + 3 * i
  local period_ms, count = tonumber(ARGV[at + 1]), i == 1 and granted or ARGV[at + 2]
  redis.call('ZADD', key, now + spend_ms + period_ms, batch .. '.' .. count)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), 2 * (spend_ms + period_ms)))
end
return { granted, 0 }
