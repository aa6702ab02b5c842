-- Says what came of leases. This part settles what is done in plain groups (plain.lua) that need not
-- be placed anew; what it leaves is done by settle.lua.
--
--   ARGV[3..]   per lease | id 8 | attempt 4 | outcome 1 | retry 1 | wait 8 | has a result 1 |
--               result or reason ... |; outcomes: 1 done, 2 failed, 3 limited, 4 released
--
-- Answers { now, | code 1, time 8 | ... }, per lease: 1 done, 2 waits from that time on, 3 dead,
-- 4 cancelled, 5 the lease was over.

local DONE, DONE_TOLD = 1, pack('<Bd', 1, 0)
local over = {}

-- Of each lease, by its place in ARGV: id, and what it is answered; and which ids are settled.
local names, told, gone = {}, {}, {}
for n = 3, #ARGV do names[n] = ('%d'):format(read('<d', ARGV[n])) end

-- How long responses take: a mean that follows slowly, and a longest that is forgotten slowly.
local mean, longest
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

local function responses_save()
  if longest then call('HSET', P .. 'c', 'rm', ('%d'):format(mean), 'rx', ('%d'):format(longest)) end
end

local function job_of(id, attempt)
  local j = job_read(call('HGET', P .. 'j', id))
  j.attempt = attempt
  return j
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

-- The leases of one unit, `from` to `upto`, that are done: per lease its group, and each group once
-- with how many they are.
local function plain_leases(leases, from, upto)
  local of, jobs, known, at = {}, {}, {}, LEASE_LENGTH + 8
  for n = from, upto do
    local text, said, name = leases[n - from + 1], ARGV[n], names[n]
    if text and said:byte(13) == 1 and text:sub(at - 7, at - 1) == ONE_UNIT
      and read('<I4', text) == read('<I4', said, 9) and not gone[name] then
      local group = text:sub(at + 1 + text:byte(at))
      local before = jobs[group]
      if not before then known[#known + 1] = group end
      of[n], jobs[group], gone[name] = group, (before or 0) + 1, true
    end
  end
  return of, jobs, known
end

local function settle_plain(from, upto)
  local leases = call('HMGET', P .. 'r', unpack(names, from, upto))
  local of, jobs, known = plain_leases(leases, from, upto)
  if #known == 0 then return end
  local values, states, is_done = call('HMGET', P .. 'gs', unpack(known)), {}, {}
  for k, group in ipairs(known) do
    local state = state_after_done(values[k], jobs[group])
    if state then states[#states + 1], states[#states + 2], is_done[group] = group, state, true end
  end
  chunked(states, function(...) call('HSET', P .. 'gs', ...) end)
  for n = from, upto do
    local name, lease = names[n], leases[n - from + 1]
    if of[n] and is_done[of[n]] then
      told[n], ended[#ended + 1] = DONE_TOLD, name
      if lease:byte(ALONE_AT) == 1 then alone[#alone + 1] = name end
      observe(now - read('<d', lease, 5))
      done(name, n)
    elseif of[n] then
      gone[name] = nil
    end
  end
end

if is_calm() then
  for from = 3, #ARGV, CHUNK do settle_plain(from, min(from + CHUNK - 1, #ARGV)) end
end
if #ended == #ARGV - 2 then
  ends_save()
  if over.e then purge('e', Q.done_age, Q.done_max) end
  responses_save()
  totals_save()
  return reply({ ('%d'):format(now), table.concat(told, '', 3, #ARGV) })
end
