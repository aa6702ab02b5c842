-- The short way: one request of GCRA checks on one key, with units of any length.
--
-- As gcra_whole.lua, which says how this file is written out, with moments and durations in the
-- three limbs of gcra.lua.
--
--   KEYS   1      the ledger that all the states are in, as gcra.lua draws it
--   ARGV   1      per charge: the constants of gcra.lua, what the charge costs (us, ns, part), 8
--                 doubles, the policy's identity (8), all different; then how long a new ledger
--                 lives, as text (ms)
--          2      the time as two doubles (us, ns) in tests, absent otherwise
--
-- Answers as gcra_whole.lua.

local call, pack, read, find = redis.call, struct.pack, struct.unpack, string.find
local key, args = KEYS[1], ARGV[1]
local LINGER_S = 8

local now_us, now_ns, longer_ms = 0, 0, 2
if ARGV[2] then
  now_us, now_ns = read('<dd', ARGV[2])
  longer_ms = 3600002
else
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

local value, till = redis.pcall('GET', key), 0
if value then
  local kind
  if #value % 24 ~= 5 or #value > 24581 then return nil end
  kind, till = read('<BI4', value)
  if kind ~= 1 then return nil end
end

local denied = false
local @{cap_us@, cap_ns@, cap_part@, scale@, skew@, us@, ns@, part@, id@|, } =
  read('<@{ddddddddc8|}', args)
--each
local at@
cap_us@, cap_ns@ = cap_us@ + now_us, cap_ns@ + now_ns
if cap_ns@ >= 1000 then cap_us@, cap_ns@ = cap_us@ + 1, cap_ns@ - 1000 end
do
  local from_us, from_ns, from_part = now_us, now_ns, 0
  if value then
    at@ = find(value, id@, 6, true)
    if at@ then
      local us, ns, part = read('<I7I2I7', value, at@ + 8)
      if at@ % 24 ~= 6 or us > cap_us@ + skew@ - 1 then return nil end
      if us > now_us or us == now_us and ns >= now_ns then
        from_us, from_ns, from_part = us, ns, part
      end
    end
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
if denied then return pack('<I7I2c1', now_us, now_ns, '0') .. (value or '') end

if not value then
  call('SET', key, pack('<BI4@{c8I7I2I7|}', 1, 0, @{id@, us@, ns@, part@|, }), 'PX',
    string.sub(args, @{72| + } + 1))
elseif at1 and @{at@ == at1 + (@ - 1) * 24 and till * 1000000 > us@| and } then
  call('SETRANGE', key, at1 == 6 and '13' or at1 + 7,
    pack('<@{I7I2I7|c8}', @{us@, ns@, part@|, id@, }))
else
  local last, others = math.max(@{us@|, }), ''
  for at = 6, #value, 24 do
    local us = read('<I7', value, at + 8)
    if us >= now_us and @{at ~= at@| and } then
      others, last = others .. string.sub(value, at, at + 23), math.max(last, us)
    end
  end
  till = math.floor(last / 1000000) + LINGER_S
  call('SET', key, pack('<BI4@{c8I7I2I7|}', 1, till, @{id@, us@, ns@, part@|, }) .. others, 'PX',
    till * 1000 - math.floor(now_us / 1000) + longer_ms)
end
return pack('<I7I2c1', now_us, now_ns, '1') .. (value or '')
