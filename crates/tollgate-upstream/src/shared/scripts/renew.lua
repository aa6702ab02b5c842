-- Says that permits and tickets are still alive.
--
--   KEYS   4  leases   6  waiting   7  alive   as in bucket.lua
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
if #leases > 0 then
  kept = redis.call('ZADD', KEYS[4], 'XX', 'CH', unpack(leases))
  redis.call('PEXPIRE', KEYS[4], 2 * lease_ms)
end
if #living > 0 then
  kept = kept + redis.call('ZADD', KEYS[7], 'XX', 'CH', unpack(living))
  redis.call('PEXPIRE', KEYS[6], 2 * lease_ms)
  redis.call('PEXPIRE', KEYS[7], 2 * lease_ms)
end
return kept
