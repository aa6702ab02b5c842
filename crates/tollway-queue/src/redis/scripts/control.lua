-- Single changes.
--
--   ARGV[3]  'cancel'     ARGV[4] id: 0 not found, 1 removed, 2 requested
--            'reschedule' ARGV[4] id, ARGV[5] when to start: '0' now, '1' after, '2' at ARGV[6]:
--                         0 not found, 1 done, 2 it runs
--            'pause'      ARGV[4] '1' pauses, '0' resumes; ARGV[5], if given, the group
--            'limits'     ARGV[4] group, ARGV[5] limits or ''
--            'revive'     ARGV[4] id: whether there was such a dead letter
--            'hold'       ARGV[4] id, ARGV[5] attempt, ARGV[6] wait: whether that lease holds
--            'recur'      ARGV[4] name, ARGV[5] what, ARGV[6] when next
--            'unrecur'    ARGV[4] name: whether there was one
--            'fire'       ARGV[4] name, ARGV[5] when it was due, ARGV[6] when next ('' never):
--                         whether it was this caller who may enqueue it
--            'release'    gives back what jobs that run hold of shared limits, some at a time; whether
--                         there may be more
--            'reshare'    ARGV[4..] shared limits that will bind the queue: jobs that run keep what they hold
--                         of these, and give back the rest
--            'replace'    ARGV[4] cursor: places groups anew after limits changed; the next cursor

upkeep()

local what = ARGV[3]

local function place(name)
  local g = group_load(name)
  group_promote(g)
  group_place(g)
end

-- Places a group whose limits or pause are others than when upkeep loaded and saved it.
local function place_changed(name)
  groups[name], Q.own, Q.pauses = nil, nil, nil
  group_load(name).dirty = true
  place(name)
end

if what == 'cancel' then
  local id = ARGV[4]
  local dead = call('HGET', P .. 'x', id)
  if dead then
    payloads.forget_dead(id, dead)
    return reply(1)
  end
  local text = call('HGET', P .. 'j', id)
  if not text then return reply(0) end
  local lease = call('HGET', P .. 'r', id)
  if lease then
    local l = lease_read(lease)
    l.flags = l.flags - l.flags % 2 + 1
    call('HSET', P .. 'r', id, lease_format(l))
    return reply(2)
  end
  local j = job_read(text)
  withdraw(group_load(j.group), id, j)
  end_cancelled(id, j)
  ends_save()
  place(j.group)
  save()
  return reply(1)
elseif what == 'reschedule' then
  local id = ARGV[4]
  local text = call('HGET', P .. 'j', id)
  if not text then return reply(0) end
  if call('HEXISTS', P .. 'r', id) == 1 then return reply(2) end
  local j, kind, time = job_read(text), ARGV[5], tonumber(ARGV[6])
  local g = group_load(j.group)
  withdraw(g, id, j)
  j.due = max(now, kind == '2' and time or now + time)
  job_save(id, j)
  if j.due > now then
    call('ZADD', delays_of(g), j.due, pack('>I7', id))
    delayed_count(g, 1)
  else
    job_wait(g, id, j)
  end
  place(j.group)
  save()
  return reply(1)
elseif what == 'pause' then
  if ARGV[5] then
    if ARGV[4] == '1' then call('HSET', P .. 'p', ARGV[5], '1') else call('HDEL', P .. 'p', ARGV[5]) end
    if call('ZSCORE', P .. 'i', ARGV[5]) then place_changed(ARGV[5]) end
    save()
  elseif ARGV[4] == '1' then
    call('HSET', P .. 'c', 'p', '1')
  else
    call('HDEL', P .. 'c', 'p')
    mark(0)
  end
  return reply(1)
elseif what == 'limits' then
  call('HINCRBY', P .. 'c', 'rf', 1)
  if ARGV[5] == '' then call('HDEL', P .. 'o', ARGV[4]) else call('HSET', P .. 'o', ARGV[4], ARGV[5]) end
  place_changed(ARGV[4])
  save()
  return reply(1)
elseif what == 'revive' then
  local id = ARGV[4]
  local text = call('HGET', P .. 'x', id)
  if not text or read('<d', text) + Q.dead_age <= now then return reply(0) end
  payloads.forget_dead(id, text)
  Q.past_revive(id, text)
  local length = read('<I4', text, 10)
  local j = job_read(text:sub(14 + length))
  payloads.count('by', payloads.of(j))
  j.failures, j.due = 0, now
  Q.heaviest = max(Q.heaviest, j.weight)
  call('HSET', P .. 'c', 'hv', Q.heaviest, 'lg', max(Q.longest, #j.text))
  job_save(id, j)
  local g = group_load(j.group)
  job_wait(g, id, j)
  call('ZADD', P .. 'i', 0, j.group)
  place(j.group)
  save()
  return reply(1)
elseif what == 'hold' then
  local lease = call('HGET', P .. 'r', ARGV[4])
  local l = lease and lease_read(lease)
  if not l or l.attempt ~= tonumber(ARGV[5]) then return reply(0) end
  local g = group_load(l.group)
  g.blocked, g.dirty = max(g.blocked, now + tonumber(ARGV[6])), true
  place(l.group)
  save()
  return reply(1)
elseif what == 'recur' then
  if call('HLEN', P .. 't') >= 10000 and call('HEXISTS', P .. 't', ARGV[4]) == 0 then
    return { err = 'FULL a queue has at most 10000 recurring jobs' }
  end
  call('HSET', P .. 't', ARGV[4], ARGV[5])
  call('ZADD', P .. 'tz', ARGV[6], ARGV[4])
  mark(tonumber(ARGV[6]))
  return reply(1)
elseif what == 'unrecur' then
  call('ZREM', P .. 'tz', ARGV[4])
  return reply(call('HDEL', P .. 't', ARGV[4]))
elseif what == 'fire' then
  local due = call('ZSCORE', P .. 'tz', ARGV[4])
  if not due or tonumber(due) > now or due ~= ARGV[5] then return reply(0) end
  if ARGV[6] == '' then
    call('ZREM', P .. 'tz', ARGV[4])
    call('HDEL', P .. 't', ARGV[4])
  else
    call('ZADD', P .. 'tz', ARGV[6], ARGV[4])
  end
  return reply(1)
elseif what == 'release' then
  local leases = call('HSCAN', P .. 'r', 0, 'COUNT', CHUNK)[2]
  for n = 1, #leases, 2 do
    local l = lease_read(leases[n + 1])
    local g = group_load(l.group)
    if is_refitted then l = lease_read(call('HGET', P .. 'r', leases[n])) end
    lease_end(g, leases[n], l)
    answered(g, l, now)
  end
  save()
  return #leases > 0 and 1 or 0
elseif what == 'reshare' then
  local names = { unpack(ARGV, 4) }
  for _, name in ipairs(names) do
    -- Settings that name a limit which is not there will be refused.
    if call('HEXISTS', S .. 'l', name) == 0 then return 1 end
  end
  if table.concat(names, ' ') == table.concat(Q.shared, ' ') then return 1 end
  local w, leases = wide_load(), call('HGETALL', P .. 'r')
  for n = 1, #leases, 2 do
    local l, held, units = lease_read(leases[n + 1]), {}, {}
    local count, at = read('<B', l.taken)
    count, at = read('<B', l.taken, at + 4 * count)
    local rest = at + 4 * count
    count, at = read('<B', l.taken, rest)
    for k = 1, count do
      if w.shared[k] then held[w.shared[k].name] = read('<I4', l.taken, at + 4 * k - 4) end
    end
    for k, name in ipairs(names) do units[k], held[name] = pack('<I4', held[name] or 0), nil end
    for _, one in ipairs(w.shared) do
      if held[one.name] then limit_answer(one.limits[1], one.states[1], held[one.name], now) end
    end
    l.taken = sub(l.taken, 1, rest - 1) .. pack('<B', #names) .. table.concat(units)
    call('HSET', P .. 'r', leases[n], lease_format(l))
  end
  w.dirty = true
  save()
  return 1
elseif what == 'replace' then
  local scan = call('ZSCAN', P .. 'i', ARGV[4], 'COUNT', CHUNK)
  for n = 1, #scan[2], 2 do place(scan[2][n]) end
  save()
  mark(0)
  return scan[1]
end
