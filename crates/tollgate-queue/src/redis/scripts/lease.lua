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
      if leased == tonumber(again[2]) and attempt == read('<I4', texts[n], 6) + 1 then
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
local ids, granted, taken, touched = {}, {}, {}, {}

-- The weight of the first job of a group that was not granted yet; read ahead as far as may be needed.
local function head_weight(g, alone)
  if light then return g.waiting > g.taken and 1 end
  if g.taken >= #g.places and #g.places == g.asked then
    local have = #g.places
    g.asked = have + (alone and max(2, min(most - #granted, CHUNK)) or 2)
    for _, place in ipairs(call('ZRANGE', waits_of(g), have, g.asked - 1)) do
      g.places[#g.places + 1] = place
    end
  end
  local place = g.places[g.taken + 1]
  return place and read('>I4', place, 16)
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
      g.taken, g.extra, g.places, g.asked = 0, 0, {}, 0
      group_promote(g)
    end
    local alone = upto == from
    local weight = head_weight(g, alone)
    if not weight or group_ready(g, weight) > now then
      from = from + 1
    else
      -- Nobody goes before the first in turn: a heavy job would wait for ever.
      if wide_ready(weight) > now then return from, upto, true end
      grant(g, weight)
      weight = head_weight(g, alone)
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

-- Takes the places of what was granted out of their groups, and finds out who they are.
local function collect()
  for _, g in ipairs(touched) do
    g.given = 0
    if g.taken > 0 then
      g.waiting = g.waiting - g.taken
      if light then
        local popped = call('ZPOPMIN', waits_of(g), g.taken)
        for n = 1, g.taken do g.places[n] = popped[2 * n - 1] end
      else
        call('ZREMRANGEBYRANK', waits_of(g), 0, g.taken - 1)
        extra_drop(g.name, g.extra)
      end
    end
  end
  for n = #ids + 1, #granted do
    local g = granted[n]
    g.given = g.given + 1
    ids[n] = ('%d'):format(read('>I7', g.places[g.given], 9))
  end
end

for _ = 1, 8 do
  if #ids >= most or Q.paused then break end
  local wanted = min(most - #ids, CHUNK)
  local ring = call('ZRANGEBYSCORE', P .. 'h', '-inf', '(' .. RING, 'LIMIT', 0, wanted)
  local in_ring = #ring
  if in_ring == 0 then break end
  groups_load(ring)
  touched = {}
  local from, upto, stopped = serve(ring, in_ring < wanted)
  collect()
  local stays, behind = {}, {}
  for n = from, upto do
    stays[ring[n]] = true
    if n > in_ring then behind[#behind + 1] = ring[n] end
  end
  for _, g in ipairs(touched) do
    if not stays[g.name] then group_place(g, g.places[g.taken + 1]) end
  end
  heap_save(behind)
  if stopped or #touched == 0 then break end
end

local ends, told = ('%d'):format(now + Q.lease), ('%d'):format(now)
local times = pack('<ddBdd', now, now + Q.lease, 2 * Q.refits, -1, 0)
local named = pack('<B', #worker) .. worker
local answer, remembered = { told, '', '', ends }, { 'leases', told, '', ends }
for from = 1, #ids, CHUNK do
  local upto = min(from + CHUNK - 1, #ids)
  local texts = call('HMGET', P .. 'j', unpack(ids, from, upto))
  local leases, expiries = {}, {}
  for n = from, upto do
    local id, text = ids[n], texts[n - from + 1]
    answer[2 * n + 3], answer[2 * n + 4], remembered[n + 4] = id, text, id
    local k = 2 * (n - from)
    leases[k + 1] = id
    leases[k + 2] = pack('<I4', read('<I4', text, 6) + 1) .. times .. taken[n] .. named .. granted[n].name
    expiries[k + 1], expiries[k + 2] = ends, id
  end
  call('HSET', P .. 'r', unpack(leases))
  call('ZADD', P .. 'l', unpack(expiries))
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
