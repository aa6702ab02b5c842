-- The short way for different keys, with units of any length.
--
-- As gcra_apart.lua, with moments and durations in the three limbs of gcra.lua.
--
--   KEYS   1..n   the ledgers, all different, as gcra.lua draws them
--   ARGV   1      per charge: what the bucket holds (us), scale, what the charge costs (us, ns,
--                 part), 5 doubles, the policy's identity (8); then per charge the rest of what the
--                 bucket holds (ns, part) and how far beyond that a TAT is believed (us), doubles;
--                 then per charge how long a new ledger lives, as text (ms) after its length (1)
--          2      the time as two doubles (us, ns) in tests, absent otherwise
--
-- Answers doubles: the time (us, negative if the request is denied, and ns), then per charge the
-- TAT before (us, ns, part), zeros if there was none; or nil as gcra_check.lua does.

local call, pack, read, find, sub = redis.call, struct.pack, struct.unpack, string.find, string.sub
local KEYS, args = KEYS, ARGV[1]
local LINGER_S = 8

local now_us, now_ns, longer_ms = 0, 0, 2
if ARGV[2] then
  now_us, now_ns = read('<dd', ARGV[2])
  longer_ms = 3600002
else
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

local @{value@|, } = unpack(call('MGET', @{KEYS[@]|, }))
local @{life@|, }
if not (@{value@| and }) then
  -- MGET shows a list or a hash as nothing: count, or a write would replace it.
  if call('EXISTS', @{KEYS[@]|, }) > @{(value@ and 1 or 0)| + } then return nil end
  @{life@|, } = read('<@{Bc0|}', args, @{72| + } + 1)
end

local is_close = false
local @{cap_us@, scale@, us@, ns@, part@, id@|, } = read('<@{dddddd|}', args)
-- `at` is where SETRANGE finds the TAT: as text where it usually is, for a number is made text.
--each
local at@, till@, was_us@, was_ns@, was_part@ = '13', 0, 0, 0, 0
if value@ then
  local id
  if #value@ == 29 then
    till@, id, was_us@, was_ns@, was_part@ = read('<I4dI7I2I7', value@, 2)
  end
  if id ~= id@ then
    local kind
    if #value@ % 24 ~= 5 or #value@ > 24581 then return nil end
    kind, till@ = read('<BI4', value@)
    if kind ~= 1 then return nil end
    at@ = find(value@, sub(args, @ * 48 - 7, @ * 48), 6, true)
    was_us@, was_ns@, was_part@ = 0, 0, 0
    if at@ then
      if at@ % 24 ~= 6 then return nil end
      was_us@, was_ns@, was_part@ = read('<I7I2I7', value@, at@ + 8)
      at@ = at@ + 7
    end
  end
end
if was_us@ > now_us or was_us@ == now_us and was_ns@ >= now_ns then
  us@, ns@, part@ = us@ + was_us@, ns@ + was_ns@, part@ + was_part@
else
  us@, ns@ = us@ + now_us, ns@ + now_ns
end
if part@ >= scale@ then part@, ns@ = part@ - scale@, ns@ + 1 end
if ns@ >= 1000 then ns@, us@ = ns@ - 1000, us@ + 1 end
-- Further from full than the limbs that were not read, and their carries, come to.
if us@ - now_us > cap_us@ - 2 then is_close = true end
--end
if is_close then
  local denied = false
  local @{cap_ns@, cap_part@, skew@|, } = read('<@{ddd|}', args, @{48| + } + 1)
--each
  cap_us@, cap_ns@ = cap_us@ + now_us, cap_ns@ + now_ns
  if cap_ns@ >= 1000 then cap_us@, cap_ns@ = cap_us@ + 1, cap_ns@ - 1000 end
  if was_us@ > cap_us@ + skew@ - 1 then return nil end
  if us@ > cap_us@ or us@ == cap_us@ and (ns@ > cap_ns@
    or ns@ == cap_ns@ and part@ > cap_part@) then
    denied = true
  end
--end
  if denied then
    return pack('<dd@{ddd|}', -now_us, now_ns, @{was_us@, was_ns@, was_part@|, })
  end
end

--each
if at@ and till@ * 1000000 > us@ then
  call('SETRANGE', KEYS[@], at@, pack('<I7I2I7', us@, ns@, part@))
elseif value@ then
  local last, others = us@, ''
  for at = 6, #value@, 24 do
    local us = read('<I7', value@, at + 8)
    if us >= now_us and at + 7 ~= tonumber(at@) then
      others, last = others .. sub(value@, at, at + 23), math.max(last, us)
    end
  end
  till@ = math.floor(last / 1000000) + LINGER_S
  local id = sub(args, @ * 48 - 7, @ * 48)
  call('SET', KEYS[@], pack('<BI4c8I7I2I7', 1, till@, id, us@, ns@, part@) .. others, 'PX',
    till@ * 1000 - math.floor(now_us / 1000) + longer_ms)
else
  local id = sub(args, @ * 48 - 7, @ * 48)
  call('SET', KEYS[@], pack('<BI4c8I7I2I7', 1, 0, id, us@, ns@, part@), 'PX', life@)
end
--end
return pack('<dd@{ddd|}', now_us, now_ns, @{was_us@, was_ns@, was_part@|, })
