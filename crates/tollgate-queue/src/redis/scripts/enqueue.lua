-- Enqueues jobs: of several calls, each all or none.
--
--   ARGV[3]   how many calls; then per call how many jobs, when they start, and the jobs without their
--             times. When they start is '' if all start now and none has a key, and otherwise per job
--             | 0 now, 1 after, 2 at 1 | when 8 |
--
-- Answers { frame (jobs.lua), { name, state, units ahead of the first new job, units in all, of each
-- group ... }, { whether it is paused, own limits, of each group ... } (empty if none is or has any),
-- { call ... } }. A call is an error as text, or | 'S' | first id 8 | if
-- its jobs have ids in a row and stand one behind the other, as those of all calls before it, or
-- | 'J' | per job: id 8, whether it is a duplicate 1, units ahead 8 (-1: not known) |.

local TIMES = 9
local added, known, fresh = {}, {}, {}
local jobs_now, id_last = call('HLEN', P .. 'j'), nil
local heaviest = jobs_now == 0 and 0 or Q.heaviest
local order = tonumber(call('HGET', P .. 'c', 'or') or 0)

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

-- Why a call of the jobs `from` to `upto` cannot be granted, if it cannot.
local groups_now
local function refusal(from, upto)
  local many = upto - from + 1
  if jobs_now + many > Q.jobs_max then
    return ('FULL the queue holds %d jobs and may hold no more'):format(jobs_now)
  end
  groups_now = groups_now or call('ZCARD', P .. 'i')
  if groups_now + #known + many > Q.groups_max then
    local new, seen = 0, {}
    for _, list in pairs(added) do
      if not call('ZSCORE', P .. 'i', list.name) then new, seen[list.name] = new + 1, true end
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

-- Enqueues one; its id, whether it is a duplicate, and if not its group and, of those that start now,
-- how many of this run are before it.
local stamp, stamp_due
local function put(text, due)
  local priority, weight, key, name = parse(text)
  local id = key and earlier(key)
  if id then return id, 1, false, -1 end
  id = id_last + 1
  id_last = id
  if key then remember(key, id) end
  local list, ahead = added[name], -1
  if not list then
    list = { name = name, places = {}, extra = 0, raises = false, waits = 0, before = 0, value = '' }
    added[name], known[#known + 1] = list, name
  end
  if due > now then
    call('ZADD', P .. 'd:' .. name, due, pack('>I7', id))
    Q.delayed = call('HINCRBY', P .. 'c', 'dl', 1)
    list.raises = true
  else
    order = max(order, due)
    due = order
    local places = list.places
    places[#places + 1], places[#places + 2] = '0', pack('>BI7I7I4', 255 - priority, due, id, weight)
    if priority > 0 then list.raises = true else ahead = list.waits end
    list.waits, list.extra = list.waits + 1, list.extra + weight - 1
  end
  if weight > heaviest then heaviest = weight end
  if stamp_due ~= due then stamp, stamp_due = pack('<dd', now, due), due end
  fresh[#fresh + 1], fresh[#fresh + 2] = ('%d'):format(id), stamp .. text
  jobs_now = jobs_now + 1
  return id, 0, list, ahead
end

-- Enqueues the jobs of a call that start now, one behind the other.
local function put_row(from, upto)
  local first = id_last + 1
  for n = from, upto do put(ARGV[n], now) end
  return 'S' .. pack('<d', first)
end

-- Enqueues the jobs of a call that are told one by one.
local function put_each(from, upto, starts)
  local jobs = {}
  for n = from, upto do
    local start, when = 0, 0
    if starts ~= '' then start, when = read('<Bd', starts, TIMES * (n - from) + 1) end
    local due = now
    if start == 1 then due = now + when elseif start == 2 then due = max(now, when) end
    jobs[#jobs + 1] = { put(ARGV[n], due) }
  end
  return jobs
end

local at, heads, wanted = 4, {}, 0
for n = 1, tonumber(ARGV[3]) do
  heads[n] = at
  local many = tonumber(ARGV[at])
  at, wanted = at + 2 + many, wanted + many
end
id_last = call('HINCRBY', P .. 'c', 'n', wanted) - wanted
local calls, in_a_row = {}, true
for n, head in ipairs(heads) do
  local from, upto, starts = head + 2, head + 1 + tonumber(ARGV[head]), ARGV[head + 1]
  local wrong = refusal(from, upto)
  in_a_row = in_a_row and (wrong or starts == '')
  calls[n] = wrong or (in_a_row and put_row or put_each)(from, upto, starts)
end
count('enqueued', #fresh / 2)
chunked(fresh, function(...) call('HSET', P .. 'j', ...) end)
if heaviest > 1 and heaviest ~= Q.heaviest then call('HSET', P .. 'c', 'hv', heaviest) end
Q.heaviest = max(1, heaviest)

local function line_up(list)
  local key = P .. 'w:' .. list.name
  if #list.places == 2 then
    call('ZADD', key, '0', list.places[2])
  else
    chunked(list.places, function(...) call('ZADD', key, ...) end)
  end
  if list.extra > 0 then call('HINCRBY', P .. 'u', list.name, list.extra) end
  return key
end

-- Jobs behind others that wait change nothing about when the first may start: of such a group nothing
-- is written but its line. The other groups are loaded and placed.
local others = {}
for from = 1, #known, CHUNK do
  local upto = min(from + CHUNK - 1, #known)
  local values = call('HMGET', P .. 'gs', unpack(known, from, upto))
  for n = from, upto do
    local list, value = added[known[n]], values[n - from + 1]
    if value and not list.raises and read('<I4', value, 21) > 0 then
      list.before, list.value = call('ZCARD', line_up(list)) - list.waits, value
    else
      others[#others + 1] = list.name
    end
  end
end

local names = {}
groups_load(others)
for _, name in ipairs(others) do
  local list, g = added[name], groups[name]
  list.before = g.waiting
  line_up(list)
  g.waiting, g.dirty = g.waiting + list.waits, true
  if g.turn == 0 then names[#names + 1], names[#names + 2] = 0, name end
  group_promote(g)
  group_place(g)
end
chunked(names, function(...) call('ZADD', P .. 'i', ...) end)
if order > 0 then call('HSET', P .. 'c', 'or', ('%d'):format(order)) end
save()

local told, special, is_special = {}, {}, Q.paused or any_paused() or any_own()
for n, name in ipairs(known) do
  local list, g = added[name], groups[name]
  list.extra = Q.heaviest > 1 and tonumber(call('HGET', P .. 'u', name) or 0) or 0
  local k, ahead = 4 * n - 4, list.before + list.extra
  told[k + 1], told[k + 2] = name, g and group_bytes(g) or list.value
  told[k + 3], told[k + 4] = ahead, ahead + list.waits
  if is_special then
    special[#special + 1] = (Q.paused or is_paused(name)) and 1 or 0
    special[#special + 1] = own_limits(name)
  end
end
for n, jobs in ipairs(calls) do
  if type(jobs) == 'table' then
    for k = 1, #jobs do
      local id, duplicate, list, ahead = unpack(jobs[k])
      -- Jobs of several units stand somewhere behind; all of them are counted as ahead.
      if ahead >= 0 then ahead = ahead + list.before + list.extra end
      jobs[k] = pack('<dBd', id, duplicate, ahead)
    end
    calls[n] = 'J' .. table.concat(jobs)
  end
end
local frame = frame_told()
return reply({ frame, told, special, calls }, { frame, {}, {}, calls })
