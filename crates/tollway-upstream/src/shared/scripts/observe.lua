-- Learns from an answer: all of it at once, in order, and never against a newer window.
--
-- Stands behind observe_short.lua, bucket.lua, which draws the keys, and meters.lua.
--
--   ARGV   4  permit             5  when it was granted (server's clock), from the claim
--          6  limit              7  remaining
--          8  milliseconds until the reset, rounded up          9  reset by the upstream's clock
--         10  what else: '' | ok (a success without limits) | denied | global | lane
--         11  milliseconds to stay away, if denied             12  unlimited: value to write
--         13  fixed, sliding, or length: only the length of the window is told, as if its reset
--         14  if the permit is of another name of the bucket, what is under way under it; else -1
--         15  what was told of further limits, see meters.lua
--         6 to 9 and 11 are -1 where the answer does not say
--
--   answer of       permit granted      reset               what happens
--   this window     since it began      the one known       counts
--   a newer window  whenever            later               counts, is remembered
--   an older one    before it began     earlier, or the     gives back its place, changes nothing
--                                       last one's
--
-- Answers { 1 if it was too late to count, the requests left or -1, milliseconds to the end or -1 }.

local permit, granted = ARGV[4], tonumber(ARGV[5])
local limit, left_there = tonumber(ARGV[6]), tonumber(ARGV[7])
local until_reset, reset = tonumber(ARGV[8]), tonumber(ARGV[9])
local sort, away = ARGV[10], tonumber(ARGV[11])
local elsewhere = tonumber(ARGV[14])
local is_moved = elsewhere >= 0

local was_held, units = release(permit) == 1, costs_of(permit)
learn_meters(ARGV[15], granted)
local window = read_window()
local left, ttl = whole(call('GET', KEYS[1])), call('PTTL', KEYS[1])
-- A key in its last millisecond is gone: whatever is written to it would go with it.
if ttl == 0 then
  call('DEL', KEYS[1])
  left, ttl = nil, -2
end

-- A window that an old client opened began no sooner than the one before had ended.
local began = math.abs(window.began or 0)
local is_known = window.began ~= nil
if window.ends and now > window.ends then began, is_known = window.ends, false end
local low = is_known and window.low or nil

local function is_late()
  -- Where nothing orders two answers but when they were let go, one of another name tells nothing: the
  -- window here may have been opened by a probe that went beside it.
  if reset < 0 or not window.reset then return granted < began and not is_moved end
  if reset < window.reset - SAME_MS then return true end
  -- The reset known is this window's once an answer has told its end: then the same one is no older,
  -- however early the request was let go. It was on its way when the window began, and counts in it.
  if window.ends and now <= window.ends then return false end
  return left ~= nil and granted < began and reset <= window.reset + SAME_MS
end

local function block(key, ms)
  if ms > call('PTTL', key) then call('SET', key, 'true', 'PX', ms) end
end

-- A new value for the counter that keeps the end of its window.
local function put(value)
  if left then
    if value ~= left then call('INCRBY', KEYS[1], value - left) end
  else
    call('SET', KEYS[1], value)
  end
  left = value
end

local end_changed = sort == 'global'

local function finish(late)
  wake(end_changed)
  if ARGV[15] ~= '' then wake_account({}) end
  return { late and 1 or 0, whole(call('GET', KEYS[1])) or -1, call('PTTL', KEYS[1]) }
end

if sort == 'global' then block(KEYS[3], away) end
if sort == 'lane' then block(KEYS[8], away) end

if sort ~= 'denied' and limit < 0 and left_there < 0 and until_reset < 0 then
  -- No limit is spoken of. Only where none was ever seen does a success mean that there is none.
  if sort == 'ok' and not window.limit then
    local value = tonumber(ARGV[12])
    call('SET', KEYS[2], value, 'PX', DAY_MS)
    if value > 0 then call('SET', KEYS[1], value, 'PX', DAY_MS) end
  end
  return finish(false)
end

if is_late() and sort ~= 'denied' then
  -- It counted in its own window: the place that was kept for it in this one is free.
  if was_held and left and window.began and granted < window.began and left < window.base then
    local back = math.min(units, window.base - left)
    put(left + back)
    if low then call('INCRBY', LOW, back) end
  end
  return finish(true)
end

if not is_known then
  window.base = limit_of(window) or 1
  -- Another client opened it, nobody knows when: no answer may count as too early for it.
  window.began = 0
  call('HSET', WINDOW, 'began', 0)
end
if limit > 0 then
  call('SET', KEYS[2], limit, 'PX', DAY_MS)
  call('HSET', WINDOW, 'limit', limit, 'base', limit)
  window.limit = limit
else
  limit = window.base
  call('HSET', WINDOW, 'base', limit)
end

-- Others that are under way may not be in what the upstream has counted.
local others = in_flight() + math.max(elsewhere, 0)
if left and left_there >= 0 then
  -- Between all that is under way counted there and none of it.
  local fitting = math.max(left, math.min(left_there, left + others))
  call('HSET', WINDOW, 'diverges', left_there - fitting)
end
local value = left and math.max(left, 0) + limit - window.base or math.max(limit - units - others, 0)
-- Without a word about the reset, what is left there is all there is to go by.
if left_there >= 0 and (left_there < value or until_reset < 0) then
  value = math.max(left_there - others, 0)
end
if is_moved and not (left and window.ends) then
  -- It was taken from the counter of the other name, and never from this one. The first answer of a
  -- window is the one to put that right; it speaks for those elsewhere too, and what it says is left
  -- leaves out those whose answers are on their way here.
  local known = left and value - units or value
  value = math.max(math.min(known, left_there >= 0 and left_there - others or known), 0)
end
if low and until_reset >= 0 then
  value = math.min(value, math.max(low + limit - window.base, 0))
end

-- Where only the length of a window is told, its first answer sets the end; one that left after an
-- answer and has more left than it began a new one.
if ARGV[13] == 'length' and left and ttl > 0 and left_there >= 0 then
  local seen = call('HMGET', WINDOW, 'seen', 'told')
  local has_more = left_there > (tonumber(seen[1]) or left_there)
  if has_more and granted >= (tonumber(seen[2]) or 0) then
    value, ttl = math.max(left_there - others, 0), -1
  else
    until_reset = ttl
  end
end
if ARGV[13] == 'length' then call('HSET', WINDOW, 'seen', left_there, 'told', now) end

-- A reset that moves while its window lasts belongs to a bucket that refills slot by slot. Whether it
-- lasted is told by the upstream's own clock: by ours, answers of three windows that all come late look
-- like one window whose reset moves.
local is_same = reset >= 0 and window.reset and math.abs(reset - window.reset) <= SAME_MS
if is_same then
  if window.slides < 2 then window.slides = 0 end
elseif reset >= 0 and window.reset and window.ends and window.ends - now > 50 then
  local lasted = reset - math.max(until_reset, 0) < window.reset - SAME_MS
  if lasted then window.slides = window.slides + 1 elseif window.slides < 2 then window.slides = 0 end
end
if ARGV[13] == 'sliding' then window.slides = 2 end
if window.slides >= 2 and left_there >= 0 and until_reset > 0 then
  value = math.max(left_there - others, 0)
  if limit > left_there then
    local interval = math.ceil(until_reset / (limit - left_there))
    window.interval = math.max(window.interval or 0, interval)
    call('HSET', WINDOW, 'interval', window.interval, 'filled', now)
  end
end

if sort == 'denied' then
  value, until_reset, is_same = 0, math.max(until_reset, away, 1), false
end
put(math.max(value, 0))
local ends = window.ends

-- The first answer says when the window ends; a later one may only put the end off.
if until_reset >= 0 then
  until_reset = math.max(math.min(until_reset, DAY_MS), 1)
  if ttl < 0 or (until_reset > ttl and not is_same) then
    call('PEXPIRE', KEYS[1], until_reset)
    keep_quick(until_reset)
    ends, end_changed = now + until_reset, true
    call('HSET', WINDOW, 'ends', ends)
  elseif not window.ends or window.ends < now then
    ends = now + ttl
    call('HSET', WINDOW, 'ends', ends)
  end
end
account(left, ends)
if reset >= 0 and reset > (window.reset or -1) then call('HSET', WINDOW, 'reset', reset) end
call('HSET', WINDOW, 'slides', window.slides)
call('PEXPIRE', WINDOW, DAY_MS)
return finish(false)
