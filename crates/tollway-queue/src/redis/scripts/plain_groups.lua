-- Plain groups: they have one limit, of slots, and there is nothing else to know of them. Most groups of
-- most queues are; their states change without being loaded (groups.lua).
--
-- In a log of a limit of more than EXACT units, times are rounded up to a grid of window / EXACT: it
-- stays short, and a slot frees late by at most that, never early.

local EXACT = 64
local SKEW = 10000

local function log_rest(limit, value, from, upto, used)
  if from == upto then return '', used end
  while from < upto do
    local at, units = read('<dI4', value, from)
    if at + limit.window > now then break end
    from, used = from + 12, used - units
  end
  -- What lies further ahead than the grid rounds was written before the clock was set back.
  if upto > from and now < Q.behind then
    local latest = now + limit.window / EXACT + SKEW
    if read('<d', value, upto - 12) > latest then return pack('<dI4', now, used), used end
  end
  return sub(value, from, upto - 1), used
end

local function on_grid(limit, at)
  if limit.units <= EXACT then return at end
  local grid = max(1, floor(limit.window / EXACT))
  return ceil(at / grid) * grid
end

local function log_add(limit, log, at, units)
  at = on_grid(limit, at)
  local tail = #log - 11
  -- An expired lease counts from its expiry, which may be before a response that was seen already.
  while tail > 0 do
    local last, n = read('<dI4', log, tail)
    if last == at then
      return log:sub(1, tail - 1) .. pack('<dI4', at, n + units) .. log:sub(tail + 12)
    elseif last < at then
      break
    end
    tail = tail - 12
  end
  if tail + 11 == #log then return log .. pack('<dI4', at, units) end
  return log:sub(1, tail + 11) .. pack('<dI4', at, units) .. log:sub(tail + 12)
end

-- The log that begins at `from` in `value`, without what does not count any more, and with `units` that
-- count from now on, in two parts; and how many they are.
local function log_after(limit, value, from, used, units)
  if units > 0 and limit.window > 0 then
    local at, first, last, many = on_grid(limit, now), now, 0, 0
    if from < #value then first, last, many = read('<d', value, from), read('<dI4', value, #value - 11) end
    -- Most logs lose nothing and grow at their end.
    if first + limit.window > now and last <= at and now >= Q.behind then
      if last < at then return sub(value, from), pack('<dI4', at, units), used + units end
      return sub(value, from, -13), pack('<dI4', at, many + units), used + units
    end
  end
  local log, rest = log_rest(limit, value, from, #value + 1, used)
  if units > 0 and limit.window > 0 then log, rest = log_add(limit, log, now, units), rest + units end
  return log, '', rest
end

local function is_plain(limits) return #limits == 1 and limits[1].kind == 1 end
local plain = is_plain(Q.group_limits)
local is_wide = #Q.queue_limits > 0 or #Q.shared > 0
local HEAD, HEAD_LENGTH, WAITING_AT = '<I4dI4I4I4I4d', 36, 17
local PLAIN, PLAIN_LENGTH, BODY = HEAD .. 'BI4I4I4', 49, HEAD_LENGTH + 5

-- What a job of one unit takes of the limits that bind it, for its lease.
local ONE_UNIT = pack('<BI4BB', 1, 1, 0, 0)

-- Takes a member out of l if no lease of it is left; whether it did.
local function is_over(member)
  local ids = {}
  for id in member:gmatch('%d+') do ids[#ids + 1] = id end
  for _, lease in ipairs(call('HMGET', P .. 'r', unpack(ids))) do
    if lease then return false end
  end
  return call('ZREM', P .. 'l', member) == 1
end

-- Whether groups may be plain, and no lease has expired: only then need nothing be loaded.
local function is_calm()
  if not plain or is_wide or (Q.deadline and Q.deadline <= now) then return false end
  for _ = 1, 20 do
    local member = call('ZRANGEBYSCORE', P .. 'l', '-inf', now, 'LIMIT', 0, 1)[1]
    if not member then return true end
    if not is_over(member) then return false end
  end
  return false
end

-- The state of a plain group with a job less in its line, which has room for the first and for
-- another, of which there is one. Nothing if the group is not like that.
local function state_after_start(value)
  if not value or #value < PLAIN_LENGTH then return nil end
  local running, blocked, deficit, waiting, odd, aside, turn, kind, length, flight, used =
    read(PLAIN, value)
  if waiting < 2 or odd + aside > 0 or blocked > now or deficit ~= 0 or kind ~= 1
    or length ~= #value - BODY or flight + used + 2 > Q.group_limits[1].units then
    return nil
  end
  local log, limit = sub(value, PLAIN_LENGTH + 1), Q.group_limits[1]
  if log ~= '' and read('<d', log) + limit.window <= now then
    log, used = log_rest(limit, log, 1, #log + 1, used)
  end
  return pack(PLAIN, running + 1, blocked, 0, waiting - 1, 0, 0, turn, 1, 8 + #log, flight + 1, used)
    .. log
end

-- The state of a plain group after so many jobs of one unit are done; nothing if it is not one.
local function state_after_done(value, jobs)
  if not value or #value < PLAIN_LENGTH then return nil end
  local limit = Q.group_limits[1]
  local running, blocked, deficit, waiting, odd, aside, turn, kind, length, flight, used =
    read(PLAIN, value)
  if aside > 0 or kind ~= 1 or length ~= #value - BODY or running < jobs then return nil end
  -- A response may let a group start that waits for one, and ends one that has nothing else.
  local is_placed = turn > 0 and turn < RING or turn < STUCK and limit.window > 0
    or turn >= STUCK and waiting == 0 and running > jobs
  if not is_placed then return nil end
  local units = min(jobs, flight)
  local log, tail, rest = log_after(limit, value, PLAIN_LENGTH + 1, used, units)
  return pack(PLAIN, running - jobs, blocked, deficit, waiting, odd, 0, turn, 1, 8 + #log + #tail,
    flight - units, rest) .. log .. tail
end
