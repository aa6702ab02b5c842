-- Enqueues jobs: of several calls, each all or none.
--
--   ARGV[3]   how many calls; then per call how many jobs, and per job
--             | start 1: 0 now, 1 after, 2 at | when 8 | job, its times yet to be filled in |
--
-- Answers { frame (look.lua), groups ..., calls ... }, each of the latter two a list. A group is
-- { name, state, units in all, paused, own limits }; a call is an error as text, or
-- | 'J' | per job: id 8, whether it is a duplicate 1, units ahead 8 (-1: not known) |.

local at = 4
local added, known, fresh = {}, {}, {}
local jobs_now, id_last = call('HLEN', P .. 'j'), nil
local heaviest = jobs_now == 0 and 0 or Q.heaviest
local order = tonumber(call('HGET', P .. 'c', 'or') or 0)

local function parse(text)
  local j = {}
  local start, when, length, pos
  start, when, j.priority, j.weight = read('<BdBI4', text)
  j.due = now
  if start == 1 then j.due = now + when elseif start == 2 then j.due = max(now, when) end
  length, pos = read('<I2', text, 59)
  j.key = length > 0 and text:sub(pos, pos + length - 1) or ''
  length, pos = read('<I2', text, pos + length)
  j.group, j.payload, j.text = text:sub(pos, pos + length - 1), pos + length, text
  return j
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
    list = { name = name, places = {}, extra = 0, raises = false, waits = 0 }
    added[name], known[#known + 1] = list, name
  end
  return list
end

-- Enqueues one; answers its id, whether it is a duplicate, and of those that start now its group
-- and how many of this run are before it.
local function put(j)
  local id = earlier(j)
  if id then return { id, 1 } end
  id = id_last + 1
  id_last = id
  remember(j, id)
  local list, ahead = added_to(j.group), nil
  if j.due > now then
    call('ZADD', P .. 'd:' .. j.group, j.due, pack('>I7', id))
    Q.delayed = call('HINCRBY', P .. 'c', 'dl', 1)
    list.raises = true
  else
    order = max(order, j.due)
    j.due = order
    local places = list.places
    places[#places + 1], places[#places + 2] = 0, job_place(id, j)
    if j.priority > 0 then list.raises = true else ahead = list.waits end
    list.waits, list.extra = list.waits + 1, list.extra + j.weight - 1
  end
  heaviest = max(heaviest, j.weight)
  fresh[#fresh + 1] = id
  fresh[#fresh + 1] = j.text:sub(10, 22) .. pack('<dd', now, j.due) .. j.text:sub(39)
  jobs_now = jobs_now + 1
  return { id, 0, list, ahead }
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
    for k = 1, #jobs do jobs[k] = put(jobs[k]) end
  end
end
count('enqueued', #fresh / 2)
chunked(fresh, function(...) call('HSET', P .. 'j', ...) end)
if heaviest > 1 and heaviest ~= Q.heaviest then call('HSET', P .. 'c', 'hv', heaviest) end
Q.heaviest = max(1, heaviest)

local names = {}
groups_load(known)
for _, name in ipairs(known) do
  local list, g = added[name], groups[name]
  chunked(list.places, function(...) call('ZADD', g.waits, ...) end)
  if list.extra > 0 then call('HINCRBY', P .. 'u', name, list.extra) end
  list.before = g.waiting
  g.waiting, g.dirty = g.waiting + list.waits, true
  if g.turn == 0 then names[#names + 1], names[#names + 2] = 0, name end
  -- Behind others that wait it changes nothing about when the first may start.
  if list.before == 0 or list.raises then
    group_promote(g)
    group_place(g)
  end
end
chunked(names, function(...) call('ZADD', P .. 'i', ...) end)
if order > 0 then call('HSET', P .. 'c', 'or', ('%d'):format(order)) end
save()

local told = {}
for n, name in ipairs(known) do
  local list, g = added[name], groups[name]
  list.extra = Q.heaviest > 1 and tonumber(call('HGET', P .. 'u', name) or 0) or 0
  told[n] = { name, group_bytes(g), list.before + list.waits + list.extra,
    (Q.paused or is_paused(g)) and 1 or 0, g.limits ~= Q.group_limits and call('HGET', P .. 'o', name) or '' }
end
for n, jobs in ipairs(calls) do
  if type(jobs) == 'table' then
    for k = 1, #jobs do
      local id, duplicate, list, ahead = unpack(jobs[k], 1, 4)
      -- Jobs of several units stand somewhere behind; all of them are counted as ahead.
      jobs[k] = pack('<dBd', id, duplicate, ahead and ahead + list.before + list.extra or -1)
    end
    calls[n] = 'J' .. table.concat(jobs)
  end
end
local frame = frame_told()
return reply({ frame, told, calls }, { frame, {}, calls })
