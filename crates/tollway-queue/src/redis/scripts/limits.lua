-- Limits: what each kind stores, when it allows a job, and what a start and a response change.
--
--   kind  1 slots   units, window        | in flight 4 | log |   `at` is when the response came
--         2 window  units, window        | index 8 | used 4 |    windows aligned to the epoch
--         3 gcra    units, period, burst | us 8 | part 8 |       theoretical arrival time
--         4 first   units, window        | start 8 | used 4 |    a window begins with its first job
--         5 sliding units, window, width | log |                 `at` is when the job started
--         6 leaky   size, interval, drip | level 8 | dripped 8 |
--   log   | units in all 4 | (at 8, units 4) ... |, oldest first; each counts until `at` + window
--
-- A state in memory is { kind, ... }. Every arithmetic is on integers below
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
  if kind == 1 then
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
  if kind == 3 then
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

local function limit_take(limit, state, weight)
  local kind, units = state[1], limit.units
  if kind == 3 then
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

-- How many units a job of this weight takes.
local function limit_units(limit, weight)
  return min(weight, limit.kind == 3 and limit.c or limit.units)
end

-- The call that took `units` was answered `at`.
local function limit_answer(limit, state, units, at)
  if state[1] ~= 1 then return end
  units = min(units, state[2])
  state[2] = state[2] - units
  if units > 0 and at + limit.window > now then
    state[3], state[4] = log_add(limit, state[3], at, units), state[4] + units
    state[5], state[6] = nil, nil
  end
end

-- The call that took `units` at `taken` was refused, or never made.
local function limit_refund(limit, state, units, taken)
  local kind = state[1]
  if kind == 1 or kind == 6 then
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
  if kind == 1 or kind == 5 then
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
