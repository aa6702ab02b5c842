-- The quickest way of a claim: one request, a bucket that has plenty, nobody waiting or blocked.
--
--   KEYS   1  remaining   2  quick   3  global   4  waiting   5  block of the lane, as in bucket.lua
--
-- Answers the permit, which is the time and a number (`1731697200000-0`): one call of the server
-- writes the lease and tells the time. Answers nothing where this way is not open; claim.lua opens
-- it.
--
-- One of the four keys is there: the counter, if something was left in it, for then none of the
-- others can be. The counter is decremented, never set: a set would drop its TTL, and with it the end
-- of the window.

local call, counter = redis.call, KEYS[1]
if call('EXISTS', counter, KEYS[3], KEYS[4], KEYS[5]) == 1 then
  if call('DECR', counter) >= 0 then
    local permit = call('XADD', KEYS[2], 'NOMKSTREAM', '*', '', '')
    if permit then return permit end
    call('INCR', counter)
  elseif call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) == 0 then
    call('INCR', counter)
  else
    -- It was one of the others, and there was no counter before this.
    call('DEL', counter)
  end
end
