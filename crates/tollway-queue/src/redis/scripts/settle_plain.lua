-- Says what came of leases. This part settles what is done in plain groups (plain_groups.lua) that need not
-- be placed anew; what it leaves is done by settle.lua.
--
--   ARGV[3..]   per lease its id, and | attempt 4 | outcome 1 | retry 1 | wait 8 | has a result 1 |
--               result or reason ... |; outcomes: 1 done, 2 failed, 3 limited, 4 released
--
-- Answers { now, | code 1, time 8 | ... }, per lease: 1 done, 2 waits from that time on, 3 dead,
-- 4 cancelled, 5 the lease was over.

local DONE, DONE_TOLD, SAID = 1, pack('<Bd', 1, 0), '<I4BBdB'
local over = {}

-- Of each lease: id, what is said, what it is answered; and of each id that was seen, whether its
-- lease is settled.
local names, said, told, gone = {}, {}, {}, {}
local many = (#ARGV - 2) / 2
for k = 1, many do names[k], said[k] = ARGV[2 * k + 1], ARGV[2 * k + 2] end

-- How long responses take: a mean that follows slowly, and a longest that is forgotten slowly.
local mean, longest
local function observe(took)
  -- A clock may have been set back.
  took = max(took, 0)
  if not longest then
    local kept = call('HMGET', P .. 'c', 'rm', 'rx')
    mean, longest = kept[1] and tonumber(kept[1]), tonumber(kept[2] or 0)
  end
  mean = mean or took
  local step = (took - mean) / 16
  mean = mean + (step < 0 and ceil(step) or floor(step))
  longest = max(took, longest - floor(longest / 256))
end

local function responses_save()
  if longest then call('HSET', P .. 'c', 'rm', format('%d', mean), 'rx', format('%d', longest)) end
end

local function job_of(id, attempt)
  local j = job_read(call('HGET', P .. 'j', id))
  j.attempt = attempt
  return j
end

-- Keeps that a job is done, and with which result.
local function done_keep(id, said_of, j)
  local _, _, _, _, has_result, at = read(SAID, said_of)
  local note = Q.past_behind(id, has_result, sub(said_of, at))
  keep('e', id, pack('<d', now) .. note .. job_head(j), Q.done_age, Q.done_max)
  over.e = true
end

-- The leases of one unit, `from` to `upto`, that are done: per lease its group, and each group once
-- with how many they are.
local function plain_leases(leases, from, upto)
  local of, jobs, known, groups_found, at = {}, {}, {}, 0, LEASE_LENGTH + 8
  for k = from, upto do
    local text, name = leases[k - from + 1], names[k]
    local attempt, outcome = read('<I4B', said[k])
    local is_done = text and outcome == DONE and read('<I4', text) == attempt and gone[name] == nil
    gone[name] = gone[name] or false
    if is_done and sub(text, at - 7, at - 1) == ONE_UNIT then
      local group = sub(text, at + 1 + byte(text, at))
      local before = jobs[group]
      if not before then
        groups_found = groups_found + 1
        known[groups_found], before = group, 0
      end
      of[k], jobs[group], gone[name] = group, before + 1, true
    end
  end
  return of, jobs, known
end

local function settle_plain(from, upto)
  local leases = call('HMGET', P .. 'r', unpack(names, from, upto))
  local of, jobs, known = plain_leases(leases, from, upto)
  if #known == 0 then return end
  local values, states, is_done, n = call('HMGET', P .. 'gs', unpack(known)), {}, {}, 0
  for k, group in ipairs(known) do
    local state = state_after_done(values[k], jobs[group])
    if state then states[n + 1], states[n + 2], is_done[group], n = group, state, true, n + 2 end
  end
  chunked(states, function(...) call('HSET', P .. 'gs', ...) end)
  n = #ended
  for k = from, upto do
    local name, group, lease = names[k], of[k], leases[k - from + 1]
    if group and is_done[group] then
      local j = job_of(name, read('<I4', said[k]))
      n = n + 1
      told[k], ended[n] = DONE_TOLD, name
      job_forget(name, j)
      if byte(lease, ALONE_AT) == 1 then alone[#alone + 1] = name end
      observe(now - read('<d', lease, 5))
      if Q.done_max > 0 then done_keep(name, said[k], j) end
    elseif group then
      gone[name] = false
    end
  end
end

if is_calm() then
  for from = 1, many, CHUNK do settle_plain(from, min(from + CHUNK - 1, many)) end
end
if #ended > 0 then count('done', #ended) end
if #ended == many then
  ends_save()
  if over.e then purge('e', Q.done_age, Q.done_max) end
  responses_save()
  totals_save()
  return reply({ format('%d', now), table.concat(told) })
end
