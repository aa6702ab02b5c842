-- What the scripts of a bucket share: its keys, its standing, its waiting line.
--
-- This part stands before observe.lua, leave.lua, mend.lua and the long way of claim.lua. All
-- times are the server's own, in milliseconds, but `reset`, which is the upstream's.
--
--   KEYS   1  [prefix:]<route>:remaining   string, Spectacles: requests left; expires with the window
--          2  [prefix:]<route>:limit       string, Spectacles: requests per window; <= 0 means no limit
--          3  [prefix:]global              string, Spectacles: there while everything must wait
--          4  [prefix:]<route>:tollway:leases    zset   permit  -> when it counts as lost
--          5  [prefix:]<route>:tollway:window    hash   what is known beside the counter, see below
--          6  [prefix:]<route>:tollway:waiting   zset   ticket  -> order of arrival (microseconds)
--          7  [prefix:]<route>:tollway:alive     zset   ticket  -> when it counts as lost
--          8  [prefix:]<route>:tollway:block:<lane>   string, there while this lane must wait
--          9  [prefix:]<route>:tollway:quick     stream  permits of claim_quick.lua, by their time
--         10  [prefix:]<route>:tollway:meters    hash   further limits of the bucket, see meters.lua
--         11  [prefix:]tollway:meters            hash   further limits of the credential
--         12  [prefix:]tollway:flights           zset   permit -> when it counts as lost, of all
--                                                        buckets: those whose name says what they take
--         13  [prefix:]<route>:tollway:low       string  what the counter can be at most, by our own
--                                                 account of this window; expires with it
--         14  [prefix:]<route>:tollway:foreign   string  until when an old client's request, which has
--                                                 no lease, is waited for
--         15  [prefix:]tollway:waiting           zset   `<ticket>\n<bucket>` -> order of arrival: those
--                                                 whose bucket has room and whose credential has not
--         16  [prefix:]tollway:alive             zset   the same -> when it counts as lost
--
--   ARGV   1  lease in milliseconds       2  channel: [prefix:]tollway:wake:     3  name of the bucket
--          the rest is said by each script
--
--   window  | began    when the window was opened by one of us; if by another client 0, or what it
--           |          is later than, negative
--           | base     the limit that the counter was opened with
--           | ends     when the window ends, by the answers seen; absent until there is one
--           | reset    the same by the upstream's clock: orders answers
--           | limit    the last limit that an answer told us
--           | slides   how often in a row the reset has moved within a window; 2 is a sliding one
--           | seen, told   what the last answer said is left, and when, if windows end unsaid
--           | diverges what an answer last told to be left, less what could be expected
--           | interval, filled   sliding: milliseconds per slot, since when slots come back
--
-- Old clients see the first three keys exactly as they expect them; crashes are mended by the
-- fourth and the ninth, and none of it depends on theirs. A permit or ticket is
-- `<process>.<rank><number>`, followed by what it takes if that is more than one request:
-- `:<units of the counter>,<dimension>=<units>,...`. One that the quickest way gave is
-- `<milliseconds>-<number>`; it is a lease from then on, unless it is renewed, which puts it beside
-- the others.
--
-- Anybody may write the counter: an old client whose answer of the last window comes late ends this
-- one early, and then writes what the last one had left. The thirteenth key is our own account of the
-- same window, so whatever is written, we never take more than the limit out of one. It always has a
-- TTL, by which claim_beside.lua tells it from one that it has made by counting down.
--
--   claim ──> remaining 0, no TTL, lease ──> headers: limit, remaining, TTL ──> expires ──> claim
--                        │ no answer                        ^
--                        └──> lease lost ──> one new probe ─┘

local LEASES, WINDOW, WAITING, ALIVE, QUICK = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[9]
local FLIGHTS, LOW, FOREIGN = KEYS[12], KEYS[13], KEYS[14]
local DAY_MS, POLL_MS, WAKE_MAX = 86400000, 100, 256
-- Servers of one upstream disagree about the same reset by some milliseconds.
local SAME_MS = 20
local GLOBAL, LANE, FULL, HEADERS, LINE = 1, 2, 3, 4, 5

local call = redis.call
local lease_ms = tonumber(ARGV[1])
local clock = call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

-- A whole number that anybody may have written, or nil.
local function whole(text)
  local n = tonumber(text)
  if not n or n ~= n then return nil end
  return math.floor(math.max(-1000000000, math.min(n, 1000000000)))
end

local function read_window()
  local field = call('HMGET', WINDOW, 'began', 'base', 'ends', 'reset', 'limit', 'slides',
    'interval', 'filled')
  return {
    began = tonumber(field[1]), base = tonumber(field[2]), ends = tonumber(field[3]),
    reset = tonumber(field[4]), limit = tonumber(field[5]), slides = tonumber(field[6]) or 0,
    interval = tonumber(field[7]), filled = tonumber(field[8]), low = tonumber(call('GET', LOW)),
  }
end

-- Writes our account of a window, which ends then, if that is known.
local function account(low, ends)
  call('SET', LOW, low, 'PX', ends and math.max(ends - now, 1) or DAY_MS)
end

-- The limit to go by, nil if there is none. An old client that met a 429 without its header writes
-- 0 over a limit that is known: what an answer has told us is worth more.
local function limit_of(window)
  local limit = whole(call('GET', KEYS[2]))
  if limit and limit <= 0 then
    if not window.limit then return nil end
    call('SET', KEYS[2], window.limit, 'PX', DAY_MS)
    return window.limit
  end
  return limit or window.limit or 1
end

-- What a permit takes from the counter, and from further dimensions.
local function costs_of(permit)
  local text = string.match(permit, ':(.*)$')
  if not text then return 1, {} end
  local further = {}
  for dimension, units in string.gmatch(text, ',(%d+)=(%d+)') do
    further[dimension] = tonumber(units)
  end
  return tonumber(string.match(text, '^%d+')) or 1, further
end

-- Until when an old client's request is waited for; in the past if it was in vain.
local function foreign_until() return tonumber(call('GET', FOREIGN)) end

local function await_foreign()
  call('SET', FOREIGN, now + lease_ms, 'PX', 2 * lease_ms)
end

-- What is under way and not lost, in units of the counter.
local function in_flight()
  local units = call('XLEN', QUICK)
  if units > 0 then units = units - call('XTRIM', QUICK, 'MINID', now - lease_ms) end
  if (foreign_until() or 0) > now then units = units + 1 end
  if call('EXISTS', FLIGHTS) == 0 then
    return units + call('ZCOUNT', LEASES, '(' .. now, '+inf')
  end
  for _, permit in ipairs(call('ZRANGEBYSCORE', LEASES, '(' .. now, '+inf')) do
    units = units + costs_of(permit)
  end
  return units
end

-- When the first live lease ends.
local function next_loss()
  local first = call('ZRANGEBYSCORE', LEASES, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local ends = tonumber(first[2])
  local quick = call('XRANGE', QUICK, '-', '+', 'COUNT', 1)[1]
  if quick then
    local quick_ends = tonumber(string.match(quick[1], '^%d+')) + lease_ms
    ends = math.min(ends or quick_ends, quick_ends)
  end
  local foreign = foreign_until()
  if foreign and foreign > now then ends = math.min(ends or foreign, foreign) end
  return math.max((ends or now) - now, 1) + 1
end

-- Ends the lease of a permit; whether there was one.
local function release(permit)
  if string.find(permit, '-', 1, true) and call('XDEL', QUICK, permit) == 1 then return 1 end
  if string.find(permit, ':', 1, true) then call('ZREM', FLIGHTS, permit) end
  return call('ZREM', LEASES, permit)
end

-- Keeps the leases of the quickest way for longer than the counter that they were taken from.
local function keep_quick(ttl)
  local keep = (ttl < 0 and DAY_MS or ttl) + 2 * lease_ms
  local kept = call('PTTL', QUICK)
  if kept ~= -2 and kept < keep then call('PEXPIRE', QUICK, keep) end
end

-- Whether the window that we have an account of goes on: its end is known and not reached, or is not
-- known and requests of it are under way.
local function goes_on(window)
  if window.ends then return now < window.ends end
  return window.began ~= nil and window.low ~= nil and in_flight() > 0
end

-- Nothing is left and nothing says until when. Whoever is under way will know; if all of them are
-- lost, one more is sent to find out.
local function stranded(window)
  local live = in_flight()
  local foreign = foreign_until()
  if live > 0 then
    if live == 1 and foreign and foreign > now then
      return 0, math.min(foreign - now + 1, POLL_MS), HEADERS
    end
    return 0, next_loss(), HEADERS
  end
  local is_ours = window.began and window.began > 0 and not window.ends
  if is_ours or foreign then return 1, 0, HEADERS, 'probe' end
  await_foreign()
  return 0, POLL_MS, HEADERS
end

-- Slots that have come back one by one since the last answer.
local function refilled(window, ttl)
  if window.slides < 2 or not window.interval or not window.filled then
    return 0, ttl + 1, FULL
  end
  local slots = math.floor((now - window.filled) / window.interval)
  if slots < 1 then
    return 0, math.min(ttl, math.ceil(window.filled + window.interval - now)) + 1, FULL
  end
  call('HSET', WINDOW, 'filled', window.filled + slots * window.interval)
  account(slots, window.ends)
  call('SET', KEYS[1], slots, 'KEEPTTL')
  window.low = slots
  return slots, 0, FULL, 'open'
end

-- By our account nothing is left of a window that goes on, whatever the counter says: so it says
-- that again to everybody, for as long as we know that it is true.
local function closed(window)
  local wait_ms, cause = next_loss(), HEADERS
  if window.ends then wait_ms, cause = window.ends - now + 1, FULL end
  -- Without an end it may be the counter of the next window, which another client has opened. So may
  -- one that has none itself while ours has all but come: an old client that has seen the end a moment
  -- earlier took from it, and written over, the next window would be opened with what it took.
  if window.ends then
    local is_next = window.ends - now <= SAME_MS and call('PTTL', KEYS[1]) == -1
    if not is_next then call('SET', KEYS[1], 0, 'PX', window.ends - now) end
  elseif call('EXISTS', KEYS[1]) == 0 then
    call('SET', KEYS[1], 0)
  end
  return 0, wait_ms, cause
end

-- The counter is gone: its window is over, or somebody has lost it early.
local function opened(window, limit)
  if goes_on(window) then return closed(window) end
  call('DEL', FOREIGN)
  -- What is still under way may reach the upstream after the reset and count there.
  local slots = limit - in_flight()
  if slots < 1 then return 0, next_loss(), HEADERS end
  return slots, 0, FULL, 'fresh'
end

-- How many may go now; if none, how long to wait and for what. Last, how they are taken.
local function standing(window)
  local global = call('PTTL', KEYS[3])
  if global == -1 then
    call('PEXPIRE', KEYS[3], lease_ms)
    global = lease_ms
  end
  if global >= 0 then return 0, global + 1, GLOBAL end
  local limit = limit_of(window)
  if not limit then return WAKE_MAX, 0, FULL, 'free' end
  local left = whole(call('GET', KEYS[1]))
  local ttl = call('PTTL', KEYS[1])
  if not left then return opened(window, limit) end
  -- In its last millisecond a key is there and not there; its end and the one we know may be one
  -- millisecond apart.
  if ttl == 0 or ttl == 1 then return 0, ttl + 1, FULL end
  -- Whomever an old client's request stood for, the bucket is not waiting for it any more.
  if left > 0 or ttl > 0 then call('DEL', FOREIGN) end
  if left > 0 then
    if not window.low or window.low >= left or not goes_on(window) then
      return left, 0, FULL, 'open'
    end
    if window.low < 1 then return closed(window) end
    return window.low, 0, FULL, 'open'
  end
  if ttl == -1 then return stranded(window) end
  return refilled(window, ttl)
end

-- Takes `count` of the slots that `standing` found.
local function take(window, how, slots, count)
  if count == 0 or how == 'free' then return end
  local low = how == 'probe' and 0 or slots - count
  if how == 'open' then
    call('DECRBY', KEYS[1], count)
    if goes_on(window) then
      account(low, window.ends)
      return
    end
  elseif how == 'fresh' then
    call('SET', KEYS[1], low)
  end
  -- A new account: of our own window, or of one that another client has opened, nobody knows when.
  call('ZREMRANGEBYSCORE', LEASES, '-inf', now)
  if how == 'probe' then call('DEL', FOREIGN) end
  local began = how == 'open' and -(window.ends or math.abs(window.began or 0)) or now
  call('HSET', WINDOW, 'began', began, 'base', limit_of(window) or 1)
  call('HDEL', WINDOW, 'ends', 'filled')
  account(low)
  call('PEXPIRE', WINDOW, DAY_MS)
end

-- Forgets tickets of a line whose process has not spoken for a lease.
local function forget_lost_of(line, alive)
  local lost = call('ZRANGEBYSCORE', alive, '-inf', now, 'LIMIT', 0, WAKE_MAX)
  if #lost > 0 then
    call('ZREM', alive, unpack(lost))
    call('ZREM', line, unpack(lost))
  end
end

local function forget_lost() forget_lost_of(WAITING, ALIVE) end

-- Tells the owners of these tickets that they may claim in so many milliseconds, one message for
-- each process.
local function notify(tickets, wait_ms)
  local by_process, order = {}, {}
  for _, ticket in ipairs(tickets) do
    local process = string.match(ticket, '^([^.]*)')
    if not by_process[process] then
      by_process[process] = {}
      order[#order + 1] = process
    end
    table.insert(by_process[process], ticket)
  end
  for _, process in ipairs(order) do
    local tickets_text = table.concat(by_process[process], ' ')
    call('PUBLISH', ARGV[2] .. process, ARGV[3] .. '\n' .. wait_ms .. '\n' .. tickets_text)
  end
end

-- Wakes as many as may go, first come first. If none may and it has just become known when one
-- may, the first in the line is told: it comes then, and its claim wakes the others.
local function wake(end_changed)
  if call('EXISTS', WAITING) == 0 then return end
  forget_lost()
  local slots, wait_ms, cause = standing(read_window())
  if slots > 0 then
    notify(call('ZRANGE', WAITING, 0, math.min(slots, WAKE_MAX) - 1), 0)
  elseif end_changed and cause ~= HEADERS then
    notify(call('ZRANGE', WAITING, 0, 0), wait_ms)
  end
end
