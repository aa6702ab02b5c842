-- The short way: checks on GCRA states and nothing else, which is most of what is ever asked.
--
-- Before it stands time.lua. KEYS, ARGV[1] to ARGV[3] and the value of a state are those of
-- decide.lua and gcra.lua, whose rules this repeats without functions and tables: creating those
-- costs a script more than deciding does. The answer is the same, but for the values, which may
-- stand in a table of their own.
-- Whatever is out of the ordinary (a state with returns to make, one that a set-back clock left in
-- the future, somebody else's data) is not decided here: the answer is then nil, nothing has been
-- written, and the caller asks again with the whole script.

-- Time in tests does not pass as the server's does: what they wrote must not expire by it.
local longer_ms = ARGV[1] == '' and 2 or 3600002
local requests = ARGV[3]

if #requests == 46 then
  -- One request of one charge.
  local value = redis.pcall('GET', KEYS[1])
  local us, ns, part = now_us, now_ns, 0
  if value then
    if type(value) == 'table' or #value ~= 17 then return nil end
    local kind, tat_us, tat_ns, tat_part = read('<BI7I2I7', value)
    if kind ~= 1 then return nil end
    if tat_us > us or tat_us == us and tat_ns >= ns then us, ns, part = tat_us, tat_ns, tat_part end
  end
  local cap_us, cap_ns, cap_part, scale = read('<dddd', ARGV[2], 2)
  cap_us, cap_ns = cap_us + now_us, cap_ns + now_ns
  if cap_ns >= 1000 then cap_us, cap_ns = cap_us + 1, cap_ns - 1000 end
  if us > cap_us + SKEW_US - 1 then return nil end
  local mode, cost_us, cost_ns, cost_part = read('<Bddd', requests, 22)
  if mode % 2 == 1 then return nil end
  us, ns, part = us + cost_us, ns + cost_ns, part + cost_part
  if part >= scale then part, ns = part - scale, ns + 1 end
  if ns >= 1000 then ns, us = ns - 1000, us + 1 end
  if us < cap_us or us == cap_us and (ns < cap_ns or ns == cap_ns and part <= cap_part) then
    redis.call('SET', KEYS[1], pack('<BI7I2I7', 1, us, ns, part), 'PX',
      floor((us - now_us) / 1000) + longer_ms)
    return { now_us, now_ns, '1', value or '' }
  end
  return { now_us, now_ns, '0', value or '' }
end

local n = #ARGV[2] / 33
local values = redis.call('MGET', unpack(KEYS, 1, n))
-- MGET shows a list or a hash as nothing: ask, or a write would replace it.
local absent
for k = 1, n do
  local value = values[k]
  if not value then
    absent = absent or {}
    absent[#absent + 1] = KEYS[k]
  elseif #value ~= 17 then
    return nil
  end
end
if absent and redis.call('EXISTS', unpack(absent)) > 0 then return nil end

if #requests == 19 + 27 * n and read('<I2', requests, 2) == n then
  -- One request with a state for each charge: nothing is written before all of them are decided.
  local after, ttl_ms = {}, {}
  for k = 1, n do
    local place, mode, us, ns, part = read('<I2Bddd', requests, 27 * k - 7)
    if place ~= k or mode % 2 == 1 then return nil end
    local cap_us, cap_ns, cap_part, scale = read('<dddd', ARGV[2], k * 33 - 31)
    cap_us, cap_ns = cap_us + now_us, cap_ns + now_ns
    if cap_ns >= 1000 then cap_us, cap_ns = cap_us + 1, cap_ns - 1000 end
    local tat_us, tat_ns, tat_part = now_us, now_ns, 0
    if values[k] then
      local kind
      kind, tat_us, tat_ns, tat_part = read('<BI7I2I7', values[k])
      if kind ~= 1 or tat_us > cap_us + SKEW_US - 1 then return nil end
      if tat_us < now_us or tat_us == now_us and tat_ns < now_ns then
        tat_us, tat_ns, tat_part = now_us, now_ns, 0
      end
    end
    us, ns, part = us + tat_us, ns + tat_ns, part + tat_part
    if part >= scale then part, ns = part - scale, ns + 1 end
    if ns >= 1000 then ns, us = ns - 1000, us + 1 end
    if after and (us < cap_us or us == cap_us and (ns < cap_ns
      or ns == cap_ns and part <= cap_part)) then
      after[k], ttl_ms[k] = pack('<BI7I2I7', 1, us, ns, part), floor((us - now_us) / 1000)
    else
      -- The others are still looked at: one of them may need the whole script.
      after = nil
    end
  end
  if not after then return { now_us, now_ns, '0', values } end
  for k = 1, n do
    redis.call('SET', KEYS[k], after[k], 'PX', ttl_ms[k] + longer_ms)
  end
  return { now_us, now_ns, '1', values }
end

-- Several requests: the states side by side, one table per limb.
local us, ns, part, cap_us, cap_ns, cap_part, scale = {}, {}, {}, {}, {}, {}, {}
for k = 1, n do
  local value = values[k]
  local to_us, to_ns
  to_us, to_ns, cap_part[k], scale[k] = read('<dddd', ARGV[2], k * 33 - 31)
  to_us, to_ns = to_us + now_us, to_ns + now_ns
  if to_ns >= 1000 then to_us, to_ns = to_us + 1, to_ns - 1000 end
  cap_us[k], cap_ns[k] = to_us, to_ns
  us[k], ns[k], part[k] = now_us, now_ns, 0
  if value then
    local kind, tat_us, tat_ns, tat_part = read('<BI7I2I7', value)
    if kind ~= 1 or tat_us > to_us + SKEW_US - 1 then return nil end
    if tat_us > now_us or tat_us == now_us and tat_ns >= now_ns then
      us[k], ns[k], part[k] = tat_us, tat_ns, tat_part
    end
  end
end

local digits, dirty, pos = {}, {}, 1
while pos <= #requests do
  local charges = read('<I2', requests, pos + 1)
  pos = pos + 19
  local allowed, undo = true, nil
  for at = pos, pos + (charges - 1) * 27, 27 do
    local k, mode, cost_us, cost_ns, cost_part = read('<I2Bddd', requests, at)
    if mode % 2 == 1 then return nil end
    cost_us, cost_ns, cost_part = us[k] + cost_us, ns[k] + cost_ns, part[k] + cost_part
    if cost_part >= scale[k] then cost_part, cost_ns = cost_part - scale[k], cost_ns + 1 end
    if cost_ns >= 1000 then cost_ns, cost_us = cost_ns - 1000, cost_us + 1 end
    if cost_us > cap_us[k] or cost_us == cap_us[k] and (cost_ns > cap_ns[k]
      or cost_ns == cap_ns[k] and cost_part > cap_part[k]) then
      allowed = false
      break
    end
    if charges > 1 then undo = { k, us[k], ns[k], part[k], undo } end
    us[k], ns[k], part[k] = cost_us, cost_ns, cost_part
    if charges == 1 then dirty[k] = true end
  end
  -- All or nothing: what the charges before a denial took goes back.
  while undo do
    if allowed then
      dirty[undo[1]] = true
    else
      us[undo[1]], ns[undo[1]], part[undo[1]] = undo[2], undo[3], undo[4]
    end
    undo = undo[5]
  end
  digits[#digits + 1] = allowed and '1' or '0'
  pos = pos + charges * 27
end

for k in pairs(dirty) do
  redis.call('SET', KEYS[k], pack('<BI7I2I7', 1, us[k], ns[k], part[k]), 'PX',
    floor((us[k] - now_us) / 1000) + longer_ms)
end
return { now_us, now_ns, table.concat(digits), values }
