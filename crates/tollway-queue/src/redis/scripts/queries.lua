-- Looks; changes nothing that time has not changed already.
--
-- Answers begin with the frame (layout.lua), but for 'recurring'.
--
--   ARGV[3]  'job'        ARGV[4] id: { 'live' | 'done' | 'dead', job or over, lease, group, units ahead,
--                         past attempts }
--            'peek'       ARGV[4] group, ARGV[5] most: { group, id, job, units ahead, past attempts
--                         ... }; see `page`
--            'stats'      ARGV[4] '' or '(' and the group to begin after, ARGV[5] most
--            'dead'       ARGV[4] id to begin after, ARGV[5] most: { id, over ... }; see `page`
--            'running'    ARGV[4] id to begin after, ARGV[5] most: { id, job, lease, past attempts ... };
--                         see `page`
--            'ended'      ARGV[4], ARGV[5] when a job ended and its id, ARGV[7] most: those that ended
--                         after it, { id, 1 if it is dead, over ... }; see `page`. With both empty:
--                         { when, id } of the last that ended
--            'recurring'  { name, what ... }
--
-- With jobs that wait goes what an estimate needs: { name, state, units in all, paused, own limits }
-- of the group, and the units ahead of each.
-- A page of jobs ends with the one by which it has ARGV[6] bytes.

upkeep()

local what = ARGV[3]
local frame = frame_of(wide_told())

local function group_told(name)
  local g = group_load(name)
  local extra = tonumber(call('HGET', P .. 'u', name) or 0)
  return { name, group_bytes(g), g.waiting + extra, (Q.paused or is_paused(g.name)) and 1 or 0,
    own_limits(name) }, extra
end

-- Units before a job: of its line, and if it is delayed of all that wait, and of those due before it.
local function ahead(g, id, place, extra)
  local rank = line_rank(g.name, place)
  if rank then return rank + extra end
  local before = call('ZRANK', delays_of(g), pack('>I7', id)) or 0
  return g.waiting + extra + before * Q.heaviest
end

local page = tonumber(ARGV[6] or 0)
local function paged(text)
  page = page - #text
  return text
end

-- Of these ids those after `after`, in order.
local function ids_after(after, ids)
  local behind = {}
  for _, id in ipairs(ids) do
    if tonumber(id) > after then behind[#behind + 1] = tonumber(id) end
  end
  table.sort(behind)
  return behind
end

-- When the oldest job was enqueued among the first ones of the groups whose turn comes next; below 0
-- if there is none.
local OLDEST_AMONG = 128
local function oldest()
  local names, least = call('LRANGE', P .. 'n', 0, OLDEST_AMONG - 1), nil
  local left = OLDEST_AMONG - #names
  local others = left > 0 and call('ZRANGE', P .. 'h', 0, left - 1) or {}
  for n = 1, #others do names[#names + 1] = others[n] end
  for _, name in ipairs(names) do
    local came, odd = call('LINDEX', came_of(name), 0), call('ZRANGE', odd_of(name), 0, 0)[1]
    if came then least = min(least or tonumber(came), tonumber(came)) end
    if odd then
      local id = read('>I7', odd, 9)
      least = min(least or id, id)
    end
  end
  local text = least and call('HGET', P .. 'j', format('%d', least))
  return text and format('%d', read('<d', text)) or '-1'
end

if what == 'job' then
  local id = ARGV[4]
  local text = call('HGET', P .. 'j', id)
  if text then
    local j, lease = job_read(text), call('HGET', P .. 'r', id)
    local told, extra = group_told(j.group)
    local before = ahead(group_load(j.group), id, job_place(id, j), extra)
    return { frame, 'live', text, lease or '', told, before, Q.past_of(id) }
  end
  text = call('HGET', P .. 'e', id)
  if text and read('<d', text) + Q.done_age > now then return { frame, 'done', text } end
  text = call('HGET', P .. 'x', id)
  if text and read('<d', text) + Q.dead_age > now then return { frame, 'dead', text } end
  return { frame, '' }
elseif what == 'peek' then
  local name, most = ARGV[4], min(tonumber(ARGV[5]), 1000)
  local told, extra = group_told(name)
  local answer = { frame, told }
  local function put(id, rank)
    local text = paged(call('HGET', P .. 'j', id))
    local k = #answer
    answer[k + 1], answer[k + 2], answer[k + 3], answer[k + 4] = id, text, rank, Q.past_of(id)
  end
  for n, id in ipairs((line_read(group_load(name), most))) do
    if page <= 0 then break end
    put(id, n - 1 + extra)
  end
  local left = most - (#answer - 2) / 4
  if left > 0 then
    local g = group_load(name)
    for n, id in ipairs(call('ZRANGE', delays_of(g), 0, left - 1)) do
      if page <= 0 then break end
      put(format('%d', (read('>I7', id))), g.waiting + extra + (n - 1) * Q.heaviest)
    end
  end
  return answer
elseif what == 'stats' then
  local totals = call('HMGET', P .. 'c', 't_enqueued', 't_leased', 't_done', 't_failed', 't_limited',
    't_expired', 't_dead', 't_cancelled', 't_missed', 'dl')
  for n = 1, 10 do totals[n] = totals[n] or '0' end
  local figures = { call('HLEN', P .. 'j'), call('HLEN', P .. 'r'), call('ZCARD', P .. 'i'),
    call('ZCOUNT', P .. 'ez', '(' .. now - Q.done_age, '+inf'),
    call('ZCOUNT', P .. 'xz', '(' .. now - Q.dead_age, '+inf'), Q.paused and 1 or 0,
    format('%d', next_time()), oldest() }
  local answer = { frame, totals, figures }
  local most = min(tonumber(ARGV[5]), 1000)
  local names = most > 0
    and call('ZRANGEBYLEX', P .. 'i', ARGV[4] == '' and '-' or ARGV[4], '+', 'LIMIT', 0, most + 1) or {}
  for n = 1, #names do
    local name = names[n]
    local g = group_load(name)
    local turn = g.turn > 0 and g.turn or STUCK
    local next = turn < RING and now or (turn < STUCK and turn - RING or -1)
    answer[#answer + 1] = { name, g.waiting, call('ZCARD', delays_of(g)), g.running,
      is_paused(g.name) and 1 or 0, format('%d', g.blocked > now and g.blocked or -1), format('%d', next) }
  end
  return answer
elseif what == 'dead' then
  -- By id, bounded by dead_max; what is too old is left out and forgotten at the next burial.
  local most, all = tonumber(ARGV[5]), call('ZRANGEBYSCORE', P .. 'xz', '(' .. now - Q.dead_age, '+inf')
  local ids, answer = ids_after(tonumber(ARGV[4]), all), { frame }
  for n = 1, min(most, #ids) do
    if page <= 0 then break end
    local id = format('%d', ids[n])
    answer[#answer + 1], answer[#answer + 2] = id, paged(call('HGET', P .. 'x', id))
  end
  return answer
elseif what == 'running' then
  local most, ids = tonumber(ARGV[5]), ids_after(tonumber(ARGV[4]), call('HKEYS', P .. 'r'))
  local answer = { frame }
  for n = 1, min(most, #ids) do
    if page <= 0 then break end
    local id, k = format('%d', ids[n]), #answer
    answer[k + 1], answer[k + 2] = id, paged(call('HGET', P .. 'j', id))
    answer[k + 3], answer[k + 4] = call('HGET', P .. 'r', id), Q.past_of(id)
  end
  return answer
elseif what == 'ended' then
  local at, id, most = ARGV[4], ARGV[5], tonumber(ARGV[7])
  -- What ended at the same time stands in the order of the ids as texts.
  local function after(z, age)
    local from = call('ZCOUNT', z, '-inf', '(' .. at)
    local upto = from + call('ZCOUNT', z, at, at)
    while from < upto do
      local middle = floor((from + upto) / 2)
      if call('ZRANGE', z, middle, middle)[1] <= id then from = middle + 1 else upto = middle end
    end
    from = max(from, call('ZCOUNT', z, '-inf', format('%d', now - age)))
    return call('ZRANGE', z, from, from + most - 1, 'WITHSCORES')
  end
  local function is_before(one, n, other, m)
    local a, b = tonumber(one[n + 1] or STUCK), tonumber(other[m + 1] or STUCK)
    return a < b or a == b and one[n] ~= nil and one[n] < other[m]
  end
  if at == '' then
    local done = call('ZRANGE', P .. 'ez', -1, -1, 'WITHSCORES')
    local dead = call('ZRANGE', P .. 'xz', -1, -1, 'WITHSCORES')
    local last = (dead[1] and (not done[1] or is_before(done, 1, dead, 1))) and dead or done
    return { frame, format('%d', last[2] or 0), last[1] or '0' }
  end
  local done, dead, n, m = after(P .. 'ez', Q.done_age), after(P .. 'xz', Q.dead_age), 1, 1
  local answer = { frame }
  for _ = 1, most do
    local is_dead = is_before(dead, m, done, n)
    local ended = is_dead and dead[m] or done[n]
    if not ended or page <= 0 then break end
    if is_dead then m = m + 2 else n = n + 2 end
    local text = call('HGET', P .. (is_dead and 'x' or 'e'), ended)
    if text then
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = ended, is_dead and 1 or 0, paged(text)
    end
  end
  return answer
end
return call('HGETALL', P .. 't')
