-- Settles what settle_plain.lua has left.

upkeep()

local WAITS, DEAD, CANCELLED, LOST = 2, 3, 4, 5
local held = {}

-- What a lease that is over was settled as, if its answer was lost and it is settled again.
local function settled_before(id, attempt, outcome)
  local hash, code = 'e', DONE
  if outcome == 2 then hash, code = 'x', DEAD elseif outcome ~= 1 then return LOST end
  local text = call('HGET', P .. hash, id)
  if not text then return LOST end
  local length = read('<I4', text, 10)
  return read('<I4', text, 14 + length + 21) == attempt and code or LOST
end

local function failed(id, g, j, l, retry, reason)
  answered(g, l, now)
  count('failed')
  if l.flags % 2 == 1 then
    end_cancelled(id, j)
    return CANCELLED, 0
  end
  Q.past_note(id, l, now, 2, 0, reason)
  j.failures = j.failures + 1
  if retry == 0 or j.failures >= (j.attempts_max > 0 and j.attempts_max or Q.attempts_max) then
    bury(id, j, reason)
    over.x = true
    return DEAD, 0
  end
  local first, most = Q.backoff, Q.backoff_max
  if j.backoff >= 0 then first, most = j.backoff, j.backoff_max end
  local wait = min(first * 2 ^ min(j.failures - 1, 31), most)
  -- Up to so many percent longer: jobs that failed together are tried apart.
  local longer = Q.jitter * ((tonumber(id) % 1000 * 271 + j.failures % 1000 * 617) % 1000)
  j.due = now + wait + floor(wait / 100000) * longer + floor(wait % 100000 * longer / 100000)
  job_save(id, j)
  call('ZADD', delays_of(g), j.due, pack('>I7', id))
  delayed_count(g, 1)
  return WAITS, j.due
end

-- Refused by the upstream, or never tried: uncharged, and back to where it was.
local function put_back(id, g, j, l, outcome, wait)
  -- What started under other limits holds by number what is in flight, and nothing else that is known.
  local is_known = floor(l.flags / 2) == Q.refits
  all_change(g, l.taken, function(limit, state, units)
    if is_known or limit.kind == 1 or limit.kind > 6 then limit_refund(limit, state, units, l.leased) end
  end)
  if l.flags % 2 == 1 then
    end_cancelled(id, j)
    return CANCELLED, 0
  end
  Q.past_note(id, l, now, outcome, wait, '')
  job_save(id, j)
  job_wait(g, id, j)
  return WAITS, max(g.blocked, now)
end

local function settle(name, l, said_of)
  local attempt, outcome, retry, wait, _, at = read(SAID, said_of)
  if not l or gone[name] or l.attempt ~= attempt then
    ends_save()
    return settled_before(name, attempt, outcome), 0
  end
  local g = groups[l.group]
  gone[name] = true
  lease_end(g, name, l)
  if outcome ~= 4 then observe(now - l.leased) end
  local code, time
  if outcome == 1 then
    answered(g, l, now)
    count('done')
    local j = job_of(name, attempt)
    if Q.done_max > 0 then done_keep(name, said_of, j) end
    job_forget(name, j)
    code, time = DONE, 0
  elseif outcome == 2 then
    code, time = failed(name, g, job_of(name, attempt), l, retry, sub(said_of, at))
  else
    local j = job_of(name, attempt)
    if outcome == 3 then
      count('limited')
      g.blocked = max(g.blocked, now + wait)
      grid.told(g, l.leased, wait)
    end
    code, time = put_back(name, g, j, l, outcome, wait)
  end
  held[#held + 1] = g
  if outcome ~= 1 then g.reopens = true end
  for _, limit in ipairs(g.limits) do
    g.reopens = g.reopens or limit.window == 0 or limit.kind > 10
  end
  return code, time
end

-- The leases of some jobs, whose groups are loaded.
local function leases_of(names)
  local leases, of = call('HMGET', P .. 'r', unpack(names)), {}
  for k = 1, #names do
    leases[k] = leases[k] and lease_read(leases[k])
    if leases[k] then of[#of + 1] = leases[k].group end
  end
  groups_load(of)
  return leases
end

for from = 1, many, CHUNK do
  local rest, places = {}, {}
  for k = from, min(from + CHUNK - 1, many) do
    if not told[k] then rest[#rest + 1], places[#places + 1] = names[k], k end
  end
  local leases = #rest > 0 and leases_of(rest)
  if is_refitted and leases then leases = leases_of(rest) end
  for n, k in ipairs(places) do told[k] = pack('<Bd', settle(names[k], leases[n], said[k])) end
end
ends_save()
for _, g in ipairs(held) do
  if not g.held then
    g.held = true
    -- A response tells a group that waits for a time nothing new: what was in flight now cools.
    if g.reopens or g.turn == 0 or g.turn >= STUCK or g.delayed > 0 then
      group_promote(g)
      group_place(g)
    end
  end
end
if over.e then purge('e', Q.done_age, Q.done_max) end
if over.x then purge('x', Q.dead_age, Q.dead_max) end
responses_save()
save()
-- Units of the whole queue, or of others that share them, came free: somebody may start now.
if #held > 0 and is_wide and heap_first() < RING then
  local next = next_time()
  if next >= 0 then mark(next <= now and 0 or next) end
end
return reply({ format('%d', now), table.concat(told) })
