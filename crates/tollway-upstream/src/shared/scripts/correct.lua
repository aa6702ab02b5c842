-- Corrects the tokens of a request that took something else than what they were taken for.
--
--   KEYS   1  [prefix:]tollway:tokens   zset   as in tokens.lua
--
--   ARGV   1  tokens that it took beyond those, negative if it took less
--          2  period in milliseconds     3  milliseconds for which a batch may be spent
--          4  name of the correction     5  milliseconds since the request left
--
-- What is too much is given back from the batches that are free again first, none of them younger
-- than the request's own: so never less is held than was used.

local more, period_ms, spend_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if more > 0 then
  redis.call('ZADD', KEYS[1], now + spend_ms + period_ms, ARGV[4] .. '.' .. more)
else
  local rest, latest = -more, now - ARGV[5] + spend_ms + period_ms
  local batches = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', latest, 'WITHSCORES')
  for i = 1, #batches, 2 do
    if rest == 0 then break end
    local owner, count = string.match(batches[i], '^(.*)%.(%d+)$')
    local part = math.min(tonumber(count) or 0, rest)
    if part > 0 then
      rest = rest - part
      redis.call('ZREM', KEYS[1], batches[i])
      if count - part > 0 then
        local left = string.format('%d', count - part)
        redis.call('ZADD', KEYS[1], batches[i + 1], owner .. '.' .. left)
      end
    end
  end
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), 2 * (spend_ms + period_ms)))
return redis.status_reply('OK')
