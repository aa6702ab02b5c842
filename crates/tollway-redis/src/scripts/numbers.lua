-- Notes sets of numbers that one policy goes by, and which of them are newer.
--
-- A value says by a mark which numbers it is kept under; what the mark stands for is here, for as
-- long as there may be such a value. Sets that come into force together have one edition, so that a
-- key that goes from one plan to another is carried forward.
--
--   KEYS   1      until when there may be states in ledgers (ms)
--          2      the same of states in strings
--          3..    one for each set:  | edition: 7 | noted: 7 | the numbers, as the caller wrote
-- them |
--   ARGV   1      1 if the sets come into force now, whatever was before; 2 if they are plans, of
--                 which none is newer: edition 0; else those that are known already keep their
--                 edition, unless one of them is new
--          2      how long they are kept (ms)
--          3      where their states are: 1, 2 or 12
--          4..    for each set: its numbers
--
-- Answers 1 if there may be states in both, else 0.

local time = redis.call('TIME')
local now_ms = time[1] * 1000
local now = struct.pack('<I7', time[1] * 1000000 + time[2])
local known, is_new = {}, ARGV[1] == '1'
for k = 3, #KEYS do
  known[k] = redis.call('GET', KEYS[k])
  if not known[k] then is_new = true end
end
for k = 3, #KEYS do
  local edition = is_new and now or known[k]:sub(1, 7)
  if ARGV[1] == '2' then edition = struct.pack('<I7', 0) end
  redis.call('SET', KEYS[k], edition .. now .. ARGV[k + 1], 'PX', ARGV[2])
end
for sort in ARGV[3]:gmatch('.') do
  -- Other numbers may be kept for longer.
  local key = KEYS[tonumber(sort)]
  local until_ms = math.max(now_ms + ARGV[2], tonumber(redis.call('GET', key) or 0))
  local life_ms = string.format('%.0f', until_ms - now_ms)
  redis.call('SET', key, string.format('%.0f', until_ms), 'PX', life_ms)
end
return redis.call('EXISTS', KEYS[1], KEYS[2]) == 2 and 1 or 0
