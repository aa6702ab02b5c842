-- The shortest way: one request of GCRA checks on one key, with units of whole microseconds.
--
-- Most requests are this. What costs a script is neither arithmetic nor memory, but calls, tables
-- and numbers that become text; so there are none here that can be spared: one read and one write,
-- whatever the number of charges. The file is written out for that number (see script.rs): what
-- stands between `each` and `end` is there once per charge, with @ for its number, and so is what
-- stands in braces after an @, with the text after the bar in between.
--
--   KEYS   1      the ledger that all the states are in, as gcra.lua draws it
--   ARGV   1      per charge: what the bucket holds, what the charge costs, how far beyond that a
--                 TAT is believed (doubles, us), the policy's identity (8), all different; then
--                 how long a new ledger lives, as text (ms)
--          2      the time as two doubles (us, ns) in tests, absent otherwise
--
-- Answers | us: 7 bytes | ns: 2 | '1' allowed or '0' denied | the ledger as it was before |, or nil
-- where something is out of the ordinary, as gcra_check.lua does.

local call, pack, read, find = redis.call, struct.pack, struct.unpack, string.find
local key, args = KEYS[1], ARGV[1]
local LINGER_S = 8

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

local value, till = redis.pcall('GET', key), 0
if value then
  local kind
  if #value % 24 ~= 5 or #value > 24581 then return nil end
  kind, till = read('<BI4', value)
  if kind ~= 1 then return nil end
end

local @{cap@, cost@, skew@, id@|, } = read('<@{dddc8|}', args)
--each
local at@, tat@ = nil, now
cap@ = cap@ + now
if value then
  at@ = find(value, id@, 6, true)
  if at@ then
    local us, ns, part = read('<I7I2I7', value, at@ + 8)
    if at@ % 24 ~= 6 or ns + part > 0 or us > cap@ + skew@ - 1 then return nil end
    if us > now then tat@ = us end
  end
end
tat@ = tat@ + cost@
--end
if @{tat@ > cap@| or } then return pack('<I7I2c1', now, 0, '0') .. (value or '') end

if not value then
  call('SET', key, pack('<BI4@{c8I7I2I7|}', 1, 0, @{id@, tat@, 0, 0|, }), 'PX',
    string.sub(args, @{32| + } + 1))
elseif at1 and @{at@ == at1 + (@ - 1) * 24 and till * 1000000 > tat@| and } then
  call('SETRANGE', key, at1 == 6 and '13' or at1 + 7,
    pack('<@{I7I2I7|c8}', @{tat@, 0, 0|, id@, }))
else
  local last, others = math.max(@{tat@|, }), ''
  for at = 6, #value, 24 do
    local us = read('<I7', value, at + 8)
    if us >= now and @{at ~= at@| and } then
      others, last = others .. string.sub(value, at, at + 23), math.max(last, us)
    end
  end
  till = math.floor(last / 1000000) + LINGER_S
  call('SET', key, pack('<BI4@{c8I7I2I7|}', 1, till, @{id@, tat@, 0, 0|, }) .. others, 'PX',
    till * 1000 - math.floor(now / 1000) + longer_ms)
end
return pack('<I7I2c1', now, 0, '1') .. (value or '')
