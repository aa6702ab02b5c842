-- Fixed window: when it started and what was taken in it. See tollway_core::fixed_window.
--
--   value   | head, of kind 3 | us: 7 bytes | ns: 2 | count: 7 |      little endian
--
--   constants   units, period_us, period_ns, anchor (0: the epoch, 1: the first request)
--   state       { us, ns, count }

local function window_start(c, us, ns)
  if c[4] == 1 then return us, ns end
  local _, rest_us, rest_ns = divide(us, ns, c[2], c[3])
  return minus(us, ns, rest_us, rest_ns)
end

-- The window that now falls into, and what was taken in it.
local function rolled(c, s)
  if s[3] > 0 then
    local end_us, end_ns = plus(s[1], s[2], c[2], c[3])
    if now_us < end_us or now_us == end_us and now_ns < end_ns then return s[1], s[2], s[3] end
  end
  local us, ns = window_start(c, now_us, now_ns)
  return us, ns, 0
end

algorithms[3] = {
  constants = '<dddd',

  vacant = function() return { 0, 0, 0 } end,

  parse = function(value)
    if #value < HEAD_LEN + 16 then return nil end
    local us, ns, count, tail = read('<I7I2I7', value, HEAD_LEN + 1)
    return { us, ns, count }, tail
  end,

  repair = function(c, s)
    if s[1] < now_us or s[1] == now_us and s[2] <= now_ns then return s end
    local us, ns = window_start(c, now_us + SKEW_US, now_ns)
    if s[1] > us or s[1] == us and s[2] > ns then return { us, ns, s[3] }, true end
    return s
  end,

  charge = function(c, s, counted, cost)
    local us, ns, count = rolled(c, s)
    local wanted = count + cost
    if wanted > c[1] and not counted then return nil end
    return { us, ns, math.min(wanted, UNITS_MAX) }
  end,

  -- Units taken in an earlier window are gone with it.
  refund = function(c, s, back, _, _, taken_us, taken_ns)
    local us, ns, count = rolled(c, s)
    if taken_us and (taken_us < us or taken_us == us and taken_ns < ns) then back = 0 end
    return { us, ns, math.max(count - back, 0) }
  end,

  room = function(c, s) return c[1] - select(3, rolled(c, s)) end,

  ttl_ms = function(c, s)
    if s[3] == 0 then return 0 end
    return floor((s[1] - now_us + c[2]) / 1000) + 2
  end,

  format = function(s) return pack('<I7I2I7', s[1], s[2], s[3]) end,
}
