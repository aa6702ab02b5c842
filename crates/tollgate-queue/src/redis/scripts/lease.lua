-- Leases jobs that may start, a turn for each group, deficit round robin.
--
--   ARGV[3]   how many at most
--   ARGV[4]   the worker's name
--
-- Answers { now, next (-1: none), recurring jobs that are due, when these leases end, id, job, id,
-- job ... }. The attempt is one more than the job says.

local most, worker = tonumber(ARGV[3]), ARGV[4]

-- Asked again: { 'leases', now, next, when they end, id ... }. Only leases that still are those of
-- then are told again; the others are over, and may be somebody else's.
if again then
  local answer = { again[2], again[3], {}, again[4] }
  local ids = { unpack(again, 5) }
  chunked(ids, function(...)
    local leases, texts = call('HMGET', P .. 'r', ...), call('HMGET', P .. 'j', ...)
    for n, id in ipairs({ ... }) do
      local attempt, leased
      if leases[n] then attempt, leased = read('<I4d', leases[n]) end
      if leased == tonumber(again[2]) and attempt == read('<I4', texts[n], 22) + 1 then
        answer[#answer + 1], answer[#answer + 2] = id, texts[n]
      end
    end
  end)
  return answer
end

upkeep()

-- Groups whose time has come go to the end of the ring, the earliest first.
local due = call('ZRANGEBYSCORE', P .. 'h', RING, RING + now, 'LIMIT', 0, CHUNK)
groups_load(due)
for _, name in ipairs(due) do
  group_promote(groups[name])
  group_place(groups[name])
end
heap_save()

-- Where no job has more than one unit, the first of a group need not be seen before it is granted.
local light = Q.heaviest == 1
local ids, names, granted, taken, touched = {}, {}, {}, {}, {}

-- The weight of the first job of a group that was not granted yet; read ahead as far as may be needed.
local function head_weight(g, is_last)
  if light or g.odd == 0 then return g.waiting > g.taken and 1 end
  if g.taken >= #g.ids and #g.ids == g.asked then
    g.asked = #g.ids + (is_last and max(2, min(most - #granted, CHUNK)) or 2)
    g.ids, g.weights, g.is_odd = line_read(g, g.asked)
  end
  return g.weights[g.taken + 1]
end

local function grant(g, weight)
  if g.deficit < weight then g.deficit = g.deficit + max(Q.heaviest, weight) end
  g.deficit = g.deficit - weight
  g.taken, g.running, g.extra, g.dirty = g.taken + 1, g.running + 1, g.extra + weight - 1, true
  granted[#granted + 1], taken[#taken + 1] = g, all_take(g, weight)
end

-- Serves the groups of `ring` in turn, again and again if these are all there are. Answers where
-- it stopped, the end of the ring, and whether a limit of the whole queue was what stopped it.
local function serve(ring, is_all)
  local from, count_first = 1, #ring
  local upto = count_first
  while from <= upto and #granted < most and (is_all or from <= count_first) do
    local g = groups[ring[from]]
    if not touched[g.name] then
      touched[g.name], touched[#touched + 1] = true, g
      g.taken, g.extra, g.ids, g.weights, g.asked = 0, 0, {}, {}, 0
      group_promote(g)
    end
    local is_last = upto == from
    local weight = head_weight(g, is_last)
    if not weight or group_ready(g, weight) > now then
      from = from + 1
    else
      -- Nobody goes before the first in turn: a heavy job would wait for ever.
      if wide_ready(weight) > now then return from, upto, true end
      grant(g, weight)
      weight = head_weight(g, is_last)
      if not weight or group_ready(g, weight) > now then
        from = from + 1
      elseif weight > g.deficit then
        from, upto = from + 1, upto + 1
        ring[upto] = g.name
      end
    end
  end
  return from, upto, false
end

-- Takes what was granted out of the lines, and finds out who they are.
local function line_take(g)
  local odd = 0
  if g.odd > 0 then
    if g.taken > #g.ids then g.ids, g.weights, g.is_odd = line_read(g, g.taken) end
    for n = 1, g.taken do odd = odd + (g.is_odd[n] and 1 or 0) end
    if odd > 0 then call('ZREMRANGEBYRANK', odd_of(g.name), 0, odd - 1) end
  end
  if g.taken > odd then
    local came = call('LPOP', came_of(g.name), g.taken - odd)
    if odd == 0 then g.ids = came end
  end
  g.waiting, g.odd = g.waiting - g.taken, g.odd - odd
  extra_drop(g.name, g.extra)
end

local function collect()
  for _, g in ipairs(touched) do
    g.given = 0
    if g.taken > 0 then line_take(g) end
  end
  for n = #ids + 1, #granted do
    local g = granted[n]
    g.given = g.given + 1
    ids[n], names[n] = g.ids[g.given], g.name
  end
end

-- Most groups are served without being loaded: those with one limit, of slots, which has room for the
-- first job of the line and for another, of which there is one. They go to the end of the ring.
local is_quick = light and plain and not is_wide and Q.delayed <= 0 and not any_own()
local taken_one = pack('<BI4BB', 1, 1, 0, 0)

-- The state of such a group with a job less in its line, and `turn` as its turn; nothing if the group
-- is not one.
local function state_after_start(value, turn)
  if not value or #value < PLAIN_LENGTH then return nil end
  local limit = Q.group_limits[1]
  local running, blocked, deficit, waiting, odd, _, kind, length, flight, used = read(PLAIN, value)
  if waiting < 2 or odd > 0 or blocked > now or deficit ~= 0 or kind ~= 1 or length ~= #value - 37 or
    flight + used + 2 > limit.units then
    return nil
  end
  local log, rest = log_rest(limit, value, PLAIN_LENGTH + 1, #value + 1, used)
  return pack(PLAIN, running + 1, blocked, 0, waiting - 1, 0, turn, 1, 8 + #log, flight + 1, rest) .. log
end

-- Starts a job of every group of `ring` that is like that; answers the other groups.
local function serve_quickly(ring)
  local values, others, states, turns_new = call('HMGET', P .. 'gs', unpack(ring)), {}, {}, {}
  local turn = call('HINCRBY', P .. 'c', 'z', #ring) - #ring
  for n = 1, #ring do
    local name = ring[n]
    local state = not groups[name] and state_after_start(values[n], turn + n)
    if state then
      local k = #ids + 1
      ids[k], names[k], granted[k], taken[k] = call('LPOP', came_of(name)), name, false, taken_one
      states[#states + 1], states[#states + 2] = name, state
      turns_new[#turns_new + 1], turns_new[#turns_new + 2] = ('%d'):format(turn + n), name
    else
      others[#others + 1] = name
    end
  end
  chunked(states, function(...) call('HSET', P .. 'gs', ...) end)
  chunked(turns_new, function(...) call('ZADD', P .. 'h', ...) end)
  return others
end

for _ = 1, 8 do
  if #ids >= most or Q.paused then break end
  local wanted = min(most - #ids, CHUNK)
  local ring = call('ZRANGEBYSCORE', P .. 'h', '-inf', '(' .. RING, 'LIMIT', 0, wanted)
  local is_all, served = #ring < wanted, #ids
  if #ring == 0 then break end
  if is_quick and not is_all then ring = serve_quickly(ring) end
  local in_ring = #ring
  served = #ids - served
  groups_load(ring)
  touched = {}
  local from, upto, stopped = serve(ring, is_all)
  collect()
  local stays, behind = {}, {}
  for n = from, upto do
    stays[ring[n]] = true
    if n > in_ring then behind[#behind + 1] = ring[n] end
  end
  for _, g in ipairs(touched) do
    if not stays[g.name] then group_place(g, g.weights[g.taken + 1]) end
  end
  heap_save(behind)
  if stopped or #touched + served == 0 then break end
end

local ends, told = ('%d'):format(now + Q.lease), ('%d'):format(now)
local times = pack(LEASE, 0, now, now + Q.lease, 2 * Q.refits, -1, 0, #ids == 1 and 1 or 0):sub(5)
local named = pack('<B', #worker) .. worker
-- What most leases begin with: those of jobs that were never tried.
local usual, NEVER = pack('<I4', 1) .. times .. taken_one .. named, ('\0'):rep(4)
local answer, remembered = { told, '', '', ends }, { 'leases', told, '', ends }
for from = 1, #ids, TOGETHER do
  local upto = min(from + TOGETHER - 1, #ids)
  local texts = call('HMGET', P .. 'j', unpack(ids, from, upto))
  local leases = {}
  for n = from, upto do
    local id, text = ids[n], texts[n - from + 1]
    answer[2 * n + 3], answer[2 * n + 4], remembered[n + 4] = id, text, id
    local k = 2 * (n - from)
    leases[k + 1] = id
    if taken[n] == taken_one and text:sub(22, 25) == NEVER then
      leases[k + 2] = usual .. names[n]
    else
      local attempt = read('<I4', text, 22) + 1
      leases[k + 2] = pack('<I4', attempt) .. times .. taken[n] .. named .. names[n]
    end
  end
  call('HSET', P .. 'r', unpack(leases))
  call('ZADD', P .. 'l', ends, table.concat(ids, ' ', from, upto))
end
if #ids > 0 then count('leased', #ids) end
groups_save()
totals_save()

answer[3] = call('ZRANGEBYSCORE', P .. 'tz', '-inf', now, 'LIMIT', 0, 16)
local next = next_time()
-- What this worker leaves, another may take; and somebody must be there when these leases end.
if #ids > 0 and next >= 0 and next <= now then mark(0) elseif #ids > 0 then mark(now + Q.lease) end
answer[2] = ('%d'):format(next)
remembered[3] = answer[2]
return reply(answer, remembered)
