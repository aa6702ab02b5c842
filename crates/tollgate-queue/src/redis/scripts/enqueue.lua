-- Enqueues jobs: of several calls, each all or none.
--
--   ARGV[3]   how many jobs each call has, 4 bytes each
--   ARGV[4]   '' if all jobs start now and none has a key, and otherwise per job
--             | 0 now, 1 after, 2 at 1 | when 8 |
--   ARGV[5..] the jobs without their times
--
-- Answers { frame (jobs.lua), { name, state, units ahead of the first new job, units in all, of each
-- group ... }, { whether it is paused, own limits, of each group ... } (empty if none is or has any),
-- calls }. Calls are the first id if all jobs have ids in a row and stand one behind the other, and
-- otherwise, each, an error as text, or | 'J' | per job: id 8, whether it is a duplicate 1, units
-- ahead 8 (-1: not known) |.

local COUNT, TIMES, FIRST = 4, 9, 5
local counts, starts = ARGV[3], ARGV[4]
local jobs_now, fresh = call('HLEN', P .. 'j'), {}
local heaviest = jobs_now == 0 and 0 or Q.heaviest
local order = tonumber(call('HGET', P .. 'c', 'or') or 0)
local id_last = call('HINCRBY', P .. 'c', 'n', #ARGV - FIRST + 1) - (#ARGV - FIRST + 1)

-- Of each group, by its number: name, jobs that come (an id or several), places of odd ones, units
-- beyond one each, jobs that do not start later, whether there is more to do than to line up; and
-- what is found: jobs before these, state, units of all that wait beyond one each.
local number_of, known, came, odd, extra, waits, is_special = {}, {}, {}, {}, {}, {}, {}
local before, values, beyond = {}, {}, {}

local function number(name)
  local k = number_of[name]
  if not k then
    k = #known + 1
    number_of[name], known[k], waits[k], extra[k] = k, name, 0, 0
  end
  return k
end

-- Priority, weight, key if any, group and where the payload begins.
local function parse(text)
  local priority, a, b, c, d = text:byte(1, 5)
  local low, high = text:byte(34, 35)
  local at, key = 36 + low + 256 * high, nil
  if at > 36 then key = text:sub(36, at - 1) end
  low, high = text:byte(at, at + 1)
  local payload = at + 2 + low + 256 * high
  return priority, a + 256 * (b + 256 * (c + 256 * d)), key, text:sub(at + 2, payload - 1), payload
end

-- Why the jobs `from` to `upto` cannot be taken, if they cannot.
local groups_now
local function refusal(from, upto)
  local many = upto - from + 1
  if jobs_now + many > Q.jobs_max then
    return ('FULL the queue holds %d jobs and may hold no more'):format(jobs_now)
  end
  groups_now = groups_now or call('ZCARD', P .. 'i')
  if groups_now + #known + many > Q.groups_max then
    local new, seen = 0, {}
    for _, name in ipairs(known) do
      if not call('ZSCORE', P .. 'i', name) then new, seen[name] = new + 1, true end
    end
    for n = from, upto do
      local _, _, _, group = parse(ARGV[n])
      if not seen[group] and not call('ZSCORE', P .. 'i', group) then new = new + 1 end
      seen[group] = true
    end
    if groups_now + new > Q.groups_max then
      return ('FULL the queue has %d groups and may have no more'):format(groups_now)
    end
  end
  for n = from, upto do
    if #ARGV[n] > Q.payload_max then
      local _, _, _, _, payload = parse(ARGV[n])
      local length = #ARGV[n] - payload + 1
      if length > Q.payload_max then
        return ('INVALID a payload of %d bytes; at most %d are allowed'):format(length, Q.payload_max)
      end
    end
  end
end

-- The job that was enqueued with the same key, if that is remembered.
local function earlier(key)
  local held = call('GET', P .. 'k:' .. key)
  if not held then return nil end
  local id, upto = held:match('(%d+):(%d+)')
  return tonumber(upto) > now and tonumber(id) or nil
end

local function remember(key, id)
  if Q.key_window == 0 then return end
  local held = ('%d:%d'):format(id, now + Q.key_window)
  call('SET', P .. 'k:' .. key, held, 'PX', ms(Q.key_window))
  call('ZADD', P .. 'ki', id, key)
  call('PEXPIRE', P .. 'ki', ms(Q.key_window))
  if call('ZCARD', P .. 'ki') > Q.keys_max then
    local oldest = call('ZPOPMIN', P .. 'ki')
    call('DEL', P .. 'k:' .. oldest[1])
  end
end

-- Puts a job that starts now into the line of its group: at its end, unless it is odd.
local function line_up(k, id, priority, weight)
  waits[k] = waits[k] + 1
  if priority > 0 or weight > 1 then
    local places = odd[k] or {}
    places[#places + 1], places[#places + 2] = 0, pack('>BI7I7I4', 255 - priority, order, id, weight)
    odd[k], extra[k], is_special[k] = places, extra[k] + weight - 1, true
    return
  end
  local ids = came[k]
  if not ids then
    came[k] = id
  elseif type(ids) == 'table' then
    ids[#ids + 1] = id
  else
    came[k] = { ids, id }
  end
end

-- Enqueues one; its id, whether it is a duplicate, and if not the number of its group and, of those
-- that start now, how many of this run are before it.
local stamp, stamp_due
local function put(text, due)
  local priority, weight, key, name = parse(text)
  local id = key and earlier(key)
  if id then return id, 1, 0, -1 end
  id_last = id_last + 1
  if key then remember(key, id_last) end
  local k, ahead = number(name), -1
  id = ('%d'):format(id_last)
  if due > now then
    call('ZADD', P .. 'd:' .. name, due, pack('>I7', id))
    Q.delayed = call('HINCRBY', P .. 'c', 'dl', 1)
    is_special[k] = true
  else
    order = max(order, due)
    due = order
    if priority == 0 then ahead = waits[k] end
    line_up(k, id, priority, weight)
  end
  if weight > heaviest then heaviest = weight end
  if stamp_due ~= due then stamp, stamp_due = pack('<dd', now, due), due end
  fresh[#fresh + 1], fresh[#fresh + 2] = id, stamp .. text
  jobs_now = jobs_now + 1
  return id_last, 0, k, ahead
end

-- Enqueues the jobs of a call that are told one by one.
local function put_each(from, upto)
  local jobs = {}
  for n = from, upto do
    local start, when = 0, 0
    if starts ~= '' then start, when = read('<Bd', starts, TIMES * (n - FIRST) + 1) end
    local due = now
    if start == 1 then due = now + when elseif start == 2 then due = max(now, when) end
    jobs[#jobs + 1] = { put(ARGV[n], due) }
  end
  return jobs
end

local calls
if starts == '' and not refusal(FIRST, #ARGV) then
  calls = ('%d'):format(id_last + 1)
  for n = FIRST, #ARGV do put(ARGV[n], now) end
else
  calls = {}
  local from = FIRST
  for at = 1, #counts, COUNT do
    local upto = from + read('<I4', counts, at) - 1
    calls[#calls + 1] = refusal(from, upto) or put_each(from, upto)
    from = upto + 1
  end
end
count('enqueued', #fresh / 2)
chunked(fresh, function(...) call('HSET', P .. 'j', ...) end)
if heaviest > 1 and heaviest ~= Q.heaviest then call('HSET', P .. 'c', 'hv', heaviest) end
Q.heaviest = max(1, heaviest)

-- Lets the jobs that come stand at the end of their line; how many are in it now.
local function join(name, ids)
  if type(ids) ~= 'table' then return call('RPUSH', came_of(name), ids) end
  local length
  chunked(ids, function(...) length = call('RPUSH', came_of(name), ...) end)
  return length
end

-- Jobs behind others that wait change nothing about when the first may start: of such a group nothing
-- is written but its line. The other groups are loaded and placed.
local others = {}
for from = 1, #known, CHUNK do
  local upto = min(from + CHUNK - 1, #known)
  local states = call('HMGET', P .. 'gs', unpack(known, from, upto))
  for k = from, upto do
    local name, value, waiting, in_odd = known[k], states[k - from + 1], 0, 0
    if value and not is_special[k] then waiting, in_odd = read('<I4I4', value, WAITING_AT) end
    if waiting > 0 then
      before[k], values[k] = join(name, came[k]) - waits[k] + in_odd, value
    else
      others[#others + 1] = name
    end
  end
end

local names = {}
groups_load(others)
for _, name in ipairs(others) do
  local k, g = number_of[name], groups[name]
  before[k] = g.waiting
  if came[k] then
    join(name, came[k])
    g.waiting, g.dirty = g.waiting + (type(came[k]) == 'table' and #came[k] or 1), true
  end
  line_put(g, odd[k] or {}, extra[k])
  if g.turn == 0 then names[#names + 1], names[#names + 2] = 0, name end
  group_promote(g)
  group_place(g)
end
chunked(names, function(...) call('ZADD', P .. 'i', ...) end)
if order > 0 then call('HSET', P .. 'c', 'or', ('%d'):format(order)) end
save()

local told, special, any_special = {}, {}, Q.paused or any_paused() or any_own()
for k, name in ipairs(known) do
  local g, at = groups[name], 4 * k - 4
  beyond[k] = Q.heaviest > 1 and tonumber(call('HGET', P .. 'u', name) or 0) or 0
  local ahead = before[k] + beyond[k]
  told[at + 1], told[at + 2] = name, g and group_bytes(g) or values[k]
  told[at + 3], told[at + 4] = ahead, ahead + waits[k]
  if any_special then
    special[#special + 1] = (Q.paused or is_paused(name)) and 1 or 0
    special[#special + 1] = own_limits(name)
  end
end
for n, jobs in ipairs(type(calls) == 'table' and calls or {}) do
  if type(jobs) == 'table' then
    for j = 1, #jobs do
      local id, duplicate, k, ahead = unpack(jobs[j])
      -- Jobs of several units stand somewhere behind; all of them are counted as ahead.
      if ahead >= 0 then ahead = ahead + before[k] + beyond[k] end
      jobs[j] = pack('<dBd', id, duplicate, ahead)
    end
    calls[n] = 'J' .. table.concat(jobs)
  end
end
local frame = frame_told()
return reply({ frame, told, special, calls }, { frame, {}, {}, calls })
