-- The shortest way: one request of GCRA checks whose units last whole microseconds.
--
-- Most requests are this. What costs a script is neither arithmetic nor the keys, but calls,
-- tables and numbers that become text; so there are none here that can be spared. The file is
-- written out for the number of charges (see script.rs): what stands between `each` and `end` is
-- there once per charge, with @ for its number, and so is what stands in braces after an @, with
-- the text after the bar in between.
--
--   KEYS   1..n   states, all different, as in decide.lua
--   ARGV   1      per charge: what the bucket holds, what the charge costs (doubles, us); then per
--                 charge: how long a new state lives, as text (ms) after its length (1 byte)
--          2      the time as two doubles (us, ns) in tests, absent otherwise
--
-- Answers | us: 7 bytes | ns: 2 | '1' allowed or '0' denied | length of each value: 1 | the values |,
-- values as they were before, or nil where something is out of the ordinary, as gcra_check.lua does.
-- On `till` see gcra.lua.

local call, pcall, pack, read = redis.call, redis.pcall, struct.pack, struct.unpack
local KEYS, args = KEYS, ARGV[1]
local SKEW_US, LINGER_S = 10000, 8

local now, longer_ms = 0, 2
if ARGV[2] then
  local ns
  now, ns = read('<dd', ARGV[2])
  if ns ~= 0 then return nil end
  longer_ms = 3600002
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local @{cap@, cost@|, } = read('<@{dd|}', args)
--each
local key@ = KEYS[@]
local value@ = pcall('GET', key@)
local tat@, till@ = now, 0
cap@ = cap@ + now
if value@ then
  if #value@ ~= 12 then return nil end
  local kind, us
  kind, us, till@ = read('<BI7I4', value@)
  if kind ~= 1 or us > cap@ + SKEW_US - 1 then return nil end
  if us > now then tat@ = us end
end
tat@ = tat@ + cost@
--end
if @{tat@ > cap@| or } then
  return pack('<I7I2c1@{B|}', now, 0, '0', @{#(value@ or '')|, }) .. @{(value@ or '')| .. }
end
--each
if till@ * 1000000 > tat@ then
  call('SETRANGE', key@, '1', pack('<I7', tat@))
elseif value@ then
  till@ = math.floor(tat@ / 1000000) + LINGER_S
  call('SET', key@, pack('<BI7I4', 1, tat@, till@), 'PX',
    till@ * 1000 - math.floor(now / 1000) + longer_ms)
else
  call('SET', key@, pack('<BI7I4', 1, tat@, 0), 'PX',
    (select(@, read('<@{Bc0|}', args, @{16| + } + 1))))
end
--end
return pack('<I7I2c1@{B|}', now, 0, '1', @{#(value@ or '')|, }) .. @{(value@ or '')| .. }
