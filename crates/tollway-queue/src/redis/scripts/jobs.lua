-- Jobs: into their groups, out of the queue, and their leases.

local function job_save(id, j)
  -- It may have missed its deadline while it ran.
  if Q.deadline and Q.deadline > 0 then
    Q.deadline = 0
    call('HSET', P .. 'c', 'yn', 0)
  end
  call('HSET', P .. 'j', id, job_head(j) .. j.text:sub(j.payload))
end

-- Puts a job that was with a worker back among those that wait in its group.
local function job_wait(g, id, j) line_put(g, { 0, job_place(id, j) }, j.weight - 1) end

local function extra_drop(group, units)
  if units > 0 and call('HINCRBY', P .. 'u', group, -units) <= 0 then call('HDEL', P .. 'u', group) end
end

local function key_forget(key)
  if key ~= '' then
    call('DEL', P .. 'k:' .. key)
    call('ZREM', P .. 'ki', key)
  end
end

local function bury(id, j, reason)
  count('dead')
  -- Before it is kept: whether those that were kept have come to their end is seen from there.
  payloads.count_dead(j)
  local note = Q.past_behind(id, 1, reason)
  keep('x', id, pack('<d', now) .. note .. job_head(j) .. j.text:sub(j.payload), Q.dead_age, Q.dead_max)
  job_forget(id, j)
end

local function lease_read(text)
  local attempt, leased, expires, flags, done, total, alone, at = read(LEASE, text)
  local units
  if #text >= LEASE_LENGTH + 8 then
    local one, two, three
    one, units, two, three = read('<BI4BB', text, at)
    if one ~= 1 or two ~= 0 or three ~= 0 then units = nil end
  end
  local from = at
  if units then
    at = at + 7
  else
    for _ = 1, 3 do at = at + 1 + 4 * read('<B', text, at) end
  end
  local length = text:byte(at)
  return { attempt = attempt, leased = leased, expires = expires, flags = flags, done = done,
    total = total, alone = alone, plain = units, taken = text:sub(from, at - 1),
    worker = text:sub(at + 1, at + length), group = text:sub(at + 1 + length) }
end

local function lease_format(l)
  return pack(LEASE, l.attempt, l.leased, l.expires, l.flags, l.done, l.total, l.alone) .. l.taken
    .. pack('<B', #l.worker) .. l.worker .. l.group
end

do
  -- Of each group the ids of its jobs that run; read once.
  local running_of
  local function running_load()
    local leases = call('HGETALL', P .. 'r')
    running_of = {}
    for n = 1, #leases, 2 do
      local group = lease_read(leases[n + 1]).group
      running_of[group] = running_of[group] or {}
      table.insert(running_of[group], leases[n])
    end
  end

  refit = function(g, fits)
    is_refitted = true
    if not running_of then running_load() end
    for _, id in ipairs(running_of[g.name] or {}) do
      local lease = call('HGET', P .. 'r', id)
      if lease then
        local l, weight = lease_read(lease), read('<I4', call('HGET', P .. 'j', id), 18)
        local count, at = read('<B', l.taken)
        local units, rest = {}, l.taken:sub(2 + 4 * count)
        for k, limit in ipairs(g.limits) do
          local held = fits[k] and k <= count and read('<I4', l.taken, at + 4 * (k - 1)) or 0
          -- What was started before a limit of another kind came knows nothing of it.
          if not fits[k] and (limit.kind == 1 or limit.kind > 6) then
            held = limit_units(limit, weight)
            g.states[k][2] = g.states[k][2] + held
          end
          units[k] = pack('<I4', held)
        end
        l.taken = pack('<B', #g.limits) .. table.concat(units) .. rest
        call('HSET', P .. 'r', id, lease_format(l))
      end
    end
    g.dirty = true
  end
end

-- Ends the lease of a job, whatever came of it.
local function lease_end(g, id, l)
  ended[#ended + 1] = id
  if l.alone == 1 then alone[#alone + 1] = id end
  g.running, g.dirty = max(0, g.running - 1), true
end

local function answered(g, l, at)
  if l.plain and not is_wide and g.is_plain then
    return limit_answer(g.limits[1], g.states[1], l.plain, at)
  end
  all_change(g, l.taken, function(limit, state, units) limit_answer(limit, state, units, at) end)
end

-- Takes a job that waits or is delayed out of its group.
local function withdraw(g, id, j)
  if call('ZREM', odd_of(g.name), job_place(id, j)) == 1 then
    g.odd = g.odd - 1
  elseif call('LREM', came_of(g.name), 1, id) == 0 then
    if call('ZREM', delays_of(g), pack('>I7', id)) == 1 then delayed_count(g, -1) end
    return
  end
  g.waiting, g.dirty = g.waiting - 1, true
  extra_drop(g.name, j.weight - 1)
end

-- A job that was cancelled while it ran is gone, and its key with it.
local function end_cancelled(id, j)
  count('cancelled')
  key_forget(j.key)
  job_forget(id, j)
end

local upkeep
do
  -- Ends a lease that was not prolonged in time: the call may have been made just before the end.
  local function expire_one(id, l)
    local g, j = group_load(l.group), job_read(call('HGET', P .. 'j', id))
    if is_refitted then l = lease_read(call('HGET', P .. 'r', id)) end
    lease_end(g, id, l)
    answered(g, l, l.expires)
    count('expired')
    j.attempt = l.attempt
    if l.flags % 2 == 1 then
      end_cancelled(id, j)
    else
      Q.past_note(id, l, l.expires, 5, 0, '')
      j.failures = j.failures + 1
      local most = j.attempts_max > 0 and j.attempts_max or Q.attempts_max
      if j.failures >= most then
        bury(id, j, ('the lease of worker "%s" expired'):format(l.worker))
      else
        job_save(id, j)
        job_wait(g, id, j)
      end
    end
    group_promote(g)
    group_place(g)
  end

  -- Ends the leases whose time has come, of some that were granted together; whether there are more. A run
  -- does not go on for ever: what is left then is the next one's.
  local EXPIRE_MAX, looked = 10000, 0
  local function expire()
    local together = call('ZRANGEBYSCORE', P .. 'l', '-inf', now, 'LIMIT', 0, 50)
    local seen = {}
    for _, names in ipairs(together) do
      if looked > EXPIRE_MAX then return false end
      local ids = {}
      for id in names:gmatch('%d+') do ids[#ids + 1] = id end
      looked = looked + #ids
      local leases = call('HMGET', P .. 'r', unpack(ids))
      for n, id in ipairs(ids) do
        local l = leases[n] and lease_read(leases[n])
        -- It may be prolonged, over, or another one by now.
        if l and l.expires <= now and not seen[id] then
          seen[id] = true
          expire_one(id, l)
        end
      end
      call('ZREM', P .. 'l', names)
    end
    if #turn_order > 0 then purge('x', Q.dead_age, Q.dead_max) end
    return #together > 0
  end

  local function miss(id)
    local text = call('HGET', P .. 'j', id)
    call('ZREM', P .. 'y', id)
    if not text then return end
    local j = job_read(text)
    local g = group_load(j.group)
    withdraw(g, id, j)
    count('missed')
    if Q.drops == 1 then job_forget(id, j) else bury(id, j, 'its deadline passed before it could start') end
    group_place(g)
  end

  -- Takes out the jobs that can start no more before their deadlines; those that run may go on.
  local function miss_deadlines()
    local from, ids = 0, nil
    repeat
      ids = call('ZRANGEBYSCORE', P .. 'y', '-inf', now, 'LIMIT', from, CHUNK)
      local leases = #ids > 0 and call('HMGET', P .. 'r', unpack(ids))
      for n, id in ipairs(ids) do
        if leases[n] then from = from + 1 else miss(id) end
      end
    until #ids < CHUNK
    local next = call('ZRANGEBYSCORE', P .. 'y', '(' .. format('%d', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    Q.deadline = tonumber(next or (from > 0 and STUCK or nil))
    if Q.deadline then
      call('HSET', P .. 'c', 'yn', format('%d', Q.deadline))
    else
      call('HDEL', P .. 'c', 'yn')
    end
  end

  -- Does what time alone has done, before anything else is looked at or changed.
  upkeep = function()
    repeat
      local more = expire()
      Q.promote_due()
      if Q.deadline and Q.deadline <= now then miss_deadlines() end
      if #turn_order > 0 then
        ends_save()
        heap_save()
        groups_save()
        totals_save()
        totals = {}
      end
    until not more
  end
end

-- When something may start by time alone, or must be looked after; -1 if nothing will.
local function next_time()
  local next = STUCK
  local first = call('ZRANGE', P .. 'l', 0, 0, 'WITHSCORES')
  if first[2] then next = min(next, tonumber(first[2])) end
  first = call('ZRANGE', P .. 'tz', 0, 0, 'WITHSCORES')
  if first[2] then next = min(next, tonumber(first[2])) end
  if not Q.paused then
    local turn, name = heap_first()
    if turn < STUCK then
      local weight, at = 1, max(now, turn - RING)
      if turn < RING and is_wide then weight = first_weight(group_load(name)) end
      local opens = wide_ready(weight)
      if opens < STUCK then next = min(next, max(at, opens)) end
    end
  end
  return next < STUCK and next or -1
end

local function save()
  ends_save()
  heap_save()
  groups_save()
  totals_save()
end
