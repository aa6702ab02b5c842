-- Enqueues what enqueue_plain.lua has left: everything, or plain jobs in groups that nobody waits in.

local COUNT, TIMES = 4, 18
local heaviest = jobs_now == 0 and 0 or Q.heaviest
-- Of each group, by its number: places of odd jobs, their units beyond one each, how many are delayed;
-- and what is found: units of all that wait beyond one each.
local odd, extra, late, beyond = {}, {}, {}, {}

local function number(name)
  local k = number_of[name]
  if not k then
    k = #known + 1
    number_of[name], known[k], waits[k] = k, name, 0
  end
  return k
end

-- Priority, weight, key if any, and where the payload begins.
local function parse(text)
  local priority, a, b, c, d = text:byte(1, 5)
  local low, high = text:byte(34, 35)
  local at, key = 36 + low + 256 * high, nil
  if at > 36 then key = text:sub(36, at - 1) end
  low, high = text:byte(at, at + 1)
  return priority, a + 256 * (b + 256 * (c + 256 * d)), key, at + 2 + low + 256 * high
end

-- Why `many` jobs that begin at ARGV[from] cannot be taken, if they cannot.
local function refusal(from, many)
  if jobs_now + many > Q.jobs_max then
    return ('FULL the queue is full: it holds %d jobs'):format(jobs_now)
  end
  local coming = 0
  for n = from + 1, from + 2 * many - 1, 2 do
    local _, _, _, payload = parse(ARGV[n])
    coming = coming + #ARGV[n] - payload + 1
  end
  local kept_now = payloads.held + payloads.taken
  if kept_now + coming > Q.bytes_max and Q.dead_bytes > 0 then
    -- Some of the dead may have come to their end.
    purge('x', Q.dead_age, Q.dead_max)
    payloads.held = Q.bytes + tonumber(call('HGET', P .. 'c', 'bx') or 0)
    kept_now = payloads.held + payloads.taken
  end
  if kept_now + coming > Q.bytes_max then
    return ("FULL the queue's payloads have %d bytes and may have %d (bytes_max)"):format(kept_now,
      Q.bytes_max)
  end
  if groups_now + #known + many > Q.groups_max then
    local new, seen = 0, {}
    for _, name in ipairs(known) do
      if not call('ZSCORE', P .. 'i', name) then new, seen[name] = new + 1, true end
    end
    for n = from, from + 2 * many - 1, 2 do
      local group = ARGV[n]
      if not seen[group] and not call('ZSCORE', P .. 'i', group) then new = new + 1 end
      seen[group] = true
    end
    if groups_now + new > Q.groups_max then
      return ('FULL the queue is full: it has %d groups'):format(groups_now)
    end
  end
  for n = from + 1, from + 2 * many - 1, 2 do
    if #ARGV[n] > Q.payload_max then
      local _, _, _, payload = parse(ARGV[n])
      local length = #ARGV[n] - payload + 1
      if length > Q.payload_max then
        local told = 'INVALID invalid payload: found %d bytes, expected at most %d bytes (payload_max)'
        return told:format(length, Q.payload_max)
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
    odd[k], extra[k] = places, (extra[k] or 0) + weight - 1
  else
    local ids = came[k] or {}
    ids[#ids + 1] = id
    came[k] = ids
  end
end

-- Enqueues one; its id, whether it is a duplicate, and if not the number of its group and, of those
-- that start now, how many of this run are before it.
local function put(name, text, due)
  local priority, weight, key, payload = parse(text)
  local id = key and earlier(key)
  if id then return id, 1, 0, -1 end
  id_last = id_last + 1
  if key then remember(key, id_last) end
  local k, ahead = number(name), -1
  id = format('%d', id_last)
  if due > now then
    call('ZADD', P .. 'd:' .. name, due, pack('>I7', id))
    late[k] = (late[k] or 0) + 1
  else
    due = order
    if priority == 0 then ahead = waits[k] end
    line_up(k, id, priority, weight)
  end
  heaviest, longest = max(heaviest, weight), max(longest, #text)
  fresh[#fresh + 1], fresh[#fresh + 2] = id, pack('<dd', now, due) .. text
  jobs_now, payloads.taken = jobs_now + 1, payloads.taken + #text - payload + 1
  return id_last, 0, k, ahead
end

-- Enqueues `many` jobs of a call, which begin at ARGV[from].
local function put_call(from, many)
  local jobs = {}
  for n = from, from + 2 * many - 1, 2 do
    local start, when, limit, deadline, due = 0, 0, 0, 0, now
    if starts ~= '' then
      start, when, limit, deadline = read('<BdBd', starts, TIMES * (n - FIRST) / 2 + 1)
    end
    if start == 1 then due = now + when elseif start == 2 then due = max(now, when) end
    local job = { put(ARGV[n], ARGV[n + 1], due) }
    if limit > 0 and job[2] == 0 then
      if limit == 1 then deadline = now + deadline end
      call('ZADD', P .. 'y', deadline, format('%d', job[1]))
      if not Q.deadline or deadline < Q.deadline then
        Q.deadline = deadline
        call('HSET', P .. 'c', 'yn', format('%d', deadline))
      end
    end
    jobs[#jobs + 1] = job
  end
  return jobs
end

if not calls then
  calls = {}
  local from, counts = FIRST, ARGV[3]
  for at = 1, #counts, COUNT do
    local many = read('<I4', counts, at)
    calls[#calls + 1] = refusal(from, many) or put_call(from, many)
    from = from + 2 * many
  end
  for k, name in ipairs(known) do others[k] = name end
  jobs_save()
  if heaviest > 1 and heaviest ~= Q.heaviest then call('HSET', P .. 'c', 'hv', heaviest) end
  Q.heaviest = max(1, heaviest)
end

local names = {}
groups_load(others)
for _, name in ipairs(others) do
  local k, g = number_of[name], groups[name]
  -- Those whose time has come stand before the new ones.
  group_promote(g)
  before[k] = g.waiting
  if came[k] then
    join(name, came[k])
    g.waiting, g.dirty = g.waiting + (type(came[k]) == 'table' and #came[k] or 1), true
  end
  if odd[k] then line_put(g, odd[k], extra[k]) end
  if late[k] then delayed_count(g, late[k]) end
  if g.turn == 0 then names[#names + 1], names[#names + 2] = 0, name end
  group_promote(g)
  group_place(g)
end
chunked(names, function(...) call('ZADD', P .. 'i', ...) end)
save()

local told, special, listed, is_special = {}, {}, {}, Q.paused or any_paused() or any_own()
for k, name in ipairs(known) do
  local g = groups[name]
  beyond[k] = Q.heaviest > 1 and tonumber(call('HGET', P .. 'u', name) or 0) or 0
  local ahead = before[k] + beyond[k]
  told[2 * k - 1], told[2 * k] = g and group_bytes(g) or values[k], ahead
  if type(calls) == 'table' then listed[2 * k - 1], listed[2 * k] = name, waits[k] end
  if is_special then
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
local frame = frame_of(wide_told())
return reply({ frame, told, special, calls, listed }, { frame, {}, {}, calls, {} })
