-- Gives slots to those who ask, behind those who wait; the rest get a ticket and a time to wait.
--
-- Stands behind claim_short.lua, bucket.lua, which draws the keys, and meters.lua.
--
--   ARGV   4     wait: queue those who get none; try: do not; again: as wait, after a lost answer;
--                quick: as wait, and open the quickest way if there is plenty; beside: as wait,
--                where old clients write the same keys
--          5..   permits asked for, `<process>.<rank><number>`, in order of arrival; ranks are
--                0 high, 1 normal, 2 low; a permit that waits is a ticket
--
-- Answers { now, milliseconds to wait, for what, 1 or 0 per permit asked, length of the line, 1 if
-- the quickest way is open }.
-- Nobody is overtaken: a slot that is meant for a ticket is kept for it as long as it is alive.

-- How much earlier or later than it did a permit of another rank is taken to have come: high ones
-- overtake, low ones are overtaken, and nobody is for ever.
local HANDICAP_US = 10000000
-- With less left the quickest way would soon be at its end, and in vain.
local QUICK_MIN = 16

local asked, granted, count = {}, {}, 0
for i = 5, #ARGV do asked[i - 4] = ARGV[i] end

-- Who waits for a lane of its own gives up its place in the line of the bucket.
local blocked = call('PTTL', KEYS[8])
if blocked >= 0 then
  if call('ZREM', WAITING, unpack(asked)) > 0 then
    call('ZREM', ALIVE, unpack(asked))
    leave_account(asked)
    wake(false)
    wake_account({})
  end
  return { now, blocked + 1, LANE, string.rep('0', #asked), 0 }
end

-- An answer was lost: who has a live lease was answered yes.
local held = {}
if ARGV[4] == 'again' then
  for i, lease in ipairs(call('ZMSCORE', LEASES, unpack(asked))) do
    held[i] = tonumber(lease) and tonumber(lease) > now
  end
end

forget_lost()
local window = read_window()
local slots, wait_ms, cause, how = standing(window)
local line = call('ZCARD', WAITING)
local places = line > 0 and call('ZMSCORE', WAITING, unpack(asked)) or {}
local to_wake = {}
local limit, taken, meters, lack_ms, lack_cause = limit_of(window), 0, nil, nil, nil
-- Which of those asked for waits for the credential's limits, and not for its bucket's.
local of_account

-- When a permit counts as having come.
local function arrival_of(i)
  local rank = tonumber(string.match(asked[i], '%.(%d)')) or 1
  return now_us + i + (rank - 1) * HANDICAP_US
end

-- Lets one go if every limit has room for it. After one that has to wait, nobody else goes: whoever
-- needs little would overtake whoever needs much for ever.
local function grant(i)
  local units, further = costs_of(asked[i])
  if how == 'free' then units = 0 end
  units = math.min(units, limit or units)
  if lack_cause or taken + units > slots then
    lack_cause = lack_cause or FULL
    return false
  end
  if next(further) then
    meters = meters or read_meters()
    local lack_key
    lack_ms, lack_cause, lack_key = lacking(meters, further)
    if not lack_ms and is_behind(meters, further, asked[i], arrival_of(i)) then
      lack_ms, lack_cause, lack_key = math.ceil(lease_ms / 3), LINE, ACCOUNT
    end
    if lack_key == ACCOUNT then of_account = i end
    if lack_ms then return false end
    spend(meters, further)
  end
  granted[i] = true
  taken, count = taken + units, count + 1
  return true
end

if slots > 0 and line > 0 then
  local index = {}
  for i, permit in ipairs(asked) do index[permit] = i end
  for _, ticket in ipairs(call('ZRANGE', WAITING, 0, math.min(slots, WAKE_MAX) - 1)) do
    if not index[ticket] then
      to_wake[#to_wake + 1] = ticket
    elseif not grant(index[ticket]) then
      break
    end
  end
end

local free = slots - line
for i = 1, #asked do
  if free > 0 and not places[i] and not held[i] and grant(i) then free = free - 1 end
end

take(window, how, slots, taken)
if count > 0 then
  for _, meter in ipairs(meters or {}) do write(meter) end
end
local flags, leases, flights, leaving, arriving, living = {}, {}, {}, {}, {}, {}
for i, permit in ipairs(asked) do
  flags[i] = (granted[i] or held[i]) and '1' or '0'
  if granted[i] then
    leases[#leases + 1], leases[#leases + 2] = now + lease_ms, permit
    if string.find(permit, ':', 1, true) then
      flights[#flights + 1], flights[#flights + 2] = now + lease_ms, permit
    end
    if places[i] then leaving[#leaving + 1] = permit end
  elseif not held[i] and ARGV[4] ~= 'try' then
    arriving[#arriving + 1] = arrival_of(i)
    arriving[#arriving + 1] = permit
    living[#living + 1], living[#living + 2] = now + lease_ms, permit
  end
end

if #leases > 0 and how ~= 'free' then
  call('ZADD', LEASES, unpack(leases))
  call('PEXPIRE', LEASES, 2 * lease_ms)
end
if #flights > 0 then
  call('ZADD', FLIGHTS, unpack(flights))
  call('ZREMRANGEBYSCORE', FLIGHTS, '-inf', now)
  call('PEXPIRE', FLIGHTS, 2 * lease_ms)
end
if #leaving > 0 then
  call('ZREM', WAITING, unpack(leaving))
  call('ZREM', ALIVE, unpack(leaving))
end
if #arriving > 0 then
  call('ZADD', WAITING, 'NX', unpack(arriving))
  call('ZADD', ALIVE, unpack(living))
  call('PEXPIRE', WAITING, 2 * lease_ms)
  call('PEXPIRE', ALIVE, 2 * lease_ms)
end
if #to_wake > 0 then notify(to_wake, 0) end

-- In the line of the credential stands one of each bucket, as long as its bucket has room for it.
if meters or call('EXISTS', ACCOUNT_LINE) == 1 then
  local others, answered = {}, {}
  for i, permit in ipairs(asked) do
    answered[permit] = true
    if i ~= of_account then others[#others + 1] = permit end
  end
  leave_account(others)
  if of_account and ARGV[4] ~= 'try' then
    local name = in_account(asked[of_account])
    call('ZADD', ACCOUNT_LINE, 'NX', arrival_of(of_account), name)
    call('ZADD', ACCOUNT_ALIVE, now + lease_ms, name)
    call('PEXPIRE', ACCOUNT_LINE, 2 * lease_ms)
    call('PEXPIRE', ACCOUNT_ALIVE, 2 * lease_ms)
  end
  wake_account(answered)
end

-- Who gets none although there were slots waits for the next window, or for an answer.
if slots > 0 and #arriving > 0 then
  local ttl = call('PTTL', KEYS[1])
  cause = #to_wake > 0 and LINE or FULL
  wait_ms = ttl >= 0 and ttl + 1 or math.ceil(lease_ms / 3)
  if lack_ms then wait_ms, cause = lack_ms, lack_cause end
end
local is_open = ARGV[4] == 'quick' and #arriving == 0 and line == 0
  and (how == 'fresh' or how == 'open') and slots - taken >= QUICK_MIN
if is_open then
  if call('EXISTS', QUICK) == 0 then call('XDEL', QUICK, call('XADD', QUICK, '*', '', '')) end
  keep_quick(math.max(call('PTTL', KEYS[1]), -1))
end
return {
  now, wait_ms, cause, table.concat(flags), call('ZCARD', WAITING), is_open and 1 or 0,
}
