-- Leases jobs that may start, a turn for each group, deficit round robin.
--
--   ARGV[3]   how many at most
--   ARGV[4]   the worker's name
--
-- Answers { now, next (-1: none), recurring jobs that are due, when these leases end, id, job, id,
-- job ... }. The attempt is one more than the job says.

local most, worker = tonumber(ARGV[3]), ARGV[4]

upkeep()

-- Groups whose time has come go to the end of the ring, the earliest first.
for _, name in ipairs(call('ZRANGEBYSCORE', P .. 'h', RING, RING + now, 'LIMIT', 0, CHUNK)) do
  local g = group_load(name)
  group_promote(g)
  group_place(g)
end
heap_save()

local ids, grants, info, touched = {}, {}, {}, {}

-- The first place of a group that was not granted yet; read ahead as far as it may be needed.
local function head_of(g, alone)
  if not g.places or g.next > #g.places and #g.places == g.asked then
    local have = g.places and #g.places or 0
    g.asked = have + (alone and max(2, min(most - #ids, CHUNK)) or 2)
    g.places, g.next = g.places or {}, g.next or 1
    for _, place in ipairs(call('ZRANGE', g.waits, have, g.asked - 1)) do
      g.places[#g.places + 1] = place
    end
  end
  return g.places[g.next]
end

local function grant(g, place)
  local id, weight = read('>I7', place, 9), read('>I4', place, 16)
  if g.deficit < weight then g.deficit = g.deficit + max(Q.heaviest, weight) end
  g.deficit = g.deficit - weight
  g.next, g.running, g.dirty = g.next + 1, g.running + 1, true
  g.extra = (g.extra or 0) + weight - 1
  ids[#ids + 1] = ('%d'):format(id)
  info[#info + 1] = { all_take(g, weight), g.name }
end

-- Serves the groups of `ring` in turn, again and again if these are all there are. Answers where
-- it stopped, the end of the ring, and whether a limit of the whole queue was what stopped it.
local function serve(ring, is_all)
  local from, count_first = 1, #ring
  local upto = count_first
  while from <= upto and #ids < most and (is_all or from <= count_first) do
    local g = group_load(ring[from])
    if not touched[g.name] then
      touched[g.name], touched[#touched + 1] = true, g
      group_promote(g)
    end
    local alone = upto == from
    local place = head_of(g, alone)
    if not place or group_ready(g, read('>I4', place, 16)) > now then
      from = from + 1
    else
      -- Nobody goes before the first in turn: a heavy job would wait for ever.
      if wide_ready(read('>I4', place, 16)) > now then return from, upto, true end
      grant(g, place)
      place = head_of(g, alone)
      local weight = place and read('>I4', place, 16)
      if not place or group_ready(g, weight) > now then
        from = from + 1
      elseif weight > g.deficit then
        from, upto = from + 1, upto + 1
        ring[upto] = g.name
      end
    end
  end
  return from, upto, false
end

for _ = 1, 8 do
  if #ids >= most or Q.paused then break end
  local wanted = min(most - #ids, CHUNK)
  local ring = call('ZRANGEBYSCORE', P .. 'h', '-inf', '(' .. RING, 'LIMIT', 0, wanted)
  local in_ring = #ring
  if in_ring == 0 then break end
  touched = {}
  local from, upto, stopped = serve(ring, in_ring < wanted)
  local stays, behind = {}, {}
  for n = from, upto do
    stays[ring[n]] = true
    if n > in_ring then behind[#behind + 1] = ring[n] end
  end
  for _, g in ipairs(touched) do
    if g.next > 1 then
      call('ZREMRANGEBYRANK', g.waits, 0, g.next - 2)
      extra_drop(g.name, g.extra)
    end
    if not stays[g.name] then group_place(g, g.places[g.next] or #g.places < g.asked and false or nil) end
    g.places, g.next, g.extra = nil, nil, nil
  end
  heap_save(behind)
  if stopped or #touched == 0 then break end
end

local times = pack('<ddBdd', now, now + Q.lease, 2 * Q.refits, -1, 0)
local named = pack('<B', #worker) .. worker
for from = 1, #ids, CHUNK do
  local upto = min(from + CHUNK - 1, #ids)
  local texts = call('HMGET', P .. 'j', unpack(ids, from, upto))
  local leases, ends = {}, {}
  for n = from, upto do
    local text = texts[n - from + 1]
    grants[#grants + 1], grants[#grants + 2] = ids[n], text
    local attempt = read('<I4', text, 6) + 1
    leases[#leases + 1] = ids[n]
    leases[#leases + 1] = pack('<I4', attempt) .. times .. info[n][1] .. named .. info[n][2]
    ends[#ends + 1], ends[#ends + 2] = now + Q.lease, ids[n]
  end
  call('HSET', P .. 'r', unpack(leases))
  call('ZADD', P .. 'l', unpack(ends))
end
if #ids > 0 then count('leased', #ids) end
groups_save()
totals_save()

local recurring = call('ZRANGEBYSCORE', P .. 'tz', '-inf', now, 'LIMIT', 0, 16)
local next = next_time()
-- What this worker leaves, another may take; and somebody must be there when these leases end.
if #ids > 0 and next >= 0 and next <= now then mark(0) elseif #ids > 0 then mark(now + Q.lease) end
local answer = { ('%d'):format(now), ('%d'):format(next), recurring, ('%d'):format(now + Q.lease) }
for _, part in ipairs(grants) do answer[#answer + 1] = part end
return reply(answer)
