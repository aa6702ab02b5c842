-- Leases jobs that may start, a turn for each group, deficit round robin. This part serves plain groups
-- (plain_groups.lua) as long as there is nothing else to do; what it leaves is done by lease.lua.
--
--   ARGV[3]   how many at most
--   ARGV[4]   the worker's name
--   ARGV[5]   how many bytes a page has; of long jobs fewer are leased, as if all were the longest
--
-- Answers { now, next (-1: none), recurring jobs that are due, when these leases end, id, job, id,
-- job ... }. The attempt is one more than the job says.

local worker, most = ARGV[4], tonumber(ARGV[3])
if Q.longest > LONG_JOB then most = min(most, ceil(ARGV[5] / Q.longest)) end

-- Of each job that is leased: id, name of its group, the group if it is loaded, units that were taken.
local ids, names, granted, taken = {}, {}, {}, {}

-- Starts a job of every plain group of `ring`, which stands first. These go to the end; the others stay,
-- and are served next.
local function serve_plain(ring)
  local values, states, others, f = call('HMGET', P .. 'gs', unpack(ring)), {}, {}, P .. 'f:'
  local k = 0
  for n = 1, #ring do
    local name, state = ring[n], state_after_start(values[n])
    if state then
      k = k + 1
      ids[k], names[k], granted[k], taken[k] = call('LPOP', f .. name), name, false, ONE_UNIT
      states[2 * k - 1], states[2 * k] = name, state
    else
      table.insert(others, 1, name)
    end
  end
  if #ids == 0 then return end
  chunked(states, function(...) call('HSET', P .. 'gs', ...) end)
  call('LTRIM', P .. 'n', #ring, -1)
  call('RPUSH', P .. 'n', unpack(names))
  if #others > 0 then call('LPUSH', P .. 'n', unpack(others)) end
end

-- Writes the leases; the answer, and what is remembered of it.
local function leases_save()
  local ends, told = format('%d', now + Q.lease), format('%d', now)
  local times = pack(LEASE, 0, now, now + Q.lease, 2 * Q.refits, -1, 0, #ids == 1 and 1 or 0):sub(5)
  local named = pack('<B', #worker) .. worker
  -- What most leases begin with: those of jobs that were never tried.
  local usual = pack('<I4', 1) .. times .. ONE_UNIT .. named
  local answer, remembered = { told, '', {}, ends }, { 'leases', told, '', ends }
  for from = 1, #ids, TOGETHER do
    local upto = min(from + TOGETHER - 1, #ids)
    local texts, leases = call('HMGET', P .. 'j', unpack(ids, from, upto)), {}
    for n = from, upto do
      local id, text, k = ids[n], texts[n - from + 1], 2 * (n - from)
      answer[2 * n + 3], answer[2 * n + 4], remembered[n + 4] = id, text, id
      local attempt, lease = read('<I4', text, 22), nil
      if attempt == 0 and taken[n] == ONE_UNIT then
        lease = usual .. names[n]
      else
        lease = pack('<I4', attempt + 1) .. times .. taken[n] .. named .. names[n]
      end
      leases[k + 1], leases[k + 2] = id, lease
    end
    call('HSET', P .. 'r', unpack(leases))
    call('ZADD', P .. 'l', ends, table.concat(ids, ' ', from, upto))
  end
  if #ids > 0 then
    call('HINCRBY', P .. 'c', 't_leased', #ids)
    local running, members = call('HLEN', P .. 'r'), call('ZCARD', P .. 'l')
    if #ids >= FEW and running == #ids then widen(P .. 'r') end
    -- Leases that ended one by one may be in l still: where they are many, one is looked at.
    if members > 2 * running + CHUNK then is_over(call('ZRANGE', P .. 'l', now % members, now % members)[1]) end
  end
  return answer, remembered
end

-- Answers, and says to others when something may start; `next` is that, or -1.
local function hand_out(answer, remembered, next)
  answer[3] = call('ZRANGEBYSCORE', P .. 'tz', '-inf', now, 'LIMIT', 0, 16)
  -- What this worker leaves, another may take; and somebody must be there when these leases end.
  if #ids > 0 then mark(next <= now and 0 or next) end
  answer[2] = format('%d', next)
  remembered[3] = answer[2]
  return reply(answer, remembered)
end

if not again and not Q.paused and Q.heaviest == 1 and is_calm()
  and call('ZCOUNT', P .. 'h', '-inf', RING + now) == 0 then
  local wanted = min(most, CHUNK)
  local ring = wanted > 0 and call('LRANGE', P .. 'n', 0, wanted - 1) or {}
  if #ring > 0 and #ring == wanted then serve_plain(ring) end
  -- In every group that was served another job may start at once.
  if #ids > 0 and #ids == most then
    local answer, remembered = leases_save()
    return hand_out(answer, remembered, now)
  end
end
