-- Where groups stand: in the ring of those that may start a job now, or in the heap of those that wait.

-- What is written together at the end: group -> 0 for the ring, otherwise its score in the
-- heap, false for nowhere.
local turns, turn_order = {}, {}

-- The first of the ring, or the first time in the heap.
local function heap_first()
  local name = call('LINDEX', P .. 'n', 0)
  if name then return IN_RING, name end
  local first = call('ZRANGE', P .. 'h', 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) or STUCK, first[1]
end

-- Where the group stands from now on; `weight` is that of its first job if that is known. Groups with
-- nothing to start but running jobs stay known by name.
local function group_place(g, weight)
  if turns[g.name] == nil then turn_order[#turn_order + 1] = g.name end
  weight = g.waiting > 0 and (weight or first_weight(g))
  local first = g.delayed > 0 and call('ZRANGE', delays_of(g), 0, 0, 'WITHSCORES')[2]
  if first then
    call('ZADD', P .. 'ds', first, g.name)
    if tonumber(first) < Q.due then
      Q.due = tonumber(first)
      call('HSET', P .. 'c', 'dn', first)
    end
  end
  -- A delayed job may go before the head, and start when that may not.
  local due = first and max(tonumber(first), g.blocked) or STUCK
  if (weight or first) and g.is_paused then
    turns[g.name] = STUCK
  elseif weight then
    local ready = group_ready(g, weight)
    ready = ready > now and min(ready, due) or 0
    turns[g.name] = ready == 0 and 0 or (ready < STUCK and RING + ready or STUCK)
  elseif first then
    turns[g.name] = RING + due
  else
    turns[g.name] = g.running > 0 and STUCK
  end
  if turns[g.name] == STUCK or not turns[g.name] then
    if g.deficit > 0 then g.deficit, g.dirty = 0, true end
  end
end

local function ring_leave(name) call('LREM', P .. 'n', 1, name) end

-- Writes where groups stand. One that is in the ring keeps its turn; those that enter go to the end,
-- in the order in which they were placed, and then those of `behind`. Groups that were `popped` are
-- in the ring no more.
local function heap_save(behind)
  local gone, out, put, entering, earliest = {}, {}, {}, {}, STUCK
  for _, name in ipairs(turn_order) do
    local score, g = turns[name], groups[name]
    local turn, in_ring = g.turn, g.turn == IN_RING and not g.popped
    if not score then
      if turn > 0 then gone[#gone + 1], g.turn = name, 0 end
    elseif score == 0 then
      if not in_ring then entering[#entering + 1], g.turn = name, IN_RING end
    elseif turn ~= score then
      put[#put + 1], put[#put + 2], g.turn = score, name, score
      earliest = min(earliest, score)
    end
    if score ~= 0 and in_ring then ring_leave(name) end
    if turn >= RING and g.turn < RING then out[#out + 1] = name end
    if turn ~= g.turn then g.dirty = true end
    g.popped = false
  end
  for _, name in ipairs(behind or {}) do entering[#entering + 1], groups[name].popped = name, false end
  -- Whoever waits was told of the first; somebody is needed sooner.
  if #entering > 0 then earliest = IN_RING end
  local first = earliest < STUCK and heap_first() or 0
  if earliest < first and first >= RING then mark(earliest < RING and 0 or earliest - RING) end
  chunked(entering, function(...) call('RPUSH', P .. 'n', ...) end)
  chunked(put, function(...) call('ZADD', P .. 'h', ...) end)
  chunked(out, function(...) call('ZREM', P .. 'h', ...) end)
  chunked(gone, function(...) call('ZREM', P .. 'i', ...) end)
  turns, turn_order = {}, {}
end

-- Lets the delayed jobs of all groups wait whose time has come, some thousands at a time, so that
-- whoever looks sees what a lease will find.
function Q.promote_due()
  local most = 10
  while Q.due <= now and most > 0 do
    most = most - 1
    local names = call('ZRANGEBYSCORE', P .. 'ds', '-inf', now, 'LIMIT', 0, CHUNK / 10)
    groups_load(names)
    for _, name in ipairs(names) do
      local g = groups[name]
      if g.delayed == 0 then call('ZREM', P .. 'ds', name) end
      group_promote(g)
      group_place(g)
    end
    local first = call('ZRANGE', P .. 'ds', 0, 0, 'WITHSCORES')[2]
    Q.due = tonumber(first or STUCK)
    if first then call('HSET', P .. 'c', 'dn', first) else call('HDEL', P .. 'c', 'dn') end
  end
end
