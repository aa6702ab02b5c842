-- The short way of a claim: the window has room for all who ask, and nobody waits or is blocked.
--
-- Keys and arguments are those of claim.lua, which goes on where this does not answer. Answers the
-- time alone: all were granted.
--
-- The counter is decremented, never set: a set would drop its TTL, and with it the end of the
-- window. Whether the key is in its last millisecond need not be asked: what is taken then has a
-- lease, and the next window opens smaller by it.
--
-- Beside old clients our own account of the window must have as much, and no client may have written
-- a limit of nothing, which claim.lua puts right.

do
  local call, asked, is_beside = redis.call, #ARGV - 4, ARGV[4] == 'beside'
  if (is_beside or ARGV[4] == 'wait')
    and call('EXISTS', KEYS[6], KEYS[8], KEYS[3], KEYS[14]) == 0 then
    local left, ours, limit
    if is_beside then
      local found = call('MGET', KEYS[1], KEYS[13], KEYS[2])
      left, ours, limit = tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
    else
      left = tonumber(call('GET', KEYS[1]))
      ours, limit = left, 1
    end
    if left and ours and limit and limit > 0 and math.min(left, ours) >= asked and left < 1000000000 then
      call('DECRBY', KEYS[1], asked)
      if is_beside then call('DECRBY', KEYS[13], ours - math.min(left, ours) + asked) end
      local clock, lease_ms = call('TIME'), tonumber(ARGV[1])
      local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
      local till = now + lease_ms
      if asked == 1 then
        call('ZADD', KEYS[4], till, ARGV[5])
      else
        local leases = {}
        for i = 5, #ARGV do
          leases[#leases + 1] = till
          leases[#leases + 1] = ARGV[i]
        end
        call('ZADD', KEYS[4], unpack(leases))
      end
      call('PEXPIRE', KEYS[4], 2 * lease_ms)
      return now
    end
  end
end
