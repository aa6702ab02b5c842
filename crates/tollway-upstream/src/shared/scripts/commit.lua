-- Puts documents in the place of those that they were computed from, if those are still there.
--
--   KEYS   1  [prefix:]tollway:account            string  version, format, what counts every request
--          2  [prefix:]tollway:budgets:<group>    string  version, format, the buckets of a group
--          3  [prefix:]global                     string  Spectacles: there while everything must wait
--          4  [prefix:]<route>:remaining          string  Spectacles: requests left in the window
--          5  [prefix:]<route>:limit              string  Spectacles: requests per window
--          the last two only in a fleet with old clients
--
--   ARGV   1, 2  the versions expected: the first bytes of the documents, empty if there are none
--          3  when this was computed, in microseconds     4  how long the credential is blocked, as
--          is known, in milliseconds     5, 6  the documents to put there, empty to leave them
--          7  how long they are kept, in milliseconds     8  lease in milliseconds
--          9  the channel of a process without its name   10  how many messages
--          then process and text of each message, then, in a fleet with old clients:
--          the counter expected, whether it is expected to have an end (1 or 0),
--          what to do with the counter (empty, D to forget it, or its value), its end in
--          milliseconds (0 for none), and the limit to write, or nothing
--
-- Answers { 1, microseconds } where it was done, else { 0, microseconds, how long the credential is
-- blocked, the documents, the counter, its end, the limit }. Everything is decided elsewhere, by
-- pure code from the documents: this only makes sure that it was decided from what is true.

local call = redis.call
local VERSION = 15
local STALE_US, NEWS_MS, DAY_MS = 1000000, 20, 86400000

local clock = call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local blocked = call('PTTL', KEYS[3])
if blocked == -1 then
  -- Nobody would ever take it away.
  call('PEXPIRE', KEYS[3], ARGV[8])
  blocked = tonumber(ARGV[8])
end

local at = 11 + 2 * ARGV[10]
local counter, ends = false, -2
local is_same = call('GETRANGE', KEYS[1], 0, VERSION) == ARGV[1]
  and call('GETRANGE', KEYS[2], 0, VERSION) == ARGV[2]
  and now_us - ARGV[3] < STALE_US
  and blocked <= ARGV[4] + NEWS_MS
if KEYS[4] then
  counter, ends = call('GET', KEYS[4]), call('PTTL', KEYS[4])
  is_same = is_same and (counter or '') == ARGV[at]
    and (not counter or (ends >= 0) == (ARGV[at + 1] == '1'))
end
if not is_same then
  -- Nothing would end the answer here.
  local limit = KEYS[5] and call('GET', KEYS[5]) or false
  return { 0, now_us, blocked, call('GET', KEYS[1]), call('GET', KEYS[2]), counter, ends, limit }
end

for i = 1, 2 do
  if ARGV[4 + i] ~= '' then call('SET', KEYS[i], ARGV[4 + i], 'PX', ARGV[7]) end
end
if tonumber(ARGV[4]) > math.max(blocked, 0) + NEWS_MS then
  call('SET', KEYS[3], 'true', 'PX', ARGV[4])
end
for i = 11, at - 1, 2 do call('PUBLISH', ARGV[9] .. ARGV[i], ARGV[i + 1]) end
if KEYS[4] then
  local what, px, limit = ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  if what == 'D' then
    call('DEL', KEYS[4])
  elseif what ~= '' then
    if px > 0 then call('SET', KEYS[4], what, 'PX', px) else call('SET', KEYS[4], what) end
  end
  if limit ~= '' then call('SET', KEYS[5], limit, 'PX', DAY_MS) end
end
return { 1, now_us }
