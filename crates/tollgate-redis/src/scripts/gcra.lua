-- GCRA: one theoretical arrival time (TAT) per key. See tollgate_core::gcra.
--
--   value   | 1 | us: 7 bytes | till: 4 |                      little endian, if ns = part = 0
--           | 1 | us: 7 bytes | ns: 2 | part: 7 | till: 4 |    otherwise
--
-- The TAT is us microseconds + ns nanoseconds + part / scale nanoseconds: one unit rarely costs
-- whole nanoseconds, and nothing is rounded. Durations (what a charge costs, what the bucket
-- holds) come in the same three limbs, worked out by the caller, so that here they are only added
-- and compared.
--
-- The key lives at least until the second `till` (0: not known). The short ways give a state that
-- is charged again LINGER_S more than it needs, and while `till` covers the next TAT they change
-- the TAT in place, which costs half of a write with a TTL. Here every state is written with its
-- exact TTL.
--
--   constants   capacity_us, capacity_ns, capacity_part, scale
--   state       { us, ns, part }

algorithms[1] = {
  constants = '<dddd',

  vacant = function() return { 0, 0, 0 } end,

  parse = function(value)
    local us, ns, part = 0, 0, 0
    -- Returns are 50 bytes each: what is left over says which of the two it is.
    if #value % 50 == 12 then
      us = read('<I7', value, 2)
      return { us, 0, 0 }, 13
    elseif #value % 50 == 21 then
      us, ns, part = read('<I7I2I7', value, 2)
      return { us, ns, part }, 22
    end
    return nil
  end,

  -- Works out when the bucket would be empty, the latest TAT there may be, and repairs a later one.
  repair = function(c, s)
    local us, ns, part = now_us + c[1], now_ns + c[2], c[3]
    if ns >= 1000 then us, ns = us + 1, ns - 1000 end
    c.us, c.ns, c.part = us, ns, part
    local by = s[1] - us - SKEW_US
    if by > 0 or by == 0 and (s[2] > ns or s[2] == ns and s[3] > part) then
      return { us, ns, part }, true
    end
    return s
  end,

  charge = function(c, s, counted, cost_us, cost_ns, cost_part)
    local us, ns, part = s[1], s[2], s[3]
    if us < now_us or us == now_us and ns < now_ns then us, ns, part = now_us, now_ns, 0 end
    local to_us, to_ns, to_part = us + cost_us, ns + cost_ns, part + cost_part
    if to_part >= c[4] then to_part, to_ns = to_part - c[4], to_ns + 1 end
    if to_ns >= 1000 then to_ns, to_us = to_ns - 1000, to_us + 1 end
    local by = to_us - c.us
    if by < 0 or by == 0 and (to_ns < c.ns or to_ns == c.ns and to_part <= c.part) then
      return { to_us, to_ns, to_part }
    end
    if not counted then return nil end
    -- Emptier than empty there is not; but a bucket within the skew stays as it is.
    by = us - c.us
    if by > 0 or by == 0 and (ns > c.ns or ns == c.ns and part > c.part) then
      return { us, ns, part }
    end
    return { c.us, c.ns, c.part }
  end,

  refund = function(c, s, back_us, back_ns, back_part)
    local us, ns, part = s[1] - back_us, s[2] - back_ns, s[3] - back_part
    if part < 0 then part, ns = part + c[4], ns - 1 end
    if ns < 0 then ns, us = ns + 1000, us - 1 end
    if us > now_us or us == now_us and (ns > now_ns or ns == now_ns and part > 0) then
      return { us, ns, part }
    end
    return { 0, 0, 0 }
  end,

  -- Rounded up to the millisecond: a state must not be forgotten before it says nothing.
  ttl_ms = function(_, s) return floor((s[1] - now_us) / 1000) + 2 end,

  format = function(s)
    if s[2] == 0 and s[3] == 0 then return pack('<BI7I4', 1, s[1], 0) end
    return pack('<BI7I2I7I4', 1, s[1], s[2], s[3], 0)
  end,
}
