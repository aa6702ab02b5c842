-- Gives up permits and tickets without an answer, and wakes whoever may go instead.
--
-- Stands behind bucket.lua, which draws the keys, and meters.lua.
--
--   ARGV   4     when the permits were granted (server's clock)
--          5     sent: the upstream may have counted them; unsent: it cannot have; moved: it has
--                counted them under another name, and this bucket is no more: they are given up as
--                sent when that is learned there, or meanwhile nothing would tell of them here or
--                there; waiting: they are tickets, for which nobody waits any more
--          6..   permits or tickets
--
-- A ticket may have become a permit since somebody decided to give it up: a claim was under way, or
-- the message that named it came late. So a ticket ends no lease. If it did, a request under way would
-- not be counted as such, and the next window would be opened with its place.
--
-- Answers how many places came back; if moved, how many others are under way under this name.

local granted, is_unsent = tonumber(ARGV[4]), ARGV[5] == 'unsent'
local ends_leases = is_unsent or ARGV[5] == 'sent'
local names = {}
for i = 6, #ARGV do names[i - 5] = ARGV[i] end

local function is_under_way(permit)
  local is_quick = string.find(permit, '-', 1, true) and #call('XRANGE', QUICK, permit, permit) == 1
  return is_quick or (tonumber(call('ZSCORE', LEASES, permit)) or 0) > now
end

local held, meters = 0, nil
for _, name in ipairs(names) do
  if ends_leases and release(name) == 1 then
    local units, further = costs_of(name)
    held = held + units
    if is_unsent and next(further) then
      meters = meters or read_meters()
      give_back(meters, further, granted)
    end
  end
end
for _, meter in ipairs(meters or {}) do write(meter) end
call('ZREM', WAITING, unpack(names))
call('ZREM', ALIVE, unpack(names))
leave_account(names)

local back = 0
if is_unsent and held > 0 then
  local window = read_window()
  local left = whole(call('GET', KEYS[1]))
  local is_ours = window.began and window.began > 0 and window.base
  local is_current = is_ours and granted >= window.began
  -- Nothing comes back into a window that another client has opened: it never lost the place.
  if left and is_current and not (window.ends and now > window.ends) then
    back = math.max(math.min(held, window.base - left), 0)
    if back > 0 then
      call('INCRBY', KEYS[1], back)
      if window.low then call('INCRBY', LOW, back) end
    end
  end
end
if ARGV[5] == 'moved' then
  -- What was left here is left under the other name now. Nobody may take it twice, and nothing
  -- would ever end the window of a bucket that nobody names any more.
  if call('EXISTS', KEYS[1]) == 1 then
    call('SET', KEYS[1], 0, 'KEEPTTL')
    if call('PTTL', KEYS[1]) == -1 then call('PEXPIRE', KEYS[1], 2 * lease_ms) end
  end
  back = in_flight()
  for _, name in ipairs(names) do
    if is_under_way(name) then back = back - costs_of(name) end
  end
end
wake(false)
wake_account({})
return back
