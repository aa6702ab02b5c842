-- Jobs as they are stored, and what is kept of those that are over.

local totals = {}
local function count(name, n) totals[name] = (totals[name] or 0) + (n or 1) end
local function totals_save()
  for name, n in pairs(totals) do call('HINCRBY', P .. 'c', 't_' .. name, n) end
end

local function job_read(text)
  local j = {}
  local length, at
  j.enqueued, j.due, j.priority, j.weight, j.attempt, j.failures, j.attempts_max, j.backoff,
    j.backoff_max, length, at = read('<ddBI4I4I4I4ddI2', text)
  j.key = text:sub(at, at + length - 1)
  length, at = read('<I2', text, at + length)
  j.group, j.payload = text:sub(at, at + length - 1), at + length
  j.text = text
  return j
end

local function job_head(j)
  return pack('<ddBI4I4I4I4ddI2', j.enqueued, j.due, j.priority, j.weight, j.attempt, j.failures,
    j.attempts_max, j.backoff, j.backoff_max, #j.key) .. j.key .. pack('<I2', #j.group) .. j.group
end

-- Bytes of payloads; a table, since a script has room for 200 names.
local payloads = { freed = 0 }

function payloads.of(j) return #j.text - j.payload + 1 end

-- Counts bytes of payloads that come (or go, below 0) under `name`. What was stored before they were
-- counted goes uncounted.
function payloads.count(name, bytes)
  if bytes ~= 0 and call('HINCRBY', P .. 'c', name, format('%d', bytes)) < 0 then
    call('HDEL', P .. 'c', name)
  end
end

-- Forgets a dead job that is stored as `text`.
function payloads.forget_dead(id, text)
  call('HDEL', P .. 'x', id)
  call('ZREM', P .. 'xz', id)
  payloads.count('bx', -payloads.of(job_read(sub(text, 14 + read('<I4', text, 10)))))
end

-- What became of earlier attempts at a job: of the last PAST_MAX.
function Q.past_of(id) return Q.has_past and call('HGET', P .. 'v', id) or '' end

function Q.past_put(id, text)
  call('HSET', P .. 'v', id, text)
  if not Q.has_past then
    Q.has_past = '1'
    call('HSET', P .. 'c', 'pv', '1')
  end
end

-- Notes how the attempt under the lease `l` ended without its job being done.
function Q.past_note(id, l, at, outcome, wait, reason)
  local PAST_MAX, REASON_MAX, HEAD = 8, 256, 32
  local text, many, from = Q.past_of(id), 0, 1
  -- Where the attempt that begins at `at` ends.
  local function behind(at)
    local worker = byte(text, at + 29)
    return at + HEAD + worker + read('<I2', text, at + 30 + worker)
  end
  while from <= #text do many, from = many + 1, behind(from) end
  if many == PAST_MAX then text = sub(text, behind(1)) end
  local length = min(#reason, REASON_MAX)
  -- No letter is cut in two.
  while length < #reason and byte(reason, length + 1) >= 128 and byte(reason, length + 1) < 192 do
    length = length - 1
  end
  Q.past_put(id, text .. pack('<I4ddBdB', l.attempt, l.leased, at, outcome, wait, #l.worker)
    .. l.worker .. pack('<I2', length) .. sub(reason, 1, length))
end

-- What is kept of a job that is over: whether there is a `note`, how long it is, and the note itself,
-- with past attempts behind it.
function Q.past_behind(id, has_note, note)
  local past = Q.past_of(id)
  if past ~= '' then
    has_note, note = has_note + 2, note .. past .. pack('<I4', #past)
  end
  return pack('<BI4', has_note, #note) .. note
end

-- Gives a job that is over, stored as `text`, its past attempts again.
function Q.past_revive(id, text)
  local has_note, length = read('<BI4', text, 9)
  if has_note < 2 then return end
  local upto = 14 + length - 4
  Q.past_put(id, sub(text, upto - read('<I4', text, upto), upto - 1))
end

local function job_place(id, j) return pack('>BI7I7I4', 255 - j.priority, j.due, id, j.weight) end

-- Keeps what is over in `hash` for `age`, at most `most` of it; written together at the end.
local kept = {}
local function keep(hash, id, value, age, most)
  if most == 0 or age == 0 then return end
  kept[hash] = kept[hash] or { values = {}, times = {}, age = age }
  local values, times = kept[hash].values, kept[hash].times
  values[#values + 1], values[#values + 2] = id, value
  times[#times + 1], times[#times + 2] = format('%d', now), id
end

local function keeps_save()
  for hash, over in pairs(kept) do
    chunked(over.values, function(...) call('HSET', P .. hash, ...) end)
    chunked(over.times, function(...) call('ZADD', P .. hash .. 'z', ...) end)
    call('PEXPIRE', P .. hash, ms(over.age))
    call('PEXPIRE', P .. hash .. 'z', ms(over.age))
  end
  kept = {}
end

-- Counts the payload of a job that is about to be kept as dead.
function payloads.count_dead(j)
  if Q.dead_max == 0 or Q.dead_age == 0 then return end
  -- All that was counted may have come to its end together.
  if Q.dead_bytes > 0 and not kept.x and call('EXISTS', P .. 'x') == 0 then
    call('HDEL', P .. 'c', 'bx')
    Q.dead_bytes = 0
  end
  payloads.count('bx', payloads.of(j))
end

-- Forgets what is kept too long or too much of, oldest first; more than a run can have kept.
local function purge(hash, age, most)
  keeps_save()
  local z = P .. hash .. 'z'
  for _ = 1, 20 do
    local old = call('ZRANGEBYSCORE', z, '-inf', now - age, 'LIMIT', 0, CHUNK)
    local many = call('ZCARD', z) - most
    if #old == 0 and many > 0 then old = call('ZRANGE', z, 0, min(many, CHUNK) - 1) end
    if #old == 0 then return end
    if hash == 'x' then
      -- One at a time: together their payloads may be more than the server has room for.
      for _, id in ipairs(old) do
        local text = call('HGET', P .. 'x', id)
        if text then payloads.forget_dead(id, text) end
      end
    end
    call('ZREM', z, unpack(old))
    call('HDEL', P .. hash, unpack(old))
  end
end

-- Jobs that are in no group any more, leases that are over, and those of them that are alone in l:
-- what is gone is written together at the end.
local forgotten, ended, alone = {}, {}, {}
local function job_forget(id, j)
  forgotten[#forgotten + 1], payloads.freed = id, payloads.freed + payloads.of(j)
end

-- Jobs that were leased together and end one by one are among the times until theirs has come.
local function ends_save()
  keeps_save()
  chunked(ended, function(...) call('HDEL', P .. 'r', ...) end)
  if #ended > 0 and call('HLEN', P .. 'r') == 0 then
    call('DEL', P .. 'l')
  elseif #ended > 1 then
    call('ZREM', P .. 'l', table.concat(ended, ' '))
  end
  chunked(alone, function(...) call('ZREM', P .. 'l', ...) end)
  chunked(forgotten, function(...) call('HDEL', P .. 'j', ...) end)
  if Q.deadline then chunked(forgotten, function(...) call('ZREM', P .. 'y', ...) end) end
  if Q.has_past then chunked(forgotten, function(...) call('HDEL', P .. 'v', ...) end) end
  payloads.count('by', -payloads.freed)
  -- A queue without jobs forgets the heaviest, the longest and what was counted, too.
  if #forgotten > 0 and call('HLEN', P .. 'j') == 0 then
    call('HDEL', P .. 'c', 'hv', 'lg', 'by', 'yn', 'pv')
    Q.has_past = nil
  end
  ended, alone, forgotten, payloads.freed = {}, {}, {}, 0
end
