-- The short way for a batch: requests that check GCRA states and do nothing else.
--
-- Before it stands time.lua. ARGV[1] to ARGV[3] are those of decide.lua, KEYS are ledgers alone, as
-- gcra.lua draws them. Their rules are repeated here without functions: creating those costs a
-- script more than deciding does. The answer is the same, but for the values, which are the
-- ledgers' and stand in a table of their own.
-- Whatever is out of the ordinary (a counted charge, a ledger with returns to make or longer than
-- the 24581 bytes of ENTRIES_MAX, a state under other numbers, one that a set-back clock left in the
-- future, somebody else's data) is not decided here: the answer is then nil, nothing has been
-- written, and the caller asks again with the whole script.

-- Time in tests does not pass as the server's does: what they wrote must not expire by it.
local longer_ms = ARGV[1] == '' and 2 or 3600002
local LINGER_S, SPEC_LEN = 8, 53
local requests, find, sub, max = ARGV[3], string.find, string.sub, math.max
local n = #ARGV[2] / SPEC_LEN

local values, till = redis.call('MGET', unpack(KEYS)), {}
-- MGET shows a list or a hash as nothing: ask, or a write would replace it.
local absent
for h = 1, #KEYS do
  local value, kind = values[h], 1
  if not value then
    absent = absent or {}
    absent[#absent + 1] = KEYS[h]
  elseif #value % 24 ~= 5 or #value > 24581 then
    return nil
  else
    kind, till[h] = read('<BI4', value)
    if kind ~= 1 then return nil end
  end
end
if absent and redis.call('EXISTS', unpack(absent)) > 0 then return nil end

-- The states side by side, one table per limb; `at` is where a state stands in its ledger.
local us, ns, part, cap_us, cap_ns, cap_part, scale = {}, {}, {}, {}, {}, {}, {}
local home, id, at = {}, {}, {}
for k = 1, n do
  local to_us, to_ns, skew_us, _
  _, home[k], id[k], _, to_us, to_ns, cap_part[k], scale[k], skew_us =
    read('<BI2c8I2ddddd', ARGV[2], (k - 1) * SPEC_LEN + 1)
  to_us, to_ns = to_us + now_us, to_ns + now_ns
  if to_ns >= 1000 then to_us, to_ns = to_us + 1, to_ns - 1000 end
  cap_us[k], cap_ns[k] = to_us, to_ns
  us[k], ns[k], part[k] = now_us, now_ns, 0
  local value = values[home[k]]
  local place = value and find(value, id[k], 6, true)
  if place then
    local tat_us, tat_ns, tat_part = read('<I7I2I7', value, place + 8)
    if place % 24 ~= 6 or tat_us > to_us + skew_us - 1 then return nil end
    if tat_us > now_us or tat_us == now_us and tat_ns >= now_ns then
      us[k], ns[k], part[k] = tat_us, tat_ns, tat_part
    end
    at[k] = place
  elseif value and find(value, sub(id[k], 1, 5), 6, true) then
    return nil
  end
end

local digits, dirty, pos = {}, {}, 1
while pos <= #requests do
  local charges = read('<I2', requests, pos + 1)
  pos = pos + 19
  local allowed, undo = true, nil
  for charge = pos, pos + (charges - 1) * 27, 27 do
    local k, mode, cost_us, cost_ns, cost_part = read('<I2Bddd', requests, charge)
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

-- States that stand in their ledger change in place while it lives long enough; ledgers with others
-- are written anew, with the states that came or outgrew them first.
local anew
for k in pairs(dirty) do
  local h = home[k]
  if not at[k] or till[h] * 1000000 <= us[k] then
    anew = anew or {}
    anew[h] = anew[h] or {}
  end
end
for k in pairs(dirty) do
  local states = anew and anew[home[k]]
  if states then
    states[#states + 1] = k
  else
    redis.call('SETRANGE', KEYS[home[k]], at[k] + 7, pack('<I7I2I7', us[k], ns[k], part[k]))
  end
end
for h, states in pairs(anew or {}) do
  local entries, last, taken = { '' }, 0, {}
  for i = 1, #states do
    local k = states[i]
    entries[i + 1] = pack('<c8I7I2I7', id[k], us[k], ns[k], part[k])
    last = max(last, us[k])
    if at[k] then taken[at[k]] = true end
  end
  local value, till_s, px = values[h], 0, 0
  if value then
    for place = 6, #value, 24 do
      local to_us = read('<I7', value, place + 8)
      if to_us >= now_us and not taken[place] then
        entries[#entries + 1], last = sub(value, place, place + 23), max(last, to_us)
      end
    end
    till_s = floor(last / 1000000) + LINGER_S
    px = till_s * 1000 - floor(now_us / 1000) + longer_ms
  else
    px = floor((last - now_us) / 1000) + longer_ms
  end
  entries[1] = pack('<BI4', 1, till_s)
  redis.call('SET', KEYS[h], table.concat(entries), 'PX', px)
end
return { now_us, now_ns, table.concat(digits), values }
