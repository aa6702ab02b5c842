-- Concurrency: holds, soonest to expire first. See tollway_core::concurrency.
--
--   value   | head, of kind 5 | n: 4 bytes | id: 16 | units: 7 | us: 7 | ns: 2 | ... n holds ... |
--
--   constants   limit, lease_us, lease_ns, for how much longer than that a hold is believed (us):
--               0, or anything if holds were carried here from a longer lease
--   state       { id, units, us, ns, id, units, us, ns, ... }

-- A copy of the holds that have not expired and are not named `except`, and the units in them.
local function held(s, except)
  local kept, total = {}, 0
  for i = 1, #s, 4 do
    local is_live = s[i + 2] > now_us or s[i + 2] == now_us and s[i + 3] > now_ns
    if is_live and s[i] ~= except then
      local n = #kept
      kept[n + 1], kept[n + 2], kept[n + 3], kept[n + 4] = s[i], s[i + 1], s[i + 2], s[i + 3]
      total = total + s[i + 1]
    end
  end
  return kept, total
end

algorithms[5] = {
  constants = '<dddd',

  vacant = function() return {} end,

  parse = function(value)
    if #value < HEAD_LEN + 4 then return nil end
    local n, pos = read('<I4', value, HEAD_LEN + 1)
    local s = {}
    if #value < HEAD_LEN + 4 + n * 32 then return nil end
    for i = 1, n * 4, 4 do
      s[i], s[i + 1], s[i + 2], s[i + 3], pos = read('<c16I7I7I2', value, pos)
    end
    return s, pos
  end,

  -- On a copy: what gives back does not repair, in the core as here.
  repair = function(c, s)
    local us, ns = plus(now_us + SKEW_US + c[4], now_ns, c[2], c[3])
    local i = #s - 3
    if i < 1 or s[i + 2] < us or s[i + 2] == us and s[i + 3] <= ns then return s end
    local mended = {}
    for field = 1, #s do mended[field] = s[field] end
    while i > 0 and (s[i + 2] > us or s[i + 2] == us and s[i + 3] > ns) do
      mended[i + 2], mended[i + 3] = us, ns
      i = i - 4
    end
    c.unrepaired = s
    return mended, true
  end,

  charge = function(c, s, counted, cost, _, _, id)
    local kept, total = held(s)
    if total + cost > c[1] then
      if not counted then return nil end
      cost = c[1] - total
      if cost <= 0 then return s end
    end
    -- Every lease is as long, so the newest hold expires last, unless a repair left later ones.
    local us, ns = plus(now_us, now_ns, c[2], c[3])
    local at = #kept + 1
    while at > 1 and (kept[at - 2] > us or kept[at - 2] == us and kept[at - 1] > ns) do
      at = at - 4
    end
    for i = #kept, at, -1 do kept[i + 4] = kept[i] end
    kept[at], kept[at + 1], kept[at + 2], kept[at + 3] = id, cost, us, ns
    return kept
  end,

  refund = function(c, s, back)
    local kept = held(c.unrepaired or s)
    c.unrepaired = nil
    local left = {}
    for i = 1, #kept, 4 do
      local out = math.min(kept[i + 1], back)
      back = back - out
      if kept[i + 1] > out then
        local n = #left
        left[n + 1], left[n + 2] = kept[i], kept[i + 1] - out
        left[n + 3], left[n + 4] = kept[i + 2], kept[i + 3]
      end
    end
    return left
  end,

  -- What is in flight is over, whatever it cost.
  release = function(c, s, id)
    local kept = held(c.unrepaired or s, id)
    c.unrepaired = nil
    return kept
  end,

  room = function(c, s) return c[1] - select(2, held(s)) end,

  ttl_ms = function(_, s)
    local n = #s
    if n == 0 then return 0 end
    return floor((s[n - 1] - now_us) / 1000) + 2
  end,

  format = function(s)
    local holds = { pack('<I4', #s / 4) }
    for i = 1, #s, 4 do
      holds[#holds + 1] = pack('<c16I7I7I2', s[i], s[i + 1], s[i + 2], s[i + 3])
    end
    return table.concat(holds)
  end,
}
