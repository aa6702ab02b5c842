-- The short way for a batch: requests that check GCRA states and do nothing else.
--
-- Before it stands time.lua. KEYS, ARGV[1] to ARGV[3] and the value of a state are those of
-- decide.lua and gcra.lua, whose rules this repeats without functions: creating those costs a
-- script more than deciding does. The answer is the same, but for the values, which stand in a
-- table of their own.
-- Whatever is out of the ordinary (a counted charge, a state with returns to make, one that a
-- set-back clock left in the future, somebody else's data) is not decided here: the answer is then
-- nil, nothing has been written, and the caller asks again with the whole script.

-- Time in tests does not pass as the server's does: what they wrote must not expire by it.
local longer_ms = ARGV[1] == '' and 2 or 3600002
local LINGER_S = 8
local requests = ARGV[3]
local n = #ARGV[2] / 33

local values = redis.call('MGET', unpack(KEYS, 1, n))
-- MGET shows a list or a hash as nothing: ask, or a write would replace it.
local absent
for k = 1, n do
  if not values[k] then
    absent = absent or {}
    absent[#absent + 1] = KEYS[k]
  end
end
if absent and redis.call('EXISTS', unpack(absent)) > 0 then return nil end

-- The states side by side, one table per limb.
local us, ns, part, cap_us, cap_ns, cap_part, scale, till = {}, {}, {}, {}, {}, {}, {}, {}
for k = 1, n do
  local value = values[k]
  local to_us, to_ns
  to_us, to_ns, cap_part[k], scale[k] = read('<dddd', ARGV[2], k * 33 - 31)
  to_us, to_ns = to_us + now_us, to_ns + now_ns
  if to_ns >= 1000 then to_us, to_ns = to_us + 1, to_ns - 1000 end
  cap_us[k], cap_ns[k] = to_us, to_ns
  us[k], ns[k], part[k], till[k] = now_us, now_ns, 0, 0
  if value then
    local kind, tat_us, tat_ns, tat_part = 0, 0, 0, 0
    if #value == 12 then
      kind, tat_us, till[k] = read('<BI7I4', value)
    elseif #value == 21 then
      kind, tat_us, tat_ns, tat_part, till[k] = read('<BI7I2I7I4', value)
    end
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
  local to_us, to_ns, to_part = us[k], ns[k], part[k]
  local whole = to_ns == 0 and to_part == 0
  if till[k] * 1000000 > to_us and #values[k] == (whole and 12 or 21) then
    redis.call('SETRANGE', KEYS[k], '1',
      whole and pack('<I7', to_us) or pack('<I7I2I7', to_us, to_ns, to_part))
  else
    local till_s, px = 0, floor((to_us - now_us) / 1000) + longer_ms
    if values[k] then
      till_s = floor(to_us / 1000000) + LINGER_S
      px = till_s * 1000 - floor(now_us / 1000) + longer_ms
    end
    redis.call('SET', KEYS[k], whole and pack('<BI7I4', 1, to_us, till_s)
      or pack('<BI7I2I7I4', 1, to_us, to_ns, to_part, till_s), 'PX', px)
  end
end
return { now_us, now_ns, table.concat(digits), values }
