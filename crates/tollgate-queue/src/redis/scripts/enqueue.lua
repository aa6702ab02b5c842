-- Enqueues jobs: of several calls, each all or none.
--
--   ARGV[3]   how many calls; then per call how many jobs, and per job
--             | start 1: 0 now, 1 after, 2 at | when 8 | job, its times yet to be filled in |
--
-- Answers { version, mean response, longest response, now, calls ... , groups ... }. A call is an
-- error as text, or per job { id, whether it is a duplicate, group, units ahead (-1: not known) };
-- a group is { name, state, units in all, paused, own limits }.

local answer, at = {}, 4
local added, fresh, known = {}, {}, {}
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
local function refusal(jobs)
  if jobs_now + #jobs > Q.jobs_max then
    return ('FULL the queue holds %d jobs and may hold no more'):format(jobs_now)
  end
  local groups_now = call('ZCARD', P .. 'i')
  if groups_now + #jobs > Q.groups_max then
    local new, seen = 0, {}
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

local function put(j)
  local id = earlier(j)
  if id then return { id, 1, j.group, -1 } end
  id = id_last + 1
  id_last = id
  remember(j, id)
  local list = added[j.group]
  if not list then
    list = { places = {}, extra = 0, raises = false, waits = 0, told = {} }
    added[j.group] = list
    known[#known + 1] = j.group
  end
  local ahead = -1
  if j.due > now then
    call('ZADD', P .. 'd:' .. j.group, j.due, pack('>I7', id))
    Q.delayed = call('HINCRBY', P .. 'c', 'dl', 1)
    list.raises = true
  else
    order = max(order, j.due)
    j.due = order
    local places = list.places
    places[#places + 1], places[#places + 2] = 0, job_place(id, j)
    list.waits, list.extra = list.waits + 1, list.extra + j.weight - 1
    if j.priority > 0 then list.raises = true else ahead = list.waits - 1 end
  end
  heaviest = max(heaviest, j.weight)
  fresh[#fresh + 1] = id
  fresh[#fresh + 1] = j.text:sub(10, 22) .. pack('<dd', now, j.due) .. j.text:sub(39)
  jobs_now = jobs_now + 1
  count('enqueued')
  local one = { id, 0, j.group, ahead }
  list.told[#list.told + 1] = one
  return one
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
    local answers = {}
    for k, j in ipairs(jobs) do answers[k] = put(j) end
    calls[n] = answers
  end
end
for from = 1, #fresh, CHUNK do call('HSET', P .. 'j', unpack(fresh, from, min(from + CHUNK - 1, #fresh))) end

local before, names = {}, {}
for n, name in ipairs(known) do
  local list, g = added[name], group_load(name)
  names[2 * n - 1], names[2 * n] = 0, name
  local places = list.places
  for from = 1, #places, CHUNK do call('ZADD', g.waits, unpack(places, from, min(from + CHUNK - 1, #places))) end
  if list.extra > 0 then call('HINCRBY', P .. 'u', name, list.extra) end
  before[name] = call('ZCARD', g.waits) - list.waits
  -- Behind others that wait it changes nothing about when the first may start.
  if before[name] == 0 or list.raises then
    group_promote(g)
    group_place(g)
  end
end
for from = 1, #names, CHUNK do call('ZADD', P .. 'i', unpack(names, from, min(from + CHUNK - 1, #names))) end
if heaviest > 1 and heaviest ~= Q.heaviest then call('HSET', P .. 'c', 'hv', heaviest) end
if order > 0 then call('HSET', P .. 'c', 'or', ('%d'):format(order)) end
save()

local told, list = {}, nil
for n, name in ipairs(known) do
  local g = groups[name]
  local extra = heaviest > 1 and tonumber(call('HGET', P .. 'u', name) or 0) or 0
  told[n] = { name, g.value or '', before[name] + added[name].waits + extra,
    (Q.paused or is_paused(g)) and 1 or 0, g.limits ~= Q.group_limits and call('HGET', P .. 'o', name) or '' }
  list = added[name]
  for _, one in ipairs(list.told) do
    -- Jobs of several units stand somewhere behind; all of them are counted as ahead.
    if one[4] >= 0 then one[4] = one[4] + before[name] + extra end
  end
end
local response = call('HMGET', P .. 'c', 'rm', 'rx')
return reply({ Q.version, response[1] or '', response[2] or '0', ('%d'):format(now), calls, told,
  ('%d'):format(Q.heaviest) })
