-- Reads what keys of a policy used in their windows: by window, then by key.
--
--   KEYS[1]  the index of the policy
--   ARGV     what the names of the units and of the names of a window begin with; only windows that
--            end after this, and that start before this; the window and the key of the last row
--            that was told before, or two empty texts; most rows; 1 and a key for that one only
--
-- Answers three values a row: `<start> <end>`, the key, the units.
local units_of, names_of, from, before = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local after_window, after_key, most = ARGV[5], ARGV[6], tonumber(ARGV[7])
local is_one, one = ARGV[8] == '1', ARGV[9]
local now = redis.call('TIME')
local windows = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now[1] .. '000', '+inf')
table.sort(windows)

local answer, rows = {}, 0
local function tell(window, key, units)
    if units and rows < most then
        rows = rows + 1
        answer[#answer + 1] = window
        answer[#answer + 1] = key
        answer[#answer + 1] = units
    end
end

for _, window in ipairs(windows) do
    local start, ends = window:sub(1, 16), window:sub(18)
    if rows < most and ends > from and start < before and window >= after_window then
        local units, begins = units_of .. window, window ~= after_window
        if is_one then
            if begins then tell(window, one, redis.call('HGET', units, one)) end
        else
            local min = begins and '-' or '(' .. after_key
            if begins then tell(window, '', redis.call('HGET', units, '')) end
            local names, room = names_of .. window, most - rows
            local keys = redis.call('ZRANGEBYLEX', names, min, '+', 'LIMIT', 0, room)
            if #keys > 0 then
                local found = redis.call('HMGET', units, unpack(keys))
                for at, key in ipairs(keys) do
                    tell(window, key, found[at])
                end
            end
        end
    end
end
return answer
