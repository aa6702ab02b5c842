-- Enqueues jobs: of several calls, each all or none.
--
--   ARGV[3]   how many calls; then per call how many jobs, and per job
--             | start 1: 0 now, 1 after, 2 at | when 8 | job, its times yet to be filled in |
--
-- Answers { frame (jobs.lua), { name, state, units in all, paused, own limits, of each group ... },
-- { call ... } }. A call is an error as text, or
-- | 'J' | per job: id 8, whether it is a duplicate 1, units ahead 8 (-1: not known) |.

local at = 4
local added, known, fresh = {}, {}, {}
local jobs_now, id_last = call('HLEN', P .. 'j'), nil
local heaviest = jobs_now == 0 and 0 or Q.heaviest
local order = tonumber(call('HGET', P .. 'c', 'or') or 0)

local function parse(text)
  local start, when, priority, weight = read('<BdBI4', text)
  local due, key = now, ''
  if start == 1 then due = now + when elseif start == 2 then due = max(now, when) end
  local length, pos = read('<I2', text, 59)
  if length > 0 then key = text:sub(pos, pos + length - 1) end
  length, pos = read('<I2', text, pos + length)
  return { priority = priority, weight = weight, due = due, key = key, payload = pos + length,
    group = text:sub(pos, pos + length - 1), text = text, id = 0, duplicate = 0, list = false, ahead = -1 }
end

-- Why a call cannot be granted, if it cannot.
local groups_now
local function refusal(jobs)
  if jobs_now + #jobs > Q.jobs_max then
    return ('FULL the queue holds %d jobs and may hold no more'):format(jobs_now)
  end
  groups_now = groups_now or call('ZCARD', P .. 'i')
  if groups_now + #known + #jobs > Q.groups_max then
    local new, seen = 0, {}
    for _, list in pairs(added) do
      if not call('ZSCORE', P .. 'i', list.name) then new, seen[list.name] = new + 1, true end
    end
    for _, j in ipairs(jobs) do
      if not seen[j.group] and not call('ZSCORE', P .. 'i', j.group) then new = new + 1 end
      seen[j.group] = true
    end
    if groups_now + new > Q.groups_max then
      return ('FULL the queue has %d groups and may have no more'):format(groups_now)
    end
  end
  for _, j in ipairs(jobs) do
    local length = #j.text - j.payload + 1
    if length > Q.payload_max then
      return ('INVALID a payload of %d bytes; at most %d are allowed'):format(length, Q.payload_max)
    end
  end
end

-- The job that was enqueued with the same key, if that is remembered.
local function earlier(j)
  if j.key == '' then return nil end
  local held = call('GET', P .. 'k:' .. j.key)
  if not held then return nil end
  local id, upto = held:match('(%d+):(%d+)')
  return tonumber(upto) > now and tonumber(id) or nil
end

local function remember(j, id)
  if j.key == '' or Q.key_window == 0 then return end
  local held = ('%d:%d'):format(id, now + Q.key_window)
  call('SET', P .. 'k:' .. j.key, held, 'PX', ms(Q.key_window))
  call('ZADD', P .. 'ki', id, j.key)
  call('PEXPIRE', P .. 'ki', ms(Q.key_window))
  if call('ZCARD', P .. 'ki') > Q.keys_max then
    local oldest = call('ZPOPMIN', P .. 'ki')
    call('DEL', P .. 'k:' .. oldest[1])
  end
end

local function added_to(name)
  local list = added[name]
  if not list then
    list = { name = name, places = {}, extra = 0, raises = false, waits = 0, before = 0, value = '' }
    added[name], known[#known + 1] = list, name
  end
  return list
end

-- Enqueues one, and notes its id, whether it is a duplicate, its group, and, of those that start
-- now, how many of this run are before it.
local stamp, stamp_due
local function put(j)
  local id = earlier(j)
  if id then
    j.id, j.duplicate = id, 1
    return
  end
  id = id_last + 1
  id_last = id
  remember(j, id)
  local list = added_to(j.group)
  j.id, j.list = id, list
  if j.due > now then
    call('ZADD', P .. 'd:' .. j.group, j.due, pack('>I7', id))
    Q.delayed = call('HINCRBY', P .. 'c', 'dl', 1)
    list.raises = true
  else
    order = max(order, j.due)
    j.due = order
    local places = list.places
    places[#places + 1], places[#places + 2] = 0, job_place(id, j)
    if j.priority > 0 then list.raises = true else j.ahead = list.waits end
    list.waits, list.extra = list.waits + 1, list.extra + j.weight - 1
  end
  if j.weight > heaviest then heaviest = j.weight end
  if stamp_due ~= j.due then stamp, stamp_due = pack('<dd', now, j.due), j.due end
  fresh[#fresh + 1], fresh[#fresh + 2] = id, j.text:sub(10, 22) .. stamp .. j.text:sub(39)
  jobs_now = jobs_now + 1
end

local calls, wanted = {}, 0
for n = 1, tonumber(ARGV[3]) do
  local jobs = {}
  for k = 1, tonumber(ARGV[at]) do jobs[k] = parse(ARGV[at + k]) end
  at = at + 1 + #jobs
  calls[n], wanted = jobs, wanted + #jobs
end
id_last = call('HINCRBY', P .. 'c', 'n', wanted) - wanted
for n, jobs in ipairs(calls) do
  local wrong = refusal(jobs)
  if wrong then
    calls[n] = wrong
  else
    for k = 1, #jobs do put(jobs[k]) end
  end
end
count('enqueued', #fresh / 2)
chunked(fresh, function(...) call('HSET', P .. 'j', ...) end)
if heaviest > 1 and heaviest ~= Q.heaviest then call('HSET', P .. 'c', 'hv', heaviest) end
Q.heaviest = max(1, heaviest)

-- Jobs behind others that wait change nothing about when the first may start: of such a group only
-- the number of those that wait is written anew. The other groups are loaded and placed.
local others, puts = {}, {}
local function put_behind(list, value)
  local waiting = value and not list.raises and read('<I4', value, 21) or 0
  if waiting == 0 then
    others[#others + 1] = list.name
    return
  end
  list.before = waiting
  list.value = value:sub(1, 20) .. pack('<I4', waiting + list.waits) .. value:sub(25)
  puts[#puts + 1], puts[#puts + 2] = list.name, list.value
end

for from = 1, #known, CHUNK do
  local upto = min(from + CHUNK - 1, #known)
  local values = call('HMGET', P .. 'gs', unpack(known, from, upto))
  for n = from, upto do
    local list = added[known[n]]
    local key = P .. 'w:' .. list.name
    if #list.places == 2 then
      call('ZADD', key, 0, list.places[2])
    else
      chunked(list.places, function(...) call('ZADD', key, ...) end)
    end
    if list.extra > 0 then call('HINCRBY', P .. 'u', list.name, list.extra) end
    put_behind(list, values[n - from + 1])
  end
end
chunked(puts, function(...) call('HSET', P .. 'gs', ...) end)

local names = {}
groups_load(others)
for _, name in ipairs(others) do
  local list, g = added[name], groups[name]
  list.before = g.waiting
  g.waiting, g.dirty = g.waiting + list.waits, true
  if g.turn == 0 then names[#names + 1], names[#names + 2] = 0, name end
  group_promote(g)
  group_place(g)
end
chunked(names, function(...) call('ZADD', P .. 'i', ...) end)
if order > 0 then call('HSET', P .. 'c', 'or', ('%d'):format(order)) end
save()

local told = {}
for n, name in ipairs(known) do
  local list, g = added[name], groups[name]
  list.extra = Q.heaviest > 1 and tonumber(call('HGET', P .. 'u', name) or 0) or 0
  local k = 5 * n - 5
  told[k + 1], told[k + 2] = name, g and group_bytes(g) or list.value
  told[k + 3], told[k + 4] = list.before + list.waits + list.extra, (Q.paused or is_paused(name)) and 1 or 0
  told[k + 5] = own_limits(name)
end
for n, jobs in ipairs(calls) do
  if type(jobs) == 'table' then
    for k = 1, #jobs do
      local j = jobs[k]
      -- Jobs of several units stand somewhere behind; all of them are counted as ahead.
      local ahead = j.ahead >= 0 and j.ahead + j.list.before + j.list.extra or -1
      jobs[k] = pack('<dBd', j.id, j.duplicate, ahead)
    end
    calls[n] = 'J' .. table.concat(jobs)
  end
end
local frame = frame_told()
return reply({ frame, told, calls }, { frame, {}, calls })
