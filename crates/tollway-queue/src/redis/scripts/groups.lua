-- Groups: their state, and the limits that bind them.
--
-- A group that is touched is loaded once and stored once, whatever happens to it in between.

local groups = {}

-- Makes jobs that run hold what there is of limits that are new to their group (jobs.lua). Leases
-- that were read before are then others.
local refit
local is_refitted = false

-- The states of `limits` that begin at `at` in `value`, vacant ones where a kind has changed; and
-- which have not.
local function states_load(limits, value, at)
  local states, fits = {}, {}
  for n, limit in ipairs(limits) do
    local from, upto
    if value and at <= #value then
      local kind, length
      kind, length, at = read('<BI4', value, at)
      fits[n] = kind == limit.kind
      if kind == limit.kind and length > 0 then from, upto = at, at + length end
      at = at + length
    end
    states[n] = limit_load(limit, from and value, from, upto)
  end
  return states, fits
end

-- The bytes of several states, and until when they say something.
local function states_format(limits, states)
  local parts, upto = {}, 0
  for n, limit in ipairs(limits) do
    local bytes, last = limit_format(limit, states[n])
    parts[n] = pack('<BI4', limit.kind, #bytes) .. bytes
    upto = max(upto, last)
  end
  return table.concat(parts), upto
end

-- Whether any group has limits of its own.
local function any_own()
  if Q.own == nil then Q.own = call('HLEN', P .. 'o') > 0 end
  return Q.own
end

-- The limits of its own that a group has, as they are stored, or ''.
local function own_limits(name) return any_own() and call('HGET', P .. 'o', name) or '' end

-- Whether any group, and whether this group itself is paused; a queue that is lets nothing start, but
-- places its groups.
local function any_paused()
  if Q.pauses == nil then Q.pauses = call('HLEN', P .. 'p') > 0 end
  return Q.pauses
end
local function is_paused(name) return any_paused() and call('HEXISTS', P .. 'p', name) == 1 end

local function delays_of(g) return P .. 'd:' .. g.name end

local function group_read(name, value, is_parked)
  local limits, own = Q.group_limits, own_limits(name)
  if own ~= '' then limits = read_limits(own, 1) end
  local running, blocked, deficit, waiting, odd, aside, turn = 0, 0, 0, 0, 0, 0, 0
  local states, fits
  local is_like = plain
  if own ~= '' then is_like = is_plain(limits) end
  if value and is_like and #value >= PLAIN_LENGTH then
    local kind, length, flight, used, at
    running, blocked, deficit, waiting, odd, aside, turn, kind, length, flight, used, at =
      read(PLAIN, value)
    if kind == 1 and length == #value - BODY then
      states = { slots_load(limits[1], flight, value, at, #value + 1, used) }
    end
  end
  if not states then
    if value then running, blocked, deficit, waiting, odd, aside, turn = read(HEAD, value) end
    states, fits = states_load(limits, value, HEAD_LENGTH + 1)
  end
  if waiting > 0 then waiting = line_length(name, odd) end
  -- Everything that a script notes of a group is named here: a table that need not grow is cheap.
  local g = { name = name, running = running, blocked = blocked, deficit = deficit, waiting = waiting,
    odd = odd, delayed = floor(aside / 4), is_paused = is_paused(name), has_own = own ~= '', turn = turn,
    limits = limits, states = states, is_plain = is_like, is_parked = is_parked,
    is_kept = value and not is_parked, dirty = false, taken = 0, given = 0, extra = 0, ids = false,
    weights = false, is_odd = false, asked = 0, popped = false, held = false, reopens = false }
  groups[name] = g
  if fits and running > 0 then
    for n = 1, #limits do
      if not fits[n] then return refit(g, fits) end
    end
  end
end

-- Loads the groups that are not loaded yet, all at one go.
local function groups_load(names)
  local wanted, seen = {}, {}
  for _, name in ipairs(names) do
    if not groups[name] and not seen[name] then wanted[#wanted + 1], seen[name] = name, true end
  end
  chunked(wanted, function(...)
    local missing, keys = {}, {}
    local values = call('HMGET', P .. 'gs', ...)
    for n, name in ipairs({ ... }) do
      if values[n] then
        group_read(name, values[n], false)
      else
        missing[#missing + 1], keys[#keys + 1] = name, P .. 'g:' .. name
      end
    end
    if #keys == 0 then return end
    values = call('MGET', unpack(keys))
    for n, name in ipairs(missing) do group_read(name, values[n], values[n] and true) end
  end)
end

local function group_load(name)
  if not groups[name] then groups_load({ name }) end
  return groups[name]
end

local function group_bytes(g)
  local aside = 4 * g.delayed + (g.is_paused and 2 or 0) + (g.has_own and 1 or 0)
  if g.is_plain then
    local s = g.states[1]
    local log = s[5] or s[3]
    return pack(PLAIN, g.running, g.blocked, g.deficit, g.waiting, g.odd, aside, g.turn, 1, 8 + #log,
      s[2], s[6] or s[4]) .. log
  end
  return pack(HEAD, g.running, g.blocked, g.deficit, g.waiting, g.odd, aside, g.turn)
    .. states_format(g.limits, g.states)
end

-- Keeps what there is to remember of a group without jobs, for as long as it says something.
local function group_park(g)
  local bytes, upto = states_format(g.limits, g.states)
  if g.blocked > now then upto = max(upto, g.blocked) end
  if upto > now then
    call('SET', P .. 'g:' .. g.name, pack(HEAD, 0, g.blocked, 0, 0, 0, 0, 0) .. bytes, 'PX', ms(upto - now))
    g.is_parked = true
  elseif g.is_parked then
    call('DEL', P .. 'g:' .. g.name)
    g.is_parked = false
  end
end

-- The limits that bind every group: the queue's own, and those shared with other queues.
local wide
local function wide_load()
  if wide then return wide end
  wide = { limits = Q.queue_limits, shared = {} }
  wide.states = states_load(Q.queue_limits, call('GET', P .. 'q'), 1)
  for _, name in ipairs(Q.shared) do
    local spec = call('HGET', S .. 'l', name)
    if spec then
      local limits = read_limits(spec, 1)
      local key = S .. '~s:' .. name
      wide.shared[#wide.shared + 1] =
        { name = name, key = key, limits = limits, states = states_load(limits, call('GET', key), 1) }
    end
  end
  return wide
end

local function wide_store(key, limits, states)
  local bytes, upto = states_format(limits, states)
  if upto >= STUCK then
    call('SET', key, bytes)
  elseif upto > now then
    call('SET', key, bytes, 'PX', ms(upto - now))
  else
    call('DEL', key)
  end
end

local function wide_save()
  if not wide or not wide.dirty then return end
  if #wide.limits > 0 then wide_store(P .. 'q', wide.limits, wide.states) end
  for _, one in ipairs(wide.shared) do wide_store(one.key, one.limits, one.states) end
end

-- When the group's own limits let a job of this weight start.
local function group_ready(g, weight)
  local ready = g.blocked > now and g.blocked or 0
  if g.is_plain then
    local limit, s = g.limits[1], g.states[1]
    local over = s[2] + s[4] + min(weight, limit.units) - limit.units
    return over <= 0 and ready or max(ready, log_frees(limit, s[3], over))
  end
  for n, limit in ipairs(g.limits) do ready = max(ready, limit_ready(limit, g.states[n], weight)) end
  return ready
end

-- When the limits of the queue and the shared ones do.
local function wide_ready(weight)
  if not is_wide then return 0 end
  local w, ready = wide_load(), 0
  for n, limit in ipairs(w.limits) do ready = max(ready, limit_ready(limit, w.states[n], weight)) end
  for _, one in ipairs(w.shared) do
    ready = max(ready, limit_ready(one.limits[1], one.states[1], weight))
  end
  return ready
end

-- Takes a job's units of every limit that binds it; answers what was taken, for the lease.
local taken_plain = {}
local function all_take(g, weight)
  if not is_wide and g.is_plain then
    local units, s = min(weight, g.limits[1].units), g.states[1]
    s[2], s[5], s[6] = s[2] + units, nil, nil
    taken_plain[units] = taken_plain[units] or pack('<BI4BB', 1, units, 0, 0)
    return taken_plain[units]
  end
  local taken = pack('<B', #g.limits)
  for n, limit in ipairs(g.limits) do
    limit_take(limit, g.states[n], weight)
    taken = taken .. pack('<I4', limit_units(limit, weight))
  end
  if not is_wide then return taken .. '\0\0' end
  local w = wide_load()
  taken = taken .. pack('<B', #w.limits)
  for n, limit in ipairs(w.limits) do
    limit_take(limit, w.states[n], weight)
    taken = taken .. pack('<I4', limit_units(limit, weight))
  end
  taken = taken .. pack('<B', #w.shared)
  for _, one in ipairs(w.shared) do
    limit_take(one.limits[1], one.states[1], weight)
    taken = taken .. pack('<I4', limit_units(one.limits[1], weight))
  end
  w.dirty = true
  return taken
end

-- Calls change(limit, state, units) for everything that was taken and still is of its limit.
local function all_change(g, taken, change)
  local count, at = read('<B', taken)
  for n = 1, count do
    if g.limits[n] then change(g.limits[n], g.states[n], read('<I4', taken, at + 4 * n - 4)) end
  end
  if not is_wide then return end
  local w = wide_load()
  count, at = read('<B', taken, at + 4 * count)
  for n = 1, count do
    if w.limits[n] then change(w.limits[n], w.states[n], read('<I4', taken, at + 4 * n - 4)) end
  end
  count, at = read('<B', taken, at + 4 * count)
  for n = 1, count do
    local one = w.shared[n]
    if one then change(one.limits[1], one.states[1], read('<I4', taken, at + 4 * n - 4)) end
  end
  w.dirty = true
end

-- How many units the jobs of a queue have at most, and the heaviest of them.
local function units_at_most(prefix)
  local heaviest = tonumber(call('HGET', prefix .. 'c', 'hv') or 1)
  return call('HLEN', prefix .. 'j') * heaviest, heaviest
end

-- What an estimate needs of the limits that bind every group: { state of the queue's own, units of
-- its jobs, how many groups have jobs, and per shared limit: limit, state, units of the jobs of all that share it, heaviest }.
local function wide_told()
  if not is_wide then return '' end
  local told = { call('GET', P .. 'q') or '', (units_at_most(P)), call('ZCARD', P .. 'i') }
  for _, name in ipairs(Q.shared) do
    local units, heaviest = 0, 1
    for _, queue in ipairs(call('SMEMBERS', S .. '~u:' .. name)) do
      local more, weight = units_at_most(S .. queue:gsub(':', '/') .. ':')
      units, heaviest = units + more, max(heaviest, weight)
    end
    told[#told + 1] = call('HGET', S .. 'l', name) or ''
    told[#told + 1] = call('GET', S .. '~s:' .. name) or ''
    told[#told + 1], told[#told + 2] = units, heaviest
  end
  return told
end

local function delayed_count(g, change)
  g.delayed, g.dirty = g.delayed + change, true
  if g.delayed == 0 then call('ZREM', P .. 'ds', g.name) end
  call('HINCRBY', P .. 'c', 'dl', change)
end

-- Lets the delayed jobs of a group wait whose time has come.
local function group_promote(g)
  if g.delayed == 0 then return end
  local due = call('ZRANGEBYSCORE', delays_of(g), '-inf', now, 'LIMIT', 0, CHUNK)
  if #due == 0 then return end
  local ids, places, extra = {}, {}, 0
  for n, id in ipairs(due) do ids[n] = format('%d', read('>I7', id)) end
  for n, text in ipairs(call('HMGET', P .. 'j', unpack(ids))) do
    local at, priority, weight = read('<dBI4', text, 9)
    places[2 * n - 1], places[2 * n] = 0, pack('>BI7I7I4', 255 - priority, at, ids[n], weight)
    extra = extra + weight - 1
  end
  line_put(g, places, extra)
  call('ZREM', delays_of(g), unpack(due))
  delayed_count(g, -#due)
end

-- The weight of the first job that waits in a group.
local function first_weight(g)
  if Q.heaviest == 1 or g.odd == 0 then return 1 end
  local _, weights = line_read(g, 1)
  return weights[1] or 1
end

-- Stores every group that was changed; those with jobs together, of the others what says something.
local function groups_save()
  local put, gone, unparked, fresh = {}, {}, {}, 0
  for name, g in pairs(groups) do
    if g.dirty then
      g.dirty = false
      if g.turn > 0 then
        if not g.is_kept then fresh = fresh + 1 end
        put[#put + 1], put[#put + 2], g.is_kept = name, group_bytes(g), true
        if g.is_parked then unparked[#unparked + 1], g.is_parked = P .. 'g:' .. name, false end
      else
        if g.is_kept then gone[#gone + 1], g.is_kept = name, false end
        group_park(g)
      end
    end
  end
  chunked(put, function(...) call('HSET', P .. 'gs', ...) end)
  if fresh > 0 then
    local many = call('HLEN', P .. 'gs')
    if many >= FEW and many - fresh < FEW then widen(P .. 'gs') end
  end
  chunked(gone, function(...) call('HDEL', P .. 'gs', ...) end)
  chunked(unparked, function(...) call('DEL', ...) end)
  wide_save()
end
