-- Enqueues jobs: of several calls, each all or none. This part takes plain jobs, which start now and
-- have no key, no priority and one unit, and lines them up behind others that wait; what it leaves is
-- done by enqueue.lua.
--
--   ARGV[3]   how many jobs each call has, 4 bytes each
--   ARGV[4]   '' if all jobs are plain, and otherwise per job | 0 now, 1 after, 2 at 1 | when 8 |
--             and its deadline | 0 none, 1 after, 2 at 1 | when 8 |
--   ARGV[5..] per job its group, and the job without its times
--
-- Answers { frame (layout.lua), { state, units ahead of the first new job, of each group ... },
-- { whether it is paused, own limits, of each group ... } (empty if none is or has any), calls, { name,
-- how many of these wait in it, of each group ... } }. Calls are the first id, and no names are told, if all
-- jobs have ids in a row and stand one behind the other; the groups come as they first appear. Otherwise
-- each call is an error as text, or | 'J' | per job: id 8, whether it is a duplicate 1, units ahead 8
-- (-1: not known) |.

local FIRST = 5
local wanted = (#ARGV - FIRST + 1) / 2
local starts, jobs_now, groups_now = ARGV[4], call('HLEN', P .. 'j'), call('ZCARD', P .. 'i')
local order = max(now, tonumber(call('HGET', P .. 'c', 'or') or 0))
local id_last = call('HINCRBY', P .. 'c', 'n', wanted) - wanted

-- Ids and jobs, and of each group by its number: name, jobs that come (an id or several), how many
-- start now; and what is found: jobs before these, state.
local longest = Q.longest
local fresh, number_of, known, came, waits, before, values = {}, {}, {}, {}, {}, {}, {}
-- Groups that are yet to be loaded and placed; what the calls are answered.
local others, calls = {}, nil

-- Bytes of the payloads that are kept, and of those that come.
payloads.held, payloads.taken = Q.bytes, 0
-- What is kept of dead jobs may have come to its end since they were counted.
if Q.dead_bytes > 0 then
  if call('EXISTS', P .. 'x') == 1 then
    payloads.held = payloads.held + Q.dead_bytes
  else
    call('HDEL', P .. 'c', 'bx')
  end
end

local function are_plain()
  if starts ~= '' or jobs_now + wanted > Q.jobs_max or groups_now + wanted > Q.groups_max then
    return false
  end
  for n = FIRST + 1, #ARGV, 2 do
    if #ARGV[n] > Q.payload_max then
      payloads.taken = 0
      return false
    end
    -- A plain job has no key: this stands before its payload.
    payloads.taken = payloads.taken + #ARGV[n] - 37 - #ARGV[n - 1]
    longest = max(longest, #ARGV[n])
  end
  if payloads.held + payloads.taken <= Q.bytes_max then return true end
  payloads.taken = 0
  return false
end

local function take_plain()
  local stamp, groups_found = pack('<dd', now, order), 0
  for n = FIRST, #ARGV, 2 do
    local name = ARGV[n]
    id_last = id_last + 1
    local id, k = format('%d', id_last), number_of[name]
    fresh[n - FIRST + 1], fresh[n - FIRST + 2] = id, stamp .. ARGV[n + 1]
    if not k then
      k = groups_found + 1
      groups_found, number_of[name], known[k], came[k], waits[k] = k, k, name, id, 1
    else
      if type(came[k]) ~= 'table' then came[k] = { came[k] } end
      came[k][waits[k] + 1], waits[k] = id, waits[k] + 1
    end
  end
end

-- Lets the jobs that come stand at the end of their line; how many are in it then.
local function join(name, ids)
  local key, length = P .. 'f:' .. name, nil
  if type(ids) ~= 'table' then return call('RPUSH', key, ids) end
  chunked(ids, function(...) length = call('RPUSH', key, ...) end)
  return length
end

-- Jobs behind others that wait change nothing about when the first may start: of such a group nothing
-- is written but its line.
local function line_up_plain()
  for from = 1, #known, CHUNK do
    local states = call('HMGET', P .. 'gs', unpack(known, from, min(from + CHUNK - 1, #known)))
    for k = from, from + #states - 1 do
      local value, waiting, odd, aside = states[k - from + 1], 0, 0, 0
      if value then waiting, odd, aside = read('<I4I4I4', value, WAITING_AT) end
      -- Of a group that is paused or has limits of its own there is more to tell.
      if waiting > 0 and aside % 4 == 0 and (aside == 0 or Q.due > now) then
        before[k], values[k] = join(known[k], came[k]) - waits[k] + odd, value
      else
        others[#others + 1] = known[k]
      end
    end
  end
end

local function jobs_save()
  chunked(fresh, function(...) call('HSET', P .. 'j', ...) end)
  call('HINCRBY', P .. 'c', 't_enqueued', #fresh / 2)
  payloads.count('by', payloads.taken)
  call('HSET', P .. 'c', 'or', format('%d', order))
  if longest > Q.longest then call('HSET', P .. 'c', 'lg', longest) end
end

if are_plain() then
  calls = format('%d', id_last + 1)
  take_plain()
  line_up_plain()
  jobs_save()
  if #others == 0 and not is_wide and not Q.paused and Q.heaviest == 1 then
    local told, frame = {}, frame_of('')
    for k = 1, #known do told[2 * k - 1], told[2 * k] = values[k], before[k] end
    return reply({ frame, told, {}, calls, {} }, { frame, {}, {}, calls, {} })
  end
end
