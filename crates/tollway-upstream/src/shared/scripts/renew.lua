-- Says that permits and tickets are still alive.
--
--   KEYS   4  leases   6  waiting   7  alive   9  quick   12  flights   as in bucket.lua
--   ARGV   1  lease in milliseconds   2  how many permits   3..  permits, then tickets
--
-- What the others have given up already stays given up. Answers how many are still there.

local lease_ms, permits = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local till = clock[1] * 1000 + math.floor(clock[2] / 1000) + lease_ms
local leases, living = {}, {}
for i = 3, #ARGV do
  local list = i - 2 <= permits and leases or living
  list[#list + 1], list[#list + 2] = till, ARGV[i]
end
local kept = 0
-- A permit that the quickest way gave goes beside the others, which have no fixed end.
for i = 3, 2 + permits do
  if string.find(ARGV[i], '-', 1, true) and redis.call('XDEL', KEYS[9], ARGV[i]) == 1 then
    redis.call('ZADD', KEYS[4], 0, ARGV[i])
  end
end
if #leases > 0 then
  kept = redis.call('ZADD', KEYS[4], 'XX', 'CH', unpack(leases))
  redis.call('PEXPIRE', KEYS[4], 2 * lease_ms)
  if redis.call('ZADD', KEYS[12], 'XX', 'CH', unpack(leases)) > 0 then
    redis.call('PEXPIRE', KEYS[12], 2 * lease_ms)
  end
end
if #living > 0 then
  kept = kept + redis.call('ZADD', KEYS[7], 'XX', 'CH', unpack(living))
  redis.call('PEXPIRE', KEYS[6], 2 * lease_ms)
  redis.call('PEXPIRE', KEYS[7], 2 * lease_ms)
end
return kept
