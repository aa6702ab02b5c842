-- GCRA: one theoretical arrival time (TAT) per policy and key. See tollway_core::gcra.
--
-- All GCRA states of one key are in one ledger, so a request that charges a key under several
-- policies reads one value and writes one:
--
--   ledger   | 1 | till: 4 | entries, 24 bytes each ... |                                little endian
--            | 6 | till: 4 | n: 2 | n entries | returns, 61 bytes each ... |   with reservations open
--   entry    | policy's family: 5 | mark of its numbers: 3 | us: 7 | ns: 2 | part: 7 |
--   return   | the same 8 | a return as decide.lua draws it: 53 |
--
-- A family has one entry. If its mark is of another kind than GCRA, the state is in the string of
-- the family, and the entry only says so, until `us`.
--
-- The TAT is us microseconds + ns nanoseconds + part / scale nanoseconds: one unit rarely costs
-- whole nanoseconds, and nothing is rounded. Durations (what a charge costs, what the bucket
-- holds) come in the same three limbs, worked out by the caller, so that here they are only added
-- and compared.
--
-- A ledger's TTL covers all its entries; one that has nothing to say any more is left out when the
-- ledger is written anew. The key lives at least until the second `till` (0: not known). The short
-- ways give a ledger that is charged again LINGER_S more than it needs, and while `till` covers the
-- next TAT they change the TAT in place, which costs half of a write with a TTL. Here every ledger
-- is written with its exact TTL.
--
--   constants   capacity_us, capacity_ns, capacity_part, scale, how far beyond the capacity a TAT is
--               believed (us): SKEW, or anything if the numbers of the policy come with the call
--   state       { us, ns, part }; in the rest of the script head, us: 7, ns: 2, part: 7, returns

local ENTRY_LEN, BACK_LEN = 24, 8 + RETURN_LEN

-- The policies that one key may have states under, but for those that one request adds to fewer.
local ENTRIES_MAX = 1024

-- Where the entries of a ledger begin and end; nil if it is none.
local function entries_of(value)
  local kind = byte(value, 1)
  if kind == 1 and #value % ENTRY_LEN == 5 then return 6, #value end
  if kind ~= 6 or #value < 7 then return nil end
  local last = 7 + read('<I2', value, 6) * ENTRY_LEN
  if last <= #value and (#value - last) % BACK_LEN == 0 then return 8, last end
end

-- The entry at `at` of a ledger whose entries end at `last`, as a state with its returns.
local function state_at(value, at, last)
  local id, state = value:sub(at, at + 7), { '\1', value:sub(at + 5, at + ENTRY_LEN - 1) }
  for back = last + 1, #value, BACK_LEN do
    if value:sub(back, back + 7) == id then
      state[#state + 1] = value:sub(back + 8, back + BACK_LEN - 1)
    end
  end
  return table.concat(state)
end

algorithms[1] = {
  constants = '<ddddd',

  vacant = function() return { 0, 0, 0 } end,

  -- The state of a family in a ledger: false if it has none, nil if this is no ledger.
  entry = function(value, family)
    local first, last = entries_of(value)
    if not first then return nil end
    for at = first, last - 1, ENTRY_LEN do
      if value:sub(at, at + 4) == family then return state_at(value, at, last) end
    end
    return false
  end,

  -- Whether a ledger takes no more policies: so many of those in it still say something.
  is_full = function(value)
    local first, last = entries_of(value)
    if last - first < ENTRIES_MAX * ENTRY_LEN - 1 then return false end
    local saying = 0
    for at = first, last - 1, ENTRY_LEN do
      if read('<I7', value, at + 8) >= now_us then saying = saying + 1 end
    end
    return saying >= ENTRIES_MAX
  end,

  -- The ledger with states written into it (by family, and a list of those; '' for one that says
  -- nothing), and its TTL; nil if nothing is left in it.
  merge = function(value, written)
    local entries, backs, ttl_ms = {}, {}, 0
    local function add(family, state)
      local life_ms = floor((read('<I7', state, HEAD_LEN + 1) - now_us) / 1000) + 2
      for back = 21, #state, RETURN_LEN do
        life_ms = math.max(life_ms, floor((read('<I7', state, back + 32) - now_us) / 1000) + 2)
      end
      if life_ms <= 0 then return end
      local id = family .. state:sub(2, HEAD_LEN)
      for back = 21, #state, RETURN_LEN do
        backs[#backs + 1] = id .. state:sub(back, back + RETURN_LEN - 1)
      end
      entries[#entries + 1], ttl_ms = id .. state:sub(5, 20), math.max(ttl_ms, life_ms)
    end
    for _, family in ipairs(written) do
      if written[family] ~= '' then add(family, written[family]) end
    end
    if value then
      local first, last = entries_of(value)
      for at = first, last - 1, ENTRY_LEN do
        local family = value:sub(at, at + 4)
        if not written[family] then add(family, state_at(value, at, last)) end
      end
    end
    if #entries == 0 then return nil end
    local head = pack('<BI4', 1, 0)
    if #backs > 0 then head = pack('<BI4I2', 6, 0, #entries) end
    return head .. table.concat(entries) .. table.concat(backs), ttl_ms
  end,

  parse = function(value)
    local us, ns, part, tail = read('<I7I2I7', value, HEAD_LEN + 1)
    return { us, ns, part }, tail
  end,

  -- Works out when the bucket would be empty, the latest TAT there may be, and repairs a later one.
  repair = function(c, s)
    local us, ns, part = now_us + c[1], now_ns + c[2], c[3]
    if ns >= 1000 then us, ns = us + 1, ns - 1000 end
    c.us, c.ns, c.part = us, ns, part
    local by = s[1] - us - c[5]
    if by > 0 or by == 0 and (s[2] > ns or s[2] == ns and s[3] > part) then
      return { us, ns, part }, true
    end
    return s
  end,

  charge = function(c, s, counted, cost_us, cost_ns, cost_part)
    local us, ns, part = s[1], s[2], s[3]
    if us < now_us or us == now_us and ns < now_ns then us, ns, part = now_us, now_ns, 0 end
    local to_us, to_ns, to_part = us + cost_us, ns + cost_ns, part + cost_part
    if to_part >= c[4] then to_part, to_ns = to_part - c[4], to_ns + 1 end
    if to_ns >= 1000 then to_ns, to_us = to_ns - 1000, to_us + 1 end
    local by = to_us - c.us
    if by < 0 or by == 0 and (to_ns < c.ns or to_ns == c.ns and to_part <= c.part) then
      return { to_us, to_ns, to_part }
    end
    if not counted then return nil end
    -- Emptier than empty there is not; but a bucket within the skew stays as it is.
    by = us - c.us
    if by > 0 or by == 0 and (ns > c.ns or ns == c.ns and part > c.part) then
      return { us, ns, part }
    end
    return { c.us, c.ns, c.part }
  end,

  refund = function(c, s, back_us, back_ns, back_part)
    local us, ns, part = s[1] - back_us, s[2] - back_ns, s[3] - back_part
    if part < 0 then part, ns = part + c[4], ns - 1 end
    if ns < 0 then ns, us = ns + 1000, us - 1 end
    if us > now_us or us == now_us and (ns > now_ns or ns == now_ns and part > 0) then
      return { us, ns, part }
    end
    return { 0, 0, 0 }
  end,

  -- Rounded up to the millisecond: a state must not be forgotten before it says nothing.
  ttl_ms = function(_, s) return floor((s[1] - now_us) / 1000) + 2 end,

  format = function(s) return pack('<I7I2I7', s[1], s[2], s[3]) end,
}
