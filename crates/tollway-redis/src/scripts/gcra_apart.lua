-- The short way for different keys: one request of GCRA checks, each on a key of its own, with
-- units of whole microseconds.
--
-- As gcra_whole.lua, which says how this file is written out, with a ledger for each charge: one
-- read for all of them and a write for each. What a ledger usually is, one state of the policy that
-- asks, is taken apart by a single call; what few requests need stands last in the argument and is
-- read by those. Identities are compared as doubles, which makes no strings; one that is no number
-- equals nothing, itself included, and is looked for like a state among others.
--
--   KEYS   1..n   the ledgers, all different, as gcra.lua draws them
--   ARGV   1      per charge: what the bucket holds, what the charge costs (doubles, us), the
--                 policy's identity (8); then per charge how far beyond what the bucket holds a TAT
--                 is believed (double, us); then per charge how long a new ledger lives, as text
--                 (ms) after its length (1 byte)
--          2      the time as two doubles (us, ns) in tests, absent otherwise
--
-- Answers doubles: the time (us), negative if the request is denied, then per charge the TAT before
-- (us), 0 if there was none; or nil as gcra_check.lua does.

local call, pack, read, find, sub = redis.call, struct.pack, struct.unpack, string.find, string.sub
local KEYS, args = KEYS, ARGV[1]
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

local @{value@|, } = unpack(call('MGET', @{KEYS[@]|, }))
local @{life@|, }
if not (@{value@| and }) then
  -- MGET shows a list or a hash as nothing: count, or a write would replace it.
  if call('EXISTS', @{KEYS[@]|, }) > @{(value@ and 1 or 0)| + } then return nil end
  @{life@|, } = read('<@{Bc0|}', args, @{32| + } + 1)
end

local @{cap@, cost@, id@|, } = read('<@{ddd|}', args)
-- `at` is where SETRANGE finds the TAT: as text where it usually is, for a number is made text.
--each
local at@, tat@, was@, till@ = '13', now, 0, 0
if value@ then
  local id, rest
  -- The first byte of ns is read as the highest of us, and the others with part: what has any is
  -- later than every TAT there may be, or leaves a rest. Nothing but a ledger of one state is as
  -- long and has the policy's identity there, so the kind need not be read.
  if #value@ == 29 then till@, id, was@, rest = read('<I4dI8d', value@, 2) end
  if id ~= id@ or rest ~= 0 then
    local kind, ns, part
    if #value@ % 24 ~= 5 or #value@ > 24581 then return nil end
    kind, till@ = read('<BI4', value@)
    if kind ~= 1 then return nil end
    at@, was@ = find(value@, sub(args, @ * 24 - 7, @ * 24), 6, true), 0
    if at@ then
      was@, ns, part = read('<I7I2I7', value@, at@ + 8)
      if at@ % 24 ~= 6 or ns + part > 0 then return nil end
      at@ = at@ + 7
    end
  end
  if was@ > now then tat@ = was@ end
end
tat@ = tat@ + cost@
--end
if @{tat@ > cap@ + now| or } then
  local @{skew@|, } = read('<@{d|}', args, @{24| + } + 1)
  if @{was@ > cap@ + now + skew@ - 1| or } then return nil end
  return pack('<d@{d|}', -now, @{was@|, })
end

--each
if at@ and till@ * 1000000 > tat@ then
  call('SETRANGE', KEYS[@], at@, pack('<I7', tat@))
elseif value@ then
  local last, others = tat@, ''
  for at = 6, #value@, 24 do
    local us = read('<I7', value@, at + 8)
    if us >= now and at + 7 ~= tonumber(at@) then
      others, last = others .. sub(value@, at, at + 23), math.max(last, us)
    end
  end
  till@ = math.floor(last / 1000000) + LINGER_S
  local id = sub(args, @ * 24 - 7, @ * 24)
  call('SET', KEYS[@], pack('<BI4c8I7I2I7', 1, till@, id, tat@, 0, 0) .. others, 'PX',
    till@ * 1000 - math.floor(now / 1000) + longer_ms)
else
  local id = sub(args, @ * 24 - 7, @ * 24)
  call('SET', KEYS[@], pack('<BI4c8I7I2I7', 1, 0, id, tat@, 0, 0), 'PX', life@)
end
--end
return pack('<d@{d|}', now, @{was@|, })
