-- Leaky bucket: a level and the moment of the last drip. See tollway_core::leaky_bucket.
--
--   value   | head, of kind 2 | level: 7 bytes | us: 7 | ns: 2 |      little endian
--
--   constants   size, drip_size, interval_us, interval_ns
--   state       { level, us, ns }

local function dripped(c, s)
  local us, ns = minus(now_us, now_ns, s[2], s[3])
  if us < 0 then
    if s[1] == 0 then return 0, now_us, now_ns end
    return s[1], s[2], s[3]
  end
  local drips, rest_us, rest_ns = divide(us, ns, c[3], c[4])
  local out = drips * c[2]
  -- An empty bucket has no phase.
  if out >= s[1] then return 0, now_us, now_ns end
  us, ns = minus(now_us, now_ns, rest_us, rest_ns)
  return s[1] - out, us, ns
end

algorithms[2] = {
  constants = '<dddd',

  vacant = function() return { 0, 0, 0 } end,

  parse = function(value)
    if #value < HEAD_LEN + 16 then return nil end
    local level, us, ns, tail = read('<I7I7I2', value, HEAD_LEN + 1)
    return { level, us, ns }, tail
  end,

  repair = function(_, s)
    local by = s[2] - now_us - SKEW_US
    if by < 0 or by == 0 and s[3] <= now_ns then return s end
    return { s[1], now_us + SKEW_US, now_ns }, true
  end,

  charge = function(c, s, counted, cost)
    local level, us, ns = dripped(c, s)
    local wanted = level + cost
    if wanted <= c[1] then return { wanted, us, ns } end
    if not counted then return nil end
    return { math.max(level, c[1]), us, ns }
  end,

  refund = function(c, s, back)
    local level, us, ns = dripped(c, s)
    return { math.max(level - back, 0), us, ns }
  end,

  room = function(c, s) return c[1] - dripped(c, s) end,

  ttl_ms = function(c, s)
    if s[1] == 0 then return 0 end
    local drips = math.ceil(s[1] / c[2])
    return floor((s[2] - now_us + drips * (c[3] + c[4] / 1000)) / 1000) + 2
  end,

  format = function(s) return pack('<I7I7I2', s[1], s[2], s[3]) end,
}
