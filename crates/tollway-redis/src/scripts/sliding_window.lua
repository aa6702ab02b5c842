-- Sliding window: units taken per tick, oldest first. See tollway_core::sliding_window.
--
--   value   | head, of kind 4 | n: 4 bytes | us: 7 | ns: 2 | units: 7 | ... n cells ... |
--
-- A cell is named by the moment at which its tick starts, the first whole nanosecond of it: ticks
-- and their starts are in the same order, a cell stops counting one period after its start, and the
-- numbers stay small where tick numbers would not.
--
--   constants   limit, period_us, period_ns, parts, whole_us, whole_ns
--               a tick is whole / parts long: period / buckets in lowest terms
--   state       { us, ns, units, us, ns, units, ... }

-- As many cells as a window may have, those that are only counted included: one more than CELLS_MAX
-- of tollway-core, as there.
local CELLS_MAX = 65537

-- a * times modulo m, of durations a < m: by doubling, since the product would not be exact.
local function times_modulo(a_us, a_ns, times, m_us, m_ns)
  local function fold(us, ns)
    if us > m_us or us == m_us and ns >= m_ns then return minus(us, ns, m_us, m_ns) end
    return us, ns
  end
  local us, ns, bit = 0, 0, 65536
  while bit >= 1 do
    us, ns = fold(plus(us, ns, us, ns))
    if times >= bit then
      times = times - bit
      us, ns = fold(plus(us, ns, a_us, a_ns))
    end
    bit = bit / 2
  end
  return us, ns
end

-- When the tick of a moment starts.
local function tick_start(c, us, ns)
  local _, in_us, in_ns = divide(us, ns, c[5], c[6])
  if c[4] > 1 then
    in_us, in_ns = times_modulo(in_us, in_ns, c[4], c[5], c[6])
    local rest = fmod(in_us, c[4])
    in_us, in_ns = (in_us - rest) / c[4], floor((rest * 1000 + in_ns) / c[4])
  end
  return minus(us, ns, in_us, in_ns)
end

-- A copy without the cells that no longer count, and the units in the others.
local function live(c, s)
  local kept, total = {}, 0
  -- The start of the latest tick that is out of the window, or later.
  local us, ns = minus(now_us, now_ns, c[2], c[3])
  for i = 1, #s, 3 do
    if s[i] > us or s[i] == us and s[i + 1] > ns then
      local n = #kept
      kept[n + 1], kept[n + 2], kept[n + 3] = s[i], s[i + 1], s[i + 2]
      total = math.min(total + s[i + 2], UNITS_MAX)
    end
  end
  return kept, total
end

-- Adds units to the cell of a tick, or to the newest if that is later.
local function add(s, us, ns, units)
  local n = #s
  if n > 0 and (s[n - 2] > us or s[n - 2] == us and s[n - 1] >= ns) then
    s[n] = math.min(s[n] + units, UNITS_MAX)
  else
    s[n + 1], s[n + 2], s[n + 3] = us, ns, units
  end
end

algorithms[4] = {
  constants = '<dddddd',

  vacant = function() return {} end,

  parse = function(value)
    if #value < HEAD_LEN + 4 then return nil end
    local n, pos = read('<I4', value, HEAD_LEN + 1)
    local s = {}
    if #value < HEAD_LEN + 4 + n * 16 then return nil end
    for i = 1, n * 3, 3 do
      s[i], s[i + 1], s[i + 2], pos = read('<I7I2I7', value, pos)
    end
    return s, pos
  end,

  repair = function(c, s)
    local n = #s
    if n == 0 or s[n - 2] <= now_us then return s end
    local us, ns = tick_start(c, now_us + SKEW_US, now_ns)
    local units = 0
    while n > 0 and (s[n - 2] > us or s[n - 2] == us and s[n - 1] > ns) do
      units = math.min(units + s[n], UNITS_MAX)
      s[n], s[n - 1], s[n - 2] = nil, nil, nil
      n = n - 3
    end
    if units == 0 then return s end
    add(s, us, ns, units)
    return s, true
  end,

  charge = function(c, s, counted, cost)
    local kept, total = live(c, s)
    if total + cost > c[1] and not counted then return nil end
    local us, ns = tick_start(c, now_us, now_ns)
    add(kept, us, ns, cost)
    local n = #kept
    -- Counted units know no limit, cells do: the two newest become one, at the later tick.
    if n > CELLS_MAX * 3 then
      kept[n - 5], kept[n - 4] = kept[n - 2], kept[n - 1]
      kept[n - 3] = math.min(kept[n - 3] + kept[n], UNITS_MAX)
      kept[n], kept[n - 1], kept[n - 2] = nil, nil, nil
    end
    return kept
  end,

  -- Those taken at that moment if they still count; the oldest if the moment is not known.
  refund = function(c, s, back, _, _, taken_us, taken_ns)
    local kept = live(c, s)
    local left = {}
    if taken_us then taken_us, taken_ns = tick_start(c, taken_us, taken_ns) end
    for i = 1, #kept, 3 do
      local units = kept[i + 2]
      if not taken_us or kept[i] == taken_us and kept[i + 1] == taken_ns then
        local out = math.min(units, back)
        units, back = units - out, back - out
      end
      if units > 0 then
        local n = #left
        left[n + 1], left[n + 2], left[n + 3] = kept[i], kept[i + 1], units
      end
    end
    return left
  end,

  room = function(c, s) return c[1] - select(2, live(c, s)) end,

  ttl_ms = function(c, s)
    local n = #s
    if n == 0 then return 0 end
    return floor((s[n - 2] - now_us + c[2]) / 1000) + 2
  end,

  format = function(s)
    local cells = { pack('<I4', #s / 3) }
    for i = 1, #s, 3 do cells[#cells + 1] = pack('<I7I2I7', s[i], s[i + 1], s[i + 2]) end
    return table.concat(cells)
  end,
}
