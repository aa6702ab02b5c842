-- One request of GCRA checks on different states, all on one key or each on a key of its own.
--
-- Most requests are this. What costs a script is not arithmetic but calls, tables and numbers that
-- become text, so there is one read, a write for each key, and no table, loop or function. That is
-- why this file is a template: `write_out` of script.rs writes it out for the number of charges
-- and keys. A list in braces after an at sign stands once per charge, one after a dollar sign
-- once per key, with the text after its bar in between; the sign alone is the number.
--
--   KEYS   1..k   the ledgers, all different, as gcra.lua draws them: one, or one for each charge
--   ARGV   1      per charge: family and mark of its numbers, what the bucket holds (us), what
--                 the charge costs (us), 3 doubles; per charge how far beyond what the bucket holds
--                 a TAT is believed (us), 1 double; absent if all of these are whole microseconds, per
--                 charge: scale, the rest of what the charge costs (ns, part) and of what the
--                 bucket holds (ns, part), 5 doubles; per key how long a new ledger lives, as text
--                 (ms) after its length (1 byte), padded to 16 bytes
--          2      the time as two doubles (us, ns) in tests, absent otherwise
--
-- Answers doubles: the time (us), negative if the request is denied; per charge the TAT before
-- (us), 0 if there was none; and unless all of them are 0, the ns of the time and per charge the
-- ns and part of the TAT. Or nil where something is out of the ordinary, as gcra_check.lua does.
--
-- Identities are read, compared and written as doubles, which makes no strings. The caller sees to
-- it that each is a normal double: NaN is not equal to itself, and 0 is equal to -0.

local call, pack, read, sub = redis.call, struct.pack, struct.unpack, string.sub
local KEYS, args = KEYS, ARGV[1]
local LINGER_S = 8

-- Time in tests does not pass as the server's does: what they wrote must not expire by it.
local now_us, now_ns, longer_ms = 0, 0, 2
if ARGV[2] then
  now_us, now_ns = read('<dd', ARGV[2])
  longer_ms = 3600002
else
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

local ${value$|, $}
if KEYS[2] then
  ${value$|, $} = unpack(call('MGET', ${KEYS[$]|, $}))
  -- MGET shows a list or a hash as nothing: count, or a write would replace it.
  if not (${value$| and $})
    and call('EXISTS', ${KEYS[$]|, $}) > ${(value$ and 1 or 0)| + $} then
    return nil
  end
else
  value1 = redis.pcall('GET', KEYS[1])
end

local @{id@, cap_us@, us@|, @} = read('<@{ddd|@}', args)
local @{scale@, ns@, part@, cap_ns@, cap_part@|, @} = @{1, 0, 0, 0, 0|, @}
-- Requests of whole microseconds leave these out, which the length tells: reading them costs some
-- 5 % of a request on three keys.
if #args > @{32| + @} + ${16| + $} then
  @{scale@, ns@, part@, cap_ns@, cap_part@|, @} = read('<@{ddddd|@}', args, @{32| + @} + 1)
end

-- The states before, and the offset in each ledger at which theirs begin with `us`; nil if they are
-- not side by side there, in this order.
${
local offset$, till$, @{was_us@, was_ns@, was_part@|, @} = nil, 0, @{0, 0, 0|, @}
if value$ then
  local @{found@|, @}
  -- Usually a ledger holds these states and no others: one call takes it apart. Nothing else is
  -- this long and has the identities in these places, so the kind need not be read.
  if #value$ == @{24| + @} + 5 then
    till$, @{found@, was_us@, was_ns@, was_part@|, @} = read('<I4@{dI7I2I7|@}', value$, 2)
  end
  if @{found@ == id@| and @} then
    -- Text: Redis 7.0 takes its time to make text of a number.
    offset$ = '13'
  else
    local kind, next_at
    if #value$ % 24 ~= 5 or #value$ > 24581 then return nil end
    kind, till$, next_at = read('<BI4', value$)
    if kind ~= 1 then return nil end
    @{
    local at@ = string.find(value$, sub(args, @ * 24 - 23, @ * 24 - 16), 6, true)
    was_us@, was_ns@, was_part@ = 0, 0, 0
    if at@ then
      if at@ % 24 ~= 6 then return nil end
      was_us@, was_ns@, was_part@ = read('<I7I2I7', value$, at@ + 8)
    elseif string.find(value$, sub(args, @ * 24 - 23, @ * 24 - 19), 6, true) then
      -- Most likely it is kept under other numbers.
      return nil
    end
    if next_at == 6 then offset$ = at@ and at@ + 7 elseif at@ ~= next_at then offset$ = nil end
    next_at = at@ and at@ + 24
    |@}
  end
end
|$}

local is_close, sure_us = false, now_us - 2
@{
if was_us@ > now_us or was_us@ == now_us and was_ns@ >= now_ns then
  us@, ns@, part@ = us@ + was_us@, ns@ + was_ns@, part@ + was_part@
else
  us@, ns@ = us@ + now_us, ns@ + now_ns
end
if part@ >= scale@ then part@, ns@ = part@ - scale@, ns@ + 1 end
if ns@ >= 1000 then ns@, us@ = ns@ - 1000, us@ + 1 end
-- Nearer to full than the limbs that are not added here, and their carries, come to.
if us@ > cap_us@ + sure_us then is_close = true end
|@}

local is_denied = false
if is_close then
  local @{skew@|, @} = read('<@{d|@}', args, @{24| + @} + 1)
  @{
  cap_us@, cap_ns@ = cap_us@ + now_us, cap_ns@ + now_ns
  if cap_ns@ >= 1000 then cap_us@, cap_ns@ = cap_us@ + 1, cap_ns@ - 1000 end
  if was_us@ > cap_us@ + skew@ - 1 then return nil end
  if us@ > cap_us@ or us@ == cap_us@ and (ns@ > cap_ns@
    or ns@ == cap_ns@ and part@ > cap_part@) then
    is_denied = true
  end
  |@}
end

if not is_denied then
  ${
  if offset$ and @{till$ * 1000000 > us@| and @} then
    -- With units of whole microseconds the last limbs stay as they are: pack ignores what its
    -- format does not name.
    local is_whole = @{ns@ == was_ns@ and part@ == was_part@| and @}
    call('SETRANGE', KEYS[$], offset$, pack(is_whole and '<@{I7|I2I7d@}' or '<@{I7I2I7|d@}',
      @{us@, ns@, part@|, id@, @}))
  else
    local others, ttl_ms = '', nil
    if value$ then
      local last = math.max(@{us@|, @})
      for at = 6, offset$ == '13' and 0 or #value$, 24 do
        local id, us = read('<dI7', value$, at)
        if us >= now_us and @{id ~= id@| and @} then
          others, last = others .. sub(value$, at, at + 23), math.max(last, us)
        end
      end
      till$ = math.floor(last / 1000000) + LINGER_S
      ttl_ms = till$ * 1000 - math.floor(now_us / 1000) + longer_ms
    else
      ttl_ms = read('<Bc0', args, #args - 16 * (#KEYS - $) - 15)
    end
    call('SET', KEYS[$], pack('<BI4@{dI7I2I7|@}', 1, till$, @{id@, us@, ns@, part@|, @}) .. others,
      'PX', ttl_ms)
  end
  |$}
end

local is_whole = @{was_ns@ + was_part@| + @} + now_ns == 0
return pack(is_whole and '<d@{d|@}' or '<d@{d|@}d@{dd|@}', is_denied and -now_us or now_us,
  @{was_us@|, @}, now_ns, @{was_ns@, was_part@|, @})
