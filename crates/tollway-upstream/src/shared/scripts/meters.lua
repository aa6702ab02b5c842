-- Further limits that count the same requests: tokens, a longer window, the credential's.
--
-- Stands behind bucket.lua, which draws the keys.
--
--   field   <dimension>.<part>     which limit; a part is one of several windows of a dimension
--   value   limit left ends began told interval filled seen, `-` where not known:
--           left      units that may be taken; what is under way is taken already
--           ends      when the window ends, or a sliding limit is full again
--           began     when we opened the window ourselves: earlier requests say nothing of it
--           told      when an answer last said what is left
--           interval, filled   sliding: milliseconds per unit, since when units come back
--           seen      what the last answer said is left
--
-- What a request takes is part of its permit's name, so whoever holds a lease is known to hold those
-- units, and a process that dies gives them back with its lease.
--
-- All or nothing: a request that one limit has no room for takes from none.

-- Who has room in its bucket and none in its credential stands in a line of the credential, one of
-- each bucket: the others are behind it in theirs. A line that only buckets had would let whichever
-- bucket asks next take what another has waited for.

local METERS, ACCOUNT = KEYS[10], KEYS[11]
local ACCOUNT_LINE, ACCOUNT_ALIVE = KEYS[15], KEYS[16]
-- Of the credential's line, how many are looked at for those that may go.
local LOOK_MAX = 32

-- Units under way by dimension: of this bucket, or of all.
local function held_in(key)
  local held = {}
  local leases = key == METERS and LEASES or FLIGHTS
  for _, permit in ipairs(call('ZRANGEBYSCORE', leases, '(' .. now, '+inf')) do
    local _, further = costs_of(permit)
    for dimension, units in pairs(further) do
      held[dimension] = (held[dimension] or 0) + units
    end
  end
  return held
end

local function parse(key, id, text)
  local number = {}
  for word in string.gmatch(text, '%S+') do number[#number + 1] = tonumber(word) or false end
  return {
    key = key, id = id, dimension = string.match(id, '^%d+'), limit = number[1] or 1,
    left = number[2] or 0, ends = number[3], began = number[4], told = number[5],
    interval = number[6], filled = number[7], seen = number[8],
  }
end

local function write(meter)
  local words = {}
  local names = { 'limit', 'left', 'ends', 'began', 'told', 'interval', 'filled', 'seen' }
  for i, name in ipairs(names) do
    words[i] = meter[name] and string.format('%.0f', meter[name]) or '-'
  end
  call('HSET', meter.key, meter.id, table.concat(words, ' '))
  call('PEXPIRE', meter.key, DAY_MS)
end

-- What has come back since: all of it when a window is over, or slot by slot.
local function refresh(meter, held)
  local under_way = held[meter.dimension] or 0
  if meter.ends and now >= meter.ends or not meter.ends and under_way == 0 then
    -- What is still under way may reach the upstream after the reset and count there.
    meter.left, meter.began = math.max(meter.limit - under_way, 0), now
    meter.ends, meter.filled, meter.seen = false, false, false
  elseif meter.interval and meter.filled then
    local units = math.floor((now - meter.filled) / meter.interval)
    if units > 0 then
      meter.left = math.min(meter.left + units, meter.limit)
      meter.filled = meter.filled + units * meter.interval
    end
  end
end

-- All that count this bucket's requests, or those of the credential alone, as they stand now.
local function read_meters(keys)
  local meters = {}
  for _, key in ipairs(keys or { METERS, ACCOUNT }) do
    local fields = call('HGETALL', key)
    local held = #fields > 0 and held_in(key) or nil
    for i = 1, #fields, 2 do
      local meter = parse(key, fields[i], fields[i + 1])
      refresh(meter, held)
      meters[#meters + 1] = meter
    end
  end
  return meters
end

-- Until when the first limit without room for these units has to be waited for, for what, and whose it
-- is; nil if all have room. What costs more than a limit ever has takes all of it.
local function lacking(meters, further)
  for _, meter in ipairs(meters) do
    local units = math.min(further[meter.dimension] or 0, meter.limit)
    if units > meter.left then
      if meter.interval and meter.filled then
        local wait_ms = (units - meter.left) * meter.interval - (now - meter.filled)
        return math.max(math.ceil(wait_ms), 1), FULL, meter.key
      end
      if meter.ends then return meter.ends - now + 1, FULL, meter.key end
      return math.ceil(lease_ms / 3), HEADERS, meter.key
    end
  end
end

-- Takes units of all.
local function spend(meters, further)
  for _, meter in ipairs(meters) do
    meter.left = math.max(meter.left - (further[meter.dimension] or 0), 0)
  end
end

-- Gives units back that were never used, into the window that they were taken from.
local function give_back(meters, further, granted)
  for _, meter in ipairs(meters) do
    if not (meter.began and granted < meter.began) then
      local units = math.min(further[meter.dimension] or 0, meter.limit)
      meter.left = math.min(meter.left + units, meter.limit)
    end
  end
end

-- The name of a ticket of this bucket in the credential's line.
local function in_account(ticket) return ticket .. '\n' .. ARGV[3] end

-- Whether a request that takes so much has to let one of another bucket go first, which came earlier.
local function is_behind(meters, further, ticket, arrival)
  if call('EXISTS', ACCOUNT_LINE) == 0 then return false end
  local is_counted = false
  for _, meter in ipairs(meters) do
    is_counted = is_counted or meter.key == ACCOUNT and further[meter.dimension] ~= nil
  end
  if not is_counted then return false end
  forget_lost_of(ACCOUNT_LINE, ACCOUNT_ALIVE)
  local first = call('ZRANGE', ACCOUNT_LINE, 0, 0, 'WITHSCORES')
  if not first[1] or string.match(first[1], '\n(.*)$') == ARGV[3] then return false end
  local own = tonumber(call('ZSCORE', ACCOUNT_LINE, in_account(ticket))) or arrival
  return tonumber(first[2]) < own
end

-- Takes tickets of this bucket out of the credential's line.
local function leave_account(tickets)
  if #tickets == 0 or call('EXISTS', ACCOUNT_LINE) == 0 then return end
  local names = {}
  for i, ticket in ipairs(tickets) do names[i] = in_account(ticket) end
  call('ZREM', ACCOUNT_LINE, unpack(names))
  call('ZREM', ACCOUNT_ALIVE, unpack(names))
end

-- Wakes those of the credential's line for whom there is room, first come first, of whatever bucket;
-- not those who are just being answered.
local function wake_account(answered)
  if call('EXISTS', ACCOUNT_LINE) == 0 then return end
  forget_lost_of(ACCOUNT_LINE, ACCOUNT_ALIVE)
  local meters = read_meters({ ACCOUNT })
  for _, name in ipairs(call('ZRANGE', ACCOUNT_LINE, 0, LOOK_MAX - 1)) do
    local ticket, bucket = string.match(name, '^([^\n]*)\n(.*)$')
    local _, further = costs_of(ticket)
    if lacking(meters, further) then return end
    spend(meters, further)
    if not answered[ticket] then
      local process = string.match(ticket, '^([^.]*)')
      call('PUBLISH', ARGV[2] .. process, bucket .. '\n0\n' .. ticket)
    end
  end
end

-- How long a remainder holds whose reset nobody tells.
local UNTOLD_MS = 1000

-- Puts the end of a window off, if an answer says so. Where only the length of the window is told,
-- the first answer of a window sets its end, and one that has more left than the one before it began
-- a new one.
local function set_end(meter, left, after, window, is_newer)
  if window == 'length' then
    local has_more = is_newer and meter.seen and left > meter.seen
    if meter.ends and not has_more then return false end
    meter.ends = now + after
    return true
  end
  if not meter.ends or window == 'sliding' or now + after > meter.ends + SAME_MS then
    meter.ends = now + after
  end
  return window == 'sliding' and is_newer
end

-- What an answer told of further limits, each as
-- `<id> <b or c> <limit> <left> <ms to reset> <fixed, sliding or length>;`, the last if only the length
-- of the window is told and no reset.
local function learn_meters(text, granted)
  if text == '' then return end
  local held = { [METERS] = held_in(METERS), [ACCOUNT] = held_in(ACCOUNT) }
  for id, reach, limit, left, after, window in
    string.gmatch(text, '(%S+) (%a) (%-?%d+) (%-?%d+) (%-?%d+) (%a+);') do
    local key = reach == 'c' and ACCOUNT or METERS
    local known = call('HGET', key, id)
    local meter = parse(key, id, known or '-')
    limit, left, after = tonumber(limit), tonumber(left), tonumber(after)
    if known then refresh(meter, held[key]) end
    if limit > 0 then
      if known then meter.left = math.max(meter.left + limit - meter.limit, 0) end
      meter.limit = limit
    end
    -- An answer to a request from before the window says nothing of it.
    if left >= 0 and not (meter.began and granted < meter.began) then
      local free = math.max(left - (held[key][meter.dimension] or 0), 0)
      local is_newer = not meter.told or granted >= meter.told
      local is_known = known and meter.ends
      after = after < 0 and UNTOLD_MS or math.max(math.min(after, DAY_MS), 1)
      local may_rise = set_end(meter, left, after, window, is_newer)
      if not known or free < meter.left or may_rise and is_known then meter.left = free end
      if window == 'sliding' and meter.limit > left then
        meter.interval, meter.filled = math.ceil(after / (meter.limit - left)), now
      end
      meter.told, meter.seen = now, left
    end
    write(meter)
  end
end
