-- Limits: what each kind stores, when it allows a job, and what a start and a response change.
--
--   kind  1 slots   units, window        | in flight 4 | log |   `at` is when the response came
--         2 fixed   units, window        | index 8 | used 4 |    windows aligned to the epoch
--         3 gcra    units, period, burst | us 8 | part 8 |       theoretical arrival time
--         4 first   units, window        | start 8 | used 4 |    a window begins with its first job
--         5 sliding units, window, width | log |                 `at` is when the job started
--         6 leaky   size, interval, drip | level 8 | dripped 8 |
--         7 window  units, window        | early 8 | late 8 | in flight 4 | log |   as 1, but units are
--                   free at the next edge; an edge lies between early and late (0: the epoch), or
--                   what was told fits no windows if early is the later
--         10 + n                         | in flight 4 | as kind n |   charged at the response
--   log   | units in all 4 | (at 8, units 4) ... |, oldest first; each counts until `at` + window
--
-- A state in memory is { kind, ... }; of kinds above 10 it is { kind, in flight, state of kind n }, and
-- the limit has that of kind n as `base`. Every arithmetic is on integers below
-- 2^53: nothing is rounded but a GCRA's unit, which is kept as whole microseconds and `part` / units.

local function log_load(limit, value, from, upto)
  return log_rest(limit, value, from + 4, upto, (read('<I4', value, from)))
end

-- The state of slots from the bytes of a log, of `used` units in all. What does not count any more
-- is dropped when a job starts or is answered, not before: under another limit it may count again.
local function slots_load(limit, flight, value, from, upto, used)
  local log, rest = log_rest(limit, value, from, upto, used)
  if rest == used then return { 1, flight, log, used } end
  return { 1, flight, log, rest, sub(value, from, upto - 1), used }
end

-- Windows of an upstream: their edges, as well as they are known (schedule/cooling.rs).
local grid = { EDGE_KEPT = 86400000000 }

-- The first moment after `at` that lies whole windows from `early`.
function grid.early_after(early, window, at)
  local phase = early % window
  if at < phase then return phase end
  return (floor((at - phase) / window) + 1) * window + phase
end

-- When what was answered `at` is free.
function grid.frees(limit, s, at)
  -- What was told fits no windows.
  if s[7] > s[8] then return at + limit.window end
  return grid.early_after(s[7], limit.window, at) + s[8] - s[7]
end

function grid.load(limit, value, from, upto)
  local s = { 7, 0, '', 0, false, false, 0, 0 }
  if not value then return s end
  local used, at
  s[7], s[8], s[2], used, at = read('<ddI4I4', value, from)
  -- Clocks drift apart.
  if s[8] + grid.EDGE_KEPT <= now then s[7], s[8] = 0, 0 end
  local first, rest = at, used
  while at < upto do
    local when, units = read('<dI4', value, at)
    if grid.frees(limit, s, when) > now then break end
    at, rest = at + 12, rest - units
  end
  s[3], s[4] = sub(value, at, upto - 1), rest
  if s[3] ~= '' and now < Q.behind
    and read('<d', value, upto - 12) > now + limit.window / EXACT + SKEW then
    s[3] = pack('<dI4', now, rest)
  elseif at > first then
    s[5], s[6] = sub(value, first, upto - 1), used
  end
  return s
end

-- Of a group whose call was made at `made`, and refused with a `wait` until an edge: of the shortest
-- windows that are as long, or the longest there are.
function grid.told(g, made, wait)
  local best
  for n, limit in ipairs(g.limits) do
    local window, found = limit.window, best and g.limits[best].window
    if limit.kind == 7 and (not best or (window >= wait and (found < wait or window < found))
      or (window < wait and found < wait and window > found)) then
      best = n
    end
  end
  if not best then return end
  local s, window, late = g.states[best], g.limits[best].window, now + wait
  if s[7] > s[8] then return end
  -- A wait may have been rounded up: to whole milliseconds, or seconds.
  local rounded = wait % 1000000 == 0 and 1000000 or 1000
  local early = max(min(made + wait - rounded, late), late - window)
  if s[8] > 0 then
    local from = grid.early_after(s[7], window, late - window)
    early, late = max(early, from), min(late, from + s[8] - s[7])
  end
  s[7], s[8] = early, late
end

-- When `units` of a log will have passed; STUCK if it has not that many.
local function log_frees(limit, log, units)
  for pos = 1, #log, 12 do
    local at, n = read('<dI4', log, pos)
    units = units - n
    if units <= 0 then return at + limit.window end
  end
  return STUCK
end

-- The log without `units` that were written `at`, and how many there were.
local function log_drop(log, at, units)
  for pos = 1, #log, 12 do
    local when, n = read('<dI4', log, pos)
    if when == at then
      local back = min(n, units)
      local rest = n > back and pack('<dI4', at, n - back) or ''
      return log:sub(1, pos - 1) .. rest .. log:sub(pos + 12), back
    end
  end
  return log, 0
end

-- `weight` units of a GCRA in microseconds, and the part of a microsecond beyond, in 1 / units.
local function gcra_cost(limit, weight)
  local whole = floor(limit.window / limit.units)
  local parts = weight * (limit.window - whole * limit.units)
  local carry = floor(parts / limit.units)
  return weight * whole + carry, parts - carry * limit.units
end

-- The state of a limit at `now`, from the bytes `from` to `upto` of `value`, or vacant.
local function limit_load(limit, value, from, upto)
  local kind = limit.kind
  if kind > 10 then
    if not value then return { kind, 0, limit_load(limit.base) } end
    local flight, at = read('<I4', value, from)
    return { kind, flight, limit_load(limit.base, at < upto and value, at, upto) }
  elseif kind == 7 then
    return grid.load(limit, value, from, upto)
  elseif kind == 1 then
    if not value then return { 1, 0, '', 0 } end
    local flight, used = read('<I4I4', value, from)
    return slots_load(limit, flight, value, from + 8, upto, used)
  elseif kind == 5 then
    if not value then return { 5, 0, '', 0 } end
    local log, used = log_load(limit, value, from, upto)
    return { 5, 0, log, used }
  elseif kind == 2 then
    local index = floor(now / limit.window)
    if value then
      local stored, used = read('<dI4', value, from)
      -- One in the future was counted before the clock was set back: it counts now.
      if stored >= index then return { 2, index, used } end
    end
    return { 2, index, 0 }
  elseif kind == 3 then
    local us, part = 0, 0
    if value then us, part = read('<dd', value, from) end
    if us < now then us, part = now, 0 end
    local room = gcra_cost(limit, limit.c)
    if us > now + room + SKEW then us, part = now + room, 0 end
    return { 3, us, part }
  elseif kind == 4 then
    if value then
      local start, used = read('<dI4', value, from)
      if start + limit.window > now then return { 4, min(start, now), used } end
    end
    return { 4, now, 0 }
  end
  local level, dripped = 0, now
  if value then
    level, dripped = read('<dd', value, from)
    dripped = min(dripped, now + SKEW)
    local drips = max(0, floor((now - dripped) / limit.window))
    level, dripped = level - drips * limit.c, dripped + drips * limit.window
    if level <= 0 then level, dripped = 0, now end
  end
  return { 6, level, dripped }
end

-- When a job of this weight may start: 0 if now, STUCK if only a response can tell.
local function limit_ready(limit, state, weight)
  local kind, units = state[1], limit.units
  if kind > 10 then
    -- What is in flight may be counted at any moment from now on.
    local most = kind == 13 and limit.c or units
    local wanted = state[2] + min(weight, most)
    return wanted > most and STUCK or limit_ready(limit.base, state[3], wanted)
  elseif kind == 7 then
    local over, log = state[2] + state[4] + min(weight, units) - units, state[3]
    if over <= 0 then return 0 end
    for pos = 1, #log, 12 do
      local at, n = read('<dI4', log, pos)
      over = over - n
      if over <= 0 then return grid.frees(limit, state, at) end
    end
    return STUCK
  elseif kind == 3 then
    weight = min(weight, limit.c)
    local us, part = gcra_cost(limit, weight)
    local room_us, room_part = gcra_cost(limit, limit.c)
    us, part = state[2] + us - room_us, state[3] + part - room_part
    if part > 0 then us = us + ((part > units) and 2 or 1) end
    return us <= now and 0 or us
  end
  weight = min(weight, units)
  if kind == 1 or kind == 5 then
    local over = state[2] + state[4] + weight - units
    if over <= 0 then return 0 end
    return log_frees(limit, state[3], over)
  elseif kind == 6 then
    local over = state[2] + weight - units
    if over <= 0 then return 0 end
    return state[3] + ceil(over / limit.c) * limit.window
  end
  if state[3] + weight <= units then return 0 end
  if kind == 2 then return (state[2] + 1) * limit.window end
  return state[2] + limit.window
end

-- How many units a job of this weight takes.
local function limit_units(limit, weight)
  return min(weight, limit.kind % 10 == 3 and limit.c or limit.units)
end

local function limit_take(limit, state, weight)
  local kind, units = state[1], limit.units
  if kind > 6 then
    state[2] = state[2] + limit_units(limit, weight)
    if kind == 7 then state[5], state[6] = false, false end
    return
  elseif kind == 3 then
    local us, part = gcra_cost(limit, min(weight, limit.c))
    us, part = state[2] + us, state[3] + part
    if part >= units then us, part = us + 1, part - units end
    state[2], state[3] = us, part
    return
  end
  weight = min(weight, units)
  if kind == 1 or kind == 6 then
    state[2], state[5], state[6] = state[2] + weight, nil, nil
  elseif kind == 5 then
    local at = limit.c > 1 and now - now % limit.c or now
    state[3], state[4] = log_add(limit, state[3], at, weight), state[4] + weight
  else
    state[3] = state[3] + weight
  end
end

-- The call that took `units` was answered `at`.
local function limit_answer(limit, state, units, at)
  local kind = state[1]
  if kind ~= 1 and kind < 7 then return end
  units = min(units, state[2])
  state[2] = state[2] - units
  if units == 0 then return end
  if kind > 10 then return limit_take(limit.base, state[3], units) end
  if kind == 7 then state[5], state[6] = false, false end
  if (kind == 7 and grid.frees(limit, state, at) or at + limit.window) > now then
    state[3], state[4] = log_add(limit, state[3], at, units), state[4] + units
    state[5], state[6] = false, false
  end
end

-- The call that took `units` at `taken` was refused, or never made.
local function limit_refund(limit, state, units, taken)
  local kind = state[1]
  if kind == 1 or kind >= 6 then
    state[2] = max(0, state[2] - units)
  elseif kind == 2 then
    if state[2] == floor(taken / limit.window) then state[3] = max(0, state[3] - units) end
  elseif kind == 4 then
    if taken >= state[2] then state[3] = max(0, state[3] - units) end
  elseif kind == 5 then
    local back
    state[3], back = log_drop(state[3], on_grid(limit, taken - taken % max(1, limit.c)), units)
    state[4] = state[4] - back
  else
    local us, part = gcra_cost(limit, units)
    us, part = state[2] - us, state[3] - part
    if part < 0 then us, part = us - 1, part + limit.units end
    if us < now then us, part = now, 0 end
    state[2], state[3] = us, part
  end
end

-- The bytes of a state, and until when they say something; nothing if they say nothing.
local function limit_format(limit, state)
  local kind = state[1]
  if kind > 10 then
    local bytes, upto = limit_format(limit.base, state[3])
    if state[2] == 0 and bytes == '' then return '', 0 end
    return pack('<I4', state[2]) .. bytes, state[2] > 0 and STUCK or upto
  elseif kind == 7 then
    local log, used, upto = state[5] or state[3], state[6] or state[4], 0
    if state[8] > 0 and state[8] + grid.EDGE_KEPT > now then upto = state[8] + grid.EDGE_KEPT end
    if log ~= '' then upto = max(upto, grid.frees(limit, state, (read('<d', log, #log - 11)))) end
    if state[2] > 0 then upto = STUCK end
    if upto == 0 then return '', 0 end
    return pack('<ddI4I4', state[7], state[8], state[2], used) .. log, upto
  elseif kind == 1 or kind == 5 then
    local log, used = state[5] or state[3], state[6] or state[4]
    local flight = kind == 1 and state[2] or 0
    if flight == 0 and log == '' then return '', 0 end
    local upto = flight > 0 and STUCK or read('<d', log, #log - 11) + limit.window
    return (kind == 1 and pack('<I4I4', flight, used) or pack('<I4', used)) .. log, upto
  elseif kind == 2 then
    if state[3] == 0 then return '', 0 end
    return pack('<dI4', state[2], state[3]), (state[2] + 1) * limit.window
  elseif kind == 3 then
    if state[2] <= now and state[3] == 0 then return '', 0 end
    return pack('<dd', state[2], state[3]), state[2] + 1
  elseif kind == 4 then
    if state[3] == 0 then return '', 0 end
    return pack('<dI4', state[2], state[3]), state[2] + limit.window
  end
  if state[2] == 0 then return '', 0 end
  return pack('<dd', state[2], state[3]), state[3] + ceil(state[2] / limit.c) * limit.window
end
