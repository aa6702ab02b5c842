-- The quickest way of a claim: one request, a bucket that has plenty, nobody waiting or blocked.
--
--   KEYS   1  remaining   2  quick   3  global   4  waiting   5  block of the lane, as in bucket.lua
--
-- Answers the permit, which is the time and a number (`1731697200000-0`): one call of the server
-- writes the lease and tells the time. Answers nothing where this way is not open; claim.lua opens
-- it.
--
-- The first two keys are named four times so that one call tells whether both are there and none of
-- the other three. The counter is decremented, never set: a set would drop its TTL, and with it the
-- end of the window.

local call, counter, quick = redis.call, KEYS[1], KEYS[2]
if call('EXISTS', counter, counter, counter, counter, quick, quick, quick, quick,
  KEYS[3], KEYS[4], KEYS[5]) == 8 then
  if call('DECR', counter) >= 0 then return call('XADD', quick, '*', '', '') end
  call('INCR', counter)
end
