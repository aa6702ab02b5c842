-- Leases what lease_plain.lua has left.

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
local due = call('ZRANGEBYSCORE', P .. 'h', '-inf', RING + now, 'LIMIT', 0, CHUNK)
groups_load(due)
for _, name in ipairs(due) do
  group_promote(groups[name])
  group_place(groups[name])
end
heap_save()

-- Where no job has more than one unit, the first of a group need not be seen before it is granted.
local light = Q.heaviest == 1
local touched = {}

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

for _ = 1, 8 do
  local wanted = min(most - #ids, CHUNK)
  if wanted == 0 or Q.paused then break end
  local ring = call('LRANGE', P .. 'n', 0, wanted - 1)
  local in_ring = #ring
  if in_ring == 0 then break end
  groups_load(ring)
  touched = {}
  local from, upto, stopped = serve(ring, in_ring < wanted)
  collect()
  -- Whose turn has not come or is not over stays; who was served and may go on is behind all others.
  local stays, behind = {}, {}
  for n = 1, min(from - 1, in_ring) do groups[ring[n]].popped = true end
  for n = from, upto do
    stays[ring[n]] = true
    if n > in_ring then behind[#behind + 1] = ring[n] end
  end
  if from > 1 then call('LTRIM', P .. 'n', min(from - 1, in_ring), -1) end
  for _, g in ipairs(touched) do
    if not stays[g.name] then group_place(g, g.weights[g.taken + 1]) end
  end
  heap_save(behind)
  if stopped or #touched == 0 then break end
end

local answer, remembered = leases_save()
groups_save()
totals_save()
return hand_out(answer, remembered, next_time())
