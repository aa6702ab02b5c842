-- Says what came of leases.
--
--   ARGV[3..]   per lease | id 8 | attempt 4 | outcome 1 | retry 1 | wait 8 | has a result 1 |
--               result or reason ... |; outcomes: 1 done, 2 failed, 3 limited, 4 released
--
-- Answers { now, | code 1, time 8 | ... }, per lease: 1 done, 2 waits from that time on, 3 dead,
-- 4 cancelled, 5 the lease was over.

upkeep()

local DONE, WAITS, DEAD, CANCELLED, LOST = 1, 2, 3, 4, 5
local answer = {}
local mean, longest
local held, over = {}, {}

local function observe(took)
  if not longest then
    local kept = call('HMGET', P .. 'c', 'rm', 'rx')
    mean, longest = kept[1] and tonumber(kept[1]), tonumber(kept[2] or 0)
  end
  mean = mean or took
  local step = (took - mean) / 16
  mean = mean + (step < 0 and math.ceil(step) or floor(step))
  longest = max(took, longest - floor(longest / 256))
end

local function job_of(id, attempt)
  local j = job_read(call('HGET', P .. 'j', id))
  j.attempt = attempt
  return j
end

-- What a lease that is over was settled as, if its answer was lost and it is settled again.
local function settled_before(id, attempt, outcome)
  local hash, code = 'e', DONE
  if outcome == 2 then hash, code = 'x', DEAD elseif outcome ~= 1 then return LOST end
  local text = call('HGET', P .. hash, id)
  if not text then return LOST end
  local length = read('<I4', text, 10)
  return read('<I4', text, 14 + length + 21) == attempt and code or LOST
end

-- Ends a job as ARGV[n] says, that it is done.
local function done(id, n)
  count('done')
  if Q.done_max > 0 then
    local _, attempt, _, _, _, has_result, at = read('<dI4BBdB', ARGV[n])
    local note, j = pack('<dBI4', now, has_result, #ARGV[n] - at + 1), job_of(id, attempt)
    keep('e', id, note .. ARGV[n]:sub(at) .. job_head(j), Q.done_age, Q.done_max)
    over.e = true
  end
  job_forget(id)
  return DONE, 0
end

local function failed(id, g, j, l, retry, reason)
  answered(g, l, now)
  count('failed')
  if l.flags % 2 == 1 then
    end_cancelled(id, j)
    return CANCELLED, 0
  end
  j.failures = j.failures + 1
  if retry == 0 or j.failures >= (j.attempts_max > 0 and j.attempts_max or Q.attempts_max) then
    bury(id, j, reason)
    over.x = true
    return DEAD, 0
  end
  local first, most = Q.backoff, Q.backoff_max
  if j.backoff >= 0 then first, most = j.backoff, j.backoff_max end
  j.due = now + min(first * 2 ^ min(j.failures - 1, 31), most)
  job_save(id, j)
  call('ZADD', delays_of(g), j.due, pack('>I7', id))
  Q.delayed = call('HINCRBY', P .. 'c', 'dl', 1)
  return WAITS, j.due
end

-- Refused by the upstream, or never tried: uncharged, and back to where it was.
local function put_back(id, g, j, l)
  -- What started under other limits holds slots by number, and nothing else that is known.
  local is_known = floor(l.flags / 2) == Q.refits
  all_change(g, l.taken, function(limit, state, units)
    if is_known or limit.kind == 1 then limit_refund(limit, state, units, l.leased) end
  end)
  if l.flags % 2 == 1 then
    end_cancelled(id, j)
    return CANCELLED, 0
  end
  job_save(id, j)
  job_wait(g, id, j)
  return WAITS, max(g.blocked, now)
end

local gone = {}
local function settle(name, l, n)
  local _, attempt, outcome, retry, wait, _, at = read('<dI4BBdB', ARGV[n])
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
    code, time = done(name, n)
  elseif outcome == 2 then
    code, time = failed(name, g, job_of(name, attempt), l, retry, ARGV[n]:sub(at))
  else
    local j = job_of(name, attempt)
    if outcome == 3 then
      count('limited')
      g.blocked = max(g.blocked, now + wait)
    end
    code, time = put_back(name, g, j, l)
  end
  held[#held + 1] = g
  if outcome ~= 1 then g.reopens = true end
  for n = 1, #g.limits do g.reopens = g.reopens or g.limits[n].window == 0 end
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

-- Most jobs are done, in groups with one limit, of slots, that have no need to be placed anew: these
-- are answered without being loaded, each group once.
local is_quick = plain and not is_wide and Q.delayed <= 0 and not any_own()
local DONE_TOLD, ONE_UNIT = pack('<Bd', DONE, 0), pack('<BI4BB', 1, 1, 0, 0)

-- The state of such a group after so many jobs of one unit are done; nothing if it is not one.
local function state_after_done(value, jobs)
  if not value or #value < PLAIN_LENGTH then return nil end
  local limit = Q.group_limits[1]
  local running, blocked, deficit, waiting, odd, turn, kind, length, flight, used = read(PLAIN, value)
  if kind ~= 1 or length ~= #value - 37 or running < jobs then return nil end
  -- A response may let a group start that waits for one, and ends one that has nothing else.
  local is_placed = turn > 0 and turn < RING or turn < STUCK and limit.window > 0
    or turn >= STUCK and waiting == 0 and running > jobs
  if not is_placed then return nil end
  local log, rest = log_rest(limit, value, PLAIN_LENGTH + 1, #value + 1, used)
  local units = min(jobs, flight)
  if units > 0 and limit.window > 0 then log, rest = log_add(limit, log, now, units), rest + units end
  return pack(PLAIN, running - jobs, blocked, deficit, waiting, odd, turn, 1, 8 + #log, flight - units,
    rest) .. log
end

-- The leases that can be settled so, of one unit: per lease its group, per group how many.
local function quick_leases(names, leases, from)
  local of, jobs, seen, known, at = {}, {}, {}, {}, LEASE_LENGTH + 8
  for k = 1, #names do
    local text, told, name = leases[k], ARGV[from + k - 1], names[k]
    if text and told:byte(13) == 1 and text:sub(at - 7, at - 1) == ONE_UNIT and
      text:sub(1, 4) == told:sub(9, 12) and not seen[name] and not gone[name] then
      local group = text:sub(at + 1 + text:byte(at))
      local before = jobs[group]
      if not before then known[#known + 1] = group end
      of[k], jobs[group], seen[name] = group, (before or 0) + 1, true
    end
  end
  return of, jobs, known
end

-- Settles what is quickly settled of a chunk, in `told`, by its place in the chunk.
local function settle_quickly(names, from, told)
  local leases = call('HMGET', P .. 'r', unpack(names))
  local of, jobs, known = quick_leases(names, leases, from)
  if #known == 0 then return end
  local values, states, is_done = call('HMGET', P .. 'gs', unpack(known)), {}, {}
  for n, group in ipairs(known) do
    local state = not groups[group] and state_after_done(values[n], jobs[group])
    if state then
      states[#states + 1], states[#states + 2], is_done[group] = group, state, true
    end
  end
  chunked(states, function(...) call('HSET', P .. 'gs', ...) end)
  for k = 1, #names do
    if of[k] and is_done[of[k]] then
      local name = names[k]
      told[k], gone[name], ended[#ended + 1] = DONE_TOLD, true, name
      if leases[k]:byte(ALONE_AT) == 1 then alone[#alone + 1] = name end
      observe(now - read('<d', leases[k], 5))
      done(name, from + k - 1)
    end
  end
end

for from = 3, #ARGV, CHUNK do
  local upto = min(from + CHUNK - 1, #ARGV)
  local names, told = {}, {}
  for n = from, upto do names[#names + 1] = ('%d'):format(read('<d', ARGV[n])) end
  if is_quick then settle_quickly(names, from, told) end
  local rest = {}
  for k = 1, #names do
    if not told[k] then rest[#rest + 1] = names[k] end
  end
  local leases = #rest > 0 and leases_of(rest)
  if is_refitted and leases then leases = leases_of(rest) end
  local next_rest = 0
  for k = 1, #names do
    if not told[k] then
      next_rest = next_rest + 1
      told[k] = pack('<Bd', settle(names[k], leases[next_rest], from + k - 1))
    end
  end
  answer[#answer + 1] = table.concat(told)
end
ends_save()
for _, g in ipairs(held) do
  if not g.held then
    g.held = true
    -- A response tells a group that waits for a time nothing new: what was in flight now cools.
    if g.reopens or g.turn == 0 or g.turn >= STUCK or Q.delayed > 0 then
      group_promote(g)
      group_place(g)
    end
  end
end
if over.e then purge('e', Q.done_age, Q.done_max) end
if over.x then purge('x', Q.dead_age, Q.dead_max) end
if longest then call('HSET', P .. 'c', 'rm', ('%d'):format(mean), 'rx', ('%d'):format(longest)) end
save()
-- Units of the whole queue, or of others that share them, came free: somebody may start now.
if #held > 0 and #Q.queue_limits + #Q.shared > 0 and heap_first() < RING then
  local next = next_time()
  if next >= 0 then mark(next <= now and 0 or next) end
end
return reply({ ('%d'):format(now), table.concat(answer) })
