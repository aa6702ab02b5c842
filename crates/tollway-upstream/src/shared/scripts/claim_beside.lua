-- The quickest way of a claim where old clients write the same keys: claim_quick.lua, and our own
-- account of the window counted down with its counter.
--
--   KEYS   1  remaining   2  quick   3  global   4  waiting   5  block of the lane
--          6  low   7  foreign   as in bucket.lua
--
-- Whatever an old client has written into the counter, nothing is taken that our account does not
-- have; what old clients have taken is left out of the account too. What an old client writes as the
-- limit is not looked at: claim_short.lua does that, which a process goes by now and then.

local call, counter, low = redis.call, KEYS[1], KEYS[6]
if call('EXISTS', counter, low, KEYS[3], KEYS[4], KEYS[5], KEYS[7]) == 2 then
  local left, ours = call('DECR', counter), call('DECR', low)
  -- Something was left in both, so both were there, and none of the others.
  if left >= 0 and ours >= 0 then
    local permit = call('XADD', KEYS[2], 'NOMKSTREAM', '*', '', '')
    if permit then
      if left < ours then call('SET', low, left, 'KEEPTTL') end
      return permit
    end
  end
  -- An account without a TTL was not there before this; the counter was if it makes up the two.
  local known = 2 - call('EXISTS', KEYS[3], KEYS[4], KEYS[5], KEYS[7])
  if call('PTTL', low) == -1 then
    call('DEL', low)
  else
    call('INCR', low)
    known = known - 1
  end
  if known == 1 then call('INCR', counter) else call('DEL', counter) end
end
