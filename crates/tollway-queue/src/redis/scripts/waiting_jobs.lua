-- Lines: the jobs of a group that wait, in the order in which they start.
--
-- Most jobs have one unit and no priority, and start as they came: they stand in a list (f), where
-- ids rise and times do not fall. The odd ones (they came back, were delayed, have a priority or
-- several units) stand in a sorted set (w), by their places. The line is both, merged.

local function came_of(name) return P .. 'f:' .. name end
local function odd_of(name) return P .. 'w:' .. name end

-- How many jobs wait in a group that has `odd` odd ones.
local function line_length(name, odd) return call('LLEN', came_of(name)) + odd end

-- Puts odd jobs into the line of a group: `places` are pairs of 0 and a place.
local function line_put(g, places, extra)
  chunked(places, function(...) call('ZADD', odd_of(g.name), ...) end)
  local jobs = #places / 2
  g.waiting, g.odd, g.dirty = g.waiting + jobs, g.odd + jobs, true
  if extra > 0 then call('HINCRBY', P .. 'u', g.name, extra) end
end

-- Whether an odd job is before one that came: at the same priority the earlier, or the elder.
local function is_before(place, due, id)
  local rank, odd_due, odd_id = read('>BI7I7', place)
  if rank < 255 or odd_due < due then return true end
  return odd_due == due and odd_id < tonumber(id)
end

local function due_of(id) return read('<d', call('HGET', P .. 'j', id), 9) end

-- The first `most` jobs of a line: ids, weights, and whether each is odd.
local function line_read(g, most)
  if most == 0 then return {}, {}, {} end
  local came, ids, weights, is_odd = call('LRANGE', came_of(g.name), 0, most - 1), {}, {}, {}
  local places = g.odd > 0 and call('ZRANGE', odd_of(g.name), 0, most - 1) or {}
  local next_came, next_odd, due = 1, 1, nil
  for n = 1, min(most, #came + #places) do
    local id, place = came[next_came], places[next_odd]
    if id and place then due = due or due_of(id) end
    is_odd[n] = place and (not id or is_before(place, due, id))
    if is_odd[n] then
      local number, weight = read('>I7I4', place, 9)
      ids[n], weights[n], next_odd = format('%d', number), weight, next_odd + 1
    else
      ids[n], weights[n], next_came, due = id, 1, next_came + 1, nil
    end
  end
  return ids, weights, is_odd
end

-- How many that came are before the first of which `is_earlier` is not true.
local function came_before(name, is_earlier)
  local key = came_of(name)
  local from, upto = 0, call('LLEN', key)
  while from < upto do
    local middle = floor((from + upto) / 2)
    if is_earlier(call('LINDEX', key, middle)) then from = middle + 1 else upto = middle end
  end
  return from
end

-- How many jobs of its line are before this one; nothing if it is not there.
local function line_rank(name, place)
  local rank, id = call('ZRANK', odd_of(name), place), read('>I7', place, 9)
  if rank then
    return rank + came_before(name, function(other) return not is_before(place, due_of(other), other) end)
  end
  local before = came_before(name, function(other) return tonumber(other) < id end)
  if call('LINDEX', came_of(name), before) ~= format('%d', id) then return nil end
  return before + call('ZLEXCOUNT', odd_of(name), '-', '(' .. place)
end
