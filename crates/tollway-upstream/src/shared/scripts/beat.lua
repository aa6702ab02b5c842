-- Says that a process is alive, and counts those that are.
--
--   KEYS   1  [prefix:]tollway:processes   zset   process -> when it counts as gone
--   ARGV   1  lease in milliseconds   2  process
--
-- Answers how many processes share the credential: each one's part of the limits while the store
-- is away.

local lease_ms = tonumber(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], now + lease_ms, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], 2 * lease_ms)
return redis.call('ZCARD', KEYS[1])
