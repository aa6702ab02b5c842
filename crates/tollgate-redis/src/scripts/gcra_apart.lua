-- The short way for different keys: one request of GCRA checks, each on a key of its own.
--
-- As gcra_fine.lua, with a ledger for each charge. Such a request costs the server a read and a
-- write per charge.
--
--   KEYS   1..n   the ledgers, all different, as gcra.lua draws them
--   ARGV   1      per charge what gcra_fine.lua takes; then per charge how long a new ledger lives,
--                 as text (ms) after its length (1 byte)
--          2      the time as two doubles (us, ns) in tests, absent otherwise
--
-- Answers | us: 7 bytes | ns: 2 | '1' allowed or '0' denied | length of each ledger: 4 | the ledgers |
-- as they were before, or nil as gcra_check.lua does.

local call, pcall, pack, read, find = redis.call, redis.pcall, struct.pack, struct.unpack, string.find
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

local denied = false
local @{cap_us@, cap_ns@, cap_part@, scale@, skew@, us@, ns@, part@, id@|, } =
  read('<@{ddddddddc8|}', args)
--each
local value@, till@, at@ = pcall('GET', KEYS[@]), 0, nil
cap_us@, cap_ns@ = cap_us@ + now_us, cap_ns@ + now_ns
if cap_ns@ >= 1000 then cap_us@, cap_ns@ = cap_us@ + 1, cap_ns@ - 1000 end
do
  local from_us, from_ns, from_part = now_us, now_ns, 0
  if value@ then
    local kind
    if #value@ % 24 ~= 5 then return nil end
    kind, till@ = read('<BI4', value@)
    if kind ~= 1 then return nil end
    at@ = find(value@, id@, 6, true)
    if at@ then
      local us, ns, part = read('<I7I2I7', value@, at@ + 8)
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
if denied then
  return pack('<I7I2c1@{I4|}', now_us, now_ns, '0', @{#(value@ or '')|, }) .. @{(value@ or '')| .. }
end
--each
if at@ and till@ * 1000000 > us@ then
  call('SETRANGE', KEYS[@], at@ == 6 and '13' or at@ + 7, pack('<I7I2I7', us@, ns@, part@))
elseif value@ then
  local last, others = us@, ''
  for at = 6, #value@, 24 do
    local us = read('<I7', value@, at + 8)
    if us >= now_us and at ~= at@ then
      others, last = others .. string.sub(value@, at, at + 23), math.max(last, us)
    end
  end
  till@ = math.floor(last / 1000000) + LINGER_S
  call('SET', KEYS[@], pack('<BI4c8I7I2I7', 1, till@, id@, us@, ns@, part@) .. others, 'PX',
    till@ * 1000 - math.floor(now_us / 1000) + longer_ms)
else
  call('SET', KEYS[@], pack('<BI4c8I7I2I7', 1, 0, id@, us@, ns@, part@), 'PX',
    (select(@, read('<@{Bc0|}', args, @{72| + } + 1))))
end
--end
return pack('<I7I2c1@{I4|}', now_us, now_ns, '1', @{#(value@ or '')|, }) .. @{(value@ or '')| .. }
