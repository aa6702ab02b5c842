-- Says that a process is alive, and answers those that are.
--
--   KEYS   1  [prefix:]tollway:processes   zset   process -> when it counts as gone
--   ARGV   1  for how long it is believed, in milliseconds   2  process

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), 2 * ARGV[1]))
return redis.call('ZRANGE', KEYS[1], 0, -1)
