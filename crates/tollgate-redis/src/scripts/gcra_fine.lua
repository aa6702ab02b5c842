-- The short way: one request of GCRA checks whose units need not last whole microseconds.
--
-- As gcra_whole.lua, which says how this file is written out, with moments and durations in the
-- three limbs of gcra.lua.
--
--   KEYS   1..n   states, all different, as in decide.lua
--   ARGV   1      per charge: what the bucket holds (us, ns, part), scale, what the charge costs
--                 (us, ns, part), 7 doubles; then how long a new state lives, as in gcra_whole.lua
--          2      the time as two doubles (us, ns) in tests, absent otherwise
--
-- Answers as gcra_whole.lua.

local call, pcall, pack, read = redis.call, redis.pcall, struct.pack, struct.unpack
local KEYS, args = KEYS, ARGV[1]
local SKEW_US, LINGER_S = 10000, 8

local now_us, now_ns, longer_ms = 0, 0, 2
if ARGV[2] then
  now_us, now_ns = read('<dd', ARGV[2])
  longer_ms = 3600002
else
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

local denied = false
local @{cap_us@, cap_ns@, cap_part@, scale@, us@, ns@, part@|, } = read('<@{ddddddd|}', args)
--each
local key@ = KEYS[@]
local value@ = pcall('GET', key@)
local till@ = 0
cap_us@, cap_ns@ = cap_us@ + now_us, cap_ns@ + now_ns
if cap_ns@ >= 1000 then cap_us@, cap_ns@ = cap_us@ + 1, cap_ns@ - 1000 end
do
  local from_us, from_ns, from_part = now_us, now_ns, 0
  if value@ then
    local kind, us, ns, part = 0, 0, 0, 0
    if #value@ == 12 then
      kind, us, till@ = read('<BI7I4', value@)
    elseif #value@ == 21 then
      kind, us, ns, part, till@ = read('<BI7I2I7I4', value@)
    end
    if kind ~= 1 or us > cap_us@ + SKEW_US - 1 then return nil end
    if us > now_us or us == now_us and ns >= now_ns then
      from_us, from_ns, from_part = us, ns, part
    end
    -- A state that was whole must be written anew to hold the rest.
    if #value@ == 12 then till@ = 0 end
  end
  us@, ns@, part@ = us@ + from_us, ns@ + from_ns, part@ + from_part
end
if part@ >= scale@ then part@, ns@ = part@ - scale@, ns@ + 1 end
if ns@ >= 1000 then ns@, us@ = ns@ - 1000, us@ + 1 end
if us@ > cap_us@ or us@ == cap_us@ and (ns@ > cap_ns@
  or ns@ == cap_ns@ and part@ > cap_part@) then
  denied = true
end
--end
if denied then
  return pack('<I7I2c1@{B|}', now_us, now_ns, '0', @{#(value@ or '')|, }) .. @{(value@ or '')| .. }
end
--each
if till@ * 1000000 > us@ then
  call('SETRANGE', key@, '1', pack('<I7I2I7', us@, ns@, part@))
elseif value@ then
  till@ = math.floor(us@ / 1000000) + LINGER_S
  call('SET', key@, pack('<BI7I2I7I4', 1, us@, ns@, part@, till@), 'PX',
    till@ * 1000 - math.floor(now_us / 1000) + longer_ms)
else
  call('SET', key@, pack('<BI7I2I7I4', 1, us@, ns@, part@, 0), 'PX',
    (select(@, read('<@{Bc0|}', args, @{56| + } + 1))))
end
--end
return pack('<I7I2c1@{B|}', now_us, now_ns, '1', @{#(value@ or '')|, }) .. @{(value@ or '')| .. }
