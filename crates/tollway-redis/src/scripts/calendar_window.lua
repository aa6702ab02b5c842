-- Calendar window: when it starts and ends, and how much of what it may hold is gone. See
-- tollway_core::calendar_window.
--
--   value   | head, of kind 6 | start us: 7 bytes | end us: 7 | debt: 7 |      little endian
--
-- Nothing here knows a calendar. The caller sends the edges of three windows: the one that it takes
-- for the current one, and those before and after it. Whose clock is further off is told the
-- server's time instead of an answer, and asks again. A window keeps the end with which it was
-- opened, whatever edges others send.
--
--   constants   units, carry, grace, and in microseconds: before, start, ends, after
--   state       { start_us, end_us, debt }

-- What is owed when the next window begins.
local function owed(c, debt) return math.min(math.max(debt - c[1], 0), c[2]) end

local function window_of(c, us)
  if us < c[5] then return c[4], c[5] end
  if us < c[6] then return c[5], c[6] end
  return c[6], c[7]
end

-- The window that now falls into, with its debt.
local function entered(c, s)
  if now_us < s[2] then return s end
  local start_us, end_us = window_of(c, now_us)
  local debt = 0
  -- The last window may end in this one, if it was opened by other rules.
  if s[2] >= start_us then debt = owed(c, s[3]) end
  return { math.max(start_us, s[2]), end_us, debt }
end

algorithms[6] = {
  constants = '<ddddddd',

  has_now = function(c) return c[4] <= now_us and now_us + SKEW_US < c[7] end,

  vacant = function() return { 0, 0, 0 } end,

  parse = function(value)
    if #value < HEAD_LEN + 21 then return nil end
    local start_us, end_us, debt, tail = read('<I7I7I7', value, HEAD_LEN + 1)
    return { start_us, end_us, debt }, tail
  end,

  repair = function(c, s)
    if s[1] <= now_us then return s end
    local start_us, end_us = window_of(c, now_us + SKEW_US)
    if s[1] > start_us then return { start_us, end_us, s[3] }, true end
    return s
  end,

  charge = function(c, s, counted, cost)
    local window = entered(c, s)
    local wanted = window[3] + cost
    if wanted > c[1] + c[2] + c[3] and not counted then return nil end
    return { window[1], window[2], math.min(wanted, UNITS_MAX) }
  end,

  -- To the window that they were taken from: what is unused of it then is carried over.
  refund = function(c, s, back, _, _, taken_us)
    local window = taken_us and s or entered(c, s)
    if taken_us and taken_us < window[1] then back = 0 end
    return { window[1], window[2], math.max(window[3] - back, 0) }
  end,

  room = function(c, s) return c[1] + c[2] + c[3] - entered(c, s)[3] end,

  -- What is owed counts in the next window too, which is shorter than two are.
  ttl_ms = function(c, s)
    if s[3] == 0 then return 0 end
    local next_us = owed(c, s[3]) > 0 and c[7] - c[5] or 0
    return floor((s[2] - now_us + next_us) / 1000) + 2
  end,

  format = function(s) return pack('<I7I7I7', s[1], s[2], s[3]) end,
}
