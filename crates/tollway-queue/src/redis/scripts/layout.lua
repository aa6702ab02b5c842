-- What a queue keeps in the store, and how every script reads it. This part stands first.
--
-- All keys of all queues of one namespace carry one hash tag, so that a script may touch several
-- queues' shared limits at once; a cluster holds them in one slot. KEYS[1] is what the keys of the
-- queue begin with (P below), KEYS[2] the same of what all queues of the namespace share (S). The
-- other keys are made from these two: they are in the same slot, whatever the group is called.
--
--   S c             HASH    queue -> its settings as the caller wrote them
--   S l             HASH    name of a shared limit -> limit
--   S lv            HASH    name of a shared limit -> record of its version (manage_queues.lua)
--   S ~a:<request>  STRING  what a request to change settings was told; TTL
--   S ~k            STRING  the secret that tokens of leases are signed with
--   S ~s:<name>     STRING  state of a shared limit; TTL until it says nothing
--   S ~u:<name>     SET     queues that share the limit
--
--   P c             HASH    s: settings (below), v: their version, ver: the record of who changed
--                           them (manage_queues.lua), n: last id, p: paused,
--                           hv: heaviest job, lg: longest job of over LONG_JOB bytes, or: latest
--                           place, dl: delayed jobs, t: latest time, by: bytes of payloads in j,
--                           bx: of those in x while it is there,
--                           b: latest time before the clock was set back, if it was,
--                           rf: how often limits were changed, dn: no delayed job is due before,
--                           yn: no job that waits misses its deadline before; if any has one,
--                           pv: there if v is,
--                           rm and rx: mean and longest response time, t_...: totals
--   P j             HASH    id -> job, for every job that waits, is delayed or runs
--   P v             HASH    id -> past attempts, for those jobs of j that have any (stored_jobs.lua)
--   P f:<group>     LIST    id; jobs that wait for their limit, as they came (waiting_jobs.lua)
--   P w:<group>     ZSET    place -> 0; odd jobs that wait for it, the next one first (waiting_jobs.lua)
--   P d:<group>     ZSET    id, 7 bytes -> due; jobs whose time has not come
--   P ds            ZSET    group -> when its first delayed job is due
--   P y             ZSET    id -> deadline, for every job that has one
--   P u             HASH    group -> units of its waiting jobs beyond one each, if any
--   P r             HASH    id -> lease, for every job that runs
--   P l             ZSET    ids of jobs that were leased or prolonged together -> when that ends; a
--                           lease in r says when it truly does, those that are over may be among them
--   P gs            HASH    group -> state, for every group with jobs: many are read at one go
--   P g:<group>     STRING  state of a group without jobs; TTL until it says nothing
--   P n             LIST    the ring: groups that may start a job now, the next one first
--   P h             ZSET    group -> turn, for the other groups with jobs: RING + the time from which
--                           on they may; STUCK if only a response or a resumption can tell
--   P i             ZSET    group -> 0, for every group with jobs, to page through by name
--   P o             HASH    group -> limits of its own
--   P p             HASH    group -> 1 if it is paused
--   P q             STRING  state of the queue's own limits; TTL until it says nothing
--   P k:<key>       STRING  idempotency key -> id:until; TTL key_window
--   P ki            ZSET    idempotency key -> id, so that the oldest can be forgotten; TTL
--   P e, P ez       HASH, ZSET   jobs that are done, and when they are forgotten; TTL
--   P x, P xz       HASH, ZSET   jobs that are dead, and when they are forgotten; TTL
--   P t, P tz       HASH, ZSET   recurring job -> what, and when next
--   P a:<request>   STRING  what a request was answered; TTL
--   P m             ZSET    one member: something may start at its score, which is earlier than
--                           workers were told; they block on it (BZPOPMIN); TTL
--
--   job      | enqueued 8 | due 8 | priority 1 | weight 4 | attempt 4 | failures 4 |
--            | attempts_max 4 (0: the queue's) | backoff first 8 (below 0: the queue's), max 8 |
--            | key 2 + n | group 2 + n | payload ... |
--   over     | at 8 | 1 if it has a result or a reason, + 2 if it has past attempts 1 |
--            | 4 + n: result or reason, past attempts and how many bytes these have 4, if any |
--            | job, without payload if it is done |
--   past     | attempt 4 | leased 8 | ended 8 | outcome 1 (settle_plain.lua; 5: the lease expired) |
--            | wait 8 | worker 1 + n | reason 2 + n | ...
--   place    | 255 - priority 1 | due 7 | id 7 | weight 4 |, big endian: places sort as jobs start
--   lease    | attempt 4 | leased 8 | expires 8 | flags 1 (1 cancelled, 2 x rf) | done 8 | total 8 |
--            | alone in l 1 |
--            | units taken of the limits of the group, the queue, and shared: 3 x (1 + n x 4) |
--            | worker 1 + n | group ... |
--   state    | running 4 | blocked until 8 | deficit 4 | waiting 4 | in w 4 |
--            | 4 x delayed + 2 if it is paused + 1 if it has limits of its own 4 | turn 8 (0: none, 1: in n) |
--            | per limit: kind 1, length 4, body (limits.lua) ... |
--            `waiting` is 0 if nobody waits, and otherwise at most as many as do: jobs that come
--            behind others write nothing but their id
--   settings | lease 8 | attempts_max 4 | backoff first 8, max 8 | response_max 8 | key_window 8 |
--            | keys_max 8 | payload_max 8 | jobs_max 8 | groups_max 8 | done_max 8 | done_age 8 |
--            | dead_max 8 | dead_age 8 | limits of groups | limits of the queue | shared: 1, (1 + n) ... |
--            | bytes_max 8 | percent of jitter 1 | 1 if jobs that miss their deadline are dropped 1 |
--            (queues made by older versions lack the last ones until they are put again)
--   limits   | count 1 | (kind 1, four doubles) ... |
--
-- Moments and durations are whole microseconds in doubles, exact until the year 2255.
--
--   ARGV[1]  the time in tests, empty otherwise: the server's TIME
--   ARGV[2]  the request's id; its answer is remembered for REMEMBER_MS, so that a caller who lost
--            it may ask again and nothing happens twice

local read, pack, format, sub, byte = struct.unpack, struct.pack, string.format, string.sub, string.byte
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local call = redis.call
local P, S = KEYS[1], KEYS[2]
local IN_RING, RING, STUCK = 1, 1e15, 9e15
local REMEMBER_MS = 60000
local LATE_MAX = 10000000
-- No argument list is much longer than this; it is even, so pairs stay together.
local CHUNK = 500
-- Leases of jobs that are no longer than this are not bounded by their bytes.
local LONG_JOB = 8192
-- How many leases stand together in l: with their jobs they make pairs of arguments.
local TOGETHER = CHUNK / 2
-- How a lease begins, how long it is until its units, and where it says whether it is alone in l.
local LEASE, LEASE_LENGTH, ALONE_AT = '<I4ddBddB', 38, 38

local now
-- Time in tests does not pass as the server's does: what they wrote must not expire by it.
local longer_ms = 1
if ARGV[1] == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now, longer_ms = tonumber(ARGV[1]), 36000000
end

-- What this request was answered before; leases are remembered without the jobs (lease.lua).
local memory = ARGV[2] ~= '' and P .. 'a:' .. ARGV[2]
local again = memory and call('GET', memory)
if again then
  again = cmsgpack.unpack(again)
  if type(again) ~= 'table' or again[1] ~= 'leases' then return again end
end

local function reply(answer, remembered)
  if memory then call('SET', memory, cmsgpack.pack(remembered or answer), 'PX', REMEMBER_MS) end
  return answer
end

-- A small hash of short fields is a list that is searched from its start. A long one, which is no
-- group's name, makes a table of it for as long as it is there.
local FEW, LONG = 16, ('-'):rep(257)
local function widen(key)
  call('HSET', key, LONG, '')
  call('HDEL', key, LONG)
end

-- Calls `run` with `list`, a chunk at a time.
local function chunked(list, run)
  for from = 1, #list, CHUNK do run(unpack(list, from, min(from + CHUNK - 1, #list))) end
end

local function ms(us) return max(1, floor(us / 1000) + longer_ms) end

-- The limits that stand at `at` in `text`, and where they end.
local function read_limits(text, at)
  local count
  count, at = read('<B', text, at)
  local limits = {}
  for n = 1, count do
    local kind, a, b, c, d
    kind, a, b, c, d, at = read('<Bdddd', text, at)
    -- Older versions kept windows in another way.
    if kind == 2 and d == 0 then kind = 7 end
    limits[n] = { kind = kind, units = a, window = b, c = c, d = d }
    if kind > 10 then limits[n].base = { kind = kind - 10, units = a, window = b, c = c, d = d } end
  end
  return limits, at
end

local Q = {}
do
  local kept = call('HMGET', P .. 'c', 's', 'p', 'hv', 'v', 't', 'rf', 'b', 'lg', 'by', 'bx', 'dn', 'yn', 'pv')
  local s = kept[1]
  if not s then return { err = 'UNKNOWNQUEUE no such queue' } end
  Q.paused, Q.heaviest, Q.version = kept[2], tonumber(kept[3] or 1), tonumber(kept[4])
  Q.refits, Q.longest = tonumber(kept[6] or 0) % 128, tonumber(kept[8] or LONG_JOB)
  -- A clock that falls behind a little stands still until it has caught up; one that was set back
  -- is believed, and what lies too far in the future is mended where it is read.
  local latest = tonumber(kept[5] or 0)
  if now < latest and latest - now <= LATE_MAX then now = latest end
  Q.behind, Q.due = tonumber(kept[7] or 0), tonumber(kept[11] or STUCK)
  -- Nothing if no job has a deadline.
  Q.deadline = tonumber(kept[12] or nil)
  Q.has_past = kept[13]
  if now < latest then
    Q.behind = max(Q.behind, latest)
    call('HSET', P .. 'c', 'b', format('%d', Q.behind))
  end
  if now ~= latest then call('HSET', P .. 'c', 't', format('%d', now)) end
  local at
  Q.lease, Q.attempts_max, Q.backoff, Q.backoff_max, Q.response_max, Q.key_window, Q.keys_max,
    Q.payload_max, Q.jobs_max, Q.groups_max, Q.done_max, Q.done_age, Q.dead_max, Q.dead_age, at =
    read('<dI4dddddddddddd', s)
  Q.group_limits, at = read_limits(s, at)
  Q.queue_limits, at = read_limits(s, at)
  local count
  count, at = read('<B', s, at)
  Q.shared = {}
  for n = 1, count do
    local length = read('<B', s, at)
    Q.shared[n] = s:sub(at + 1, at + length)
    at = at + 1 + length
  end
  Q.bytes_max, Q.jitter, Q.drops = 2 ^ 30, 10, 0
  if at <= #s then Q.bytes_max, at = read('<d', s, at) end
  if at < #s then Q.jitter, Q.drops = read('<BB', s, at) end
  Q.bytes, Q.dead_bytes = tonumber(kept[9] or 0), tonumber(kept[10] or 0)
end

-- Says to whoever waits that something may start at `at`.
local function mark(at)
  if call('ZADD', P .. 'm', 'LT', 'CH', at, '1') > 0 then call('PEXPIRE', P .. 'm', 3600000) end
end

-- What an estimate needs beside a group: { version of the settings, mean and longest response, now,
-- heaviest job, limits that bind every group (groups.lua) }.
local function frame_of(wide)
  local response = call('HMGET', P .. 'c', 'rm', 'rx')
  return { Q.version, response[1] or '', response[2] or '0', format('%d', now),
    format('%d', Q.heaviest), wide }
end
