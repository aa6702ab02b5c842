-- Adds what keys used in their windows, once however often it is sent.
--
--   KEYS   1     the number of the last addition of the process that sends
--          2..   per window: the index of its policy, the units, the names
--   ARGV   the number of this addition; how long KEYS[1] is kept, in ms; most windows of a policy;
--          most keys of a window; then per window: `<start> <end>`, kept until (ms), how many keys,
--          and per key: its name, units taken, units given back
--
-- Answers 1, or 0 if it was added before.
local sequence, kept_ms = tonumber(ARGV[1]), ARGV[2]
local windows_max, keys_max = tonumber(ARGV[3]), tonumber(ARGV[4])
if tonumber(redis.call('GET', KEYS[1]) or '0') >= sequence then
    return 0
end

-- Units stop at the most that the server can count.
local function change(units, name, by)
    local sum = redis.pcall('HINCRBY', units, name, by)
    if type(sum) == 'table' then
        redis.call('HSET', units, name, '9223372036854775807')
    elseif sum < 0 then
        redis.call('HSET', units, name, '0')
    end
end

local at = 5
for key = 2, #KEYS, 3 do
    local index, units, names = KEYS[key], KEYS[key + 1], KEYS[key + 2]
    local window, until_ms, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
    at = at + 3
    for _ = 1, count do
        local name, taken, given_back = ARGV[at], ARGV[at + 1], ARGV[at + 2]
        at = at + 3
        if redis.call('HEXISTS', units, name) == 0 then
            -- Keys for which there is no room are counted together, under no name.
            if redis.call('ZCARD', names) >= keys_max then
                name = ''
            else
                redis.call('ZADD', names, 0, name)
            end
        end
        change(units, name, taken)
        if given_back ~= '0' then
            change(units, name, '-' .. given_back)
        end
    end
    redis.call('PEXPIREAT', units, until_ms)
    redis.call('PEXPIREAT', names, until_ms)
    redis.call('ZADD', index, until_ms, window)
    local now = redis.call('TIME')
    redis.call('ZREMRANGEBYSCORE', index, '-inf', now[1] .. '000')
    while redis.call('ZCARD', index) > windows_max do
        local oldest = redis.call('ZRANGE', index, 0, 0)[1]
        local of = function(of_window)
            return of_window:sub(1, #of_window - #window) .. oldest
        end
        redis.call('UNLINK', of(units), of(names))
        redis.call('ZREM', index, oldest)
    end
    local last = redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')
    if last[2] then
        redis.call('PEXPIREAT', index, last[2])
    end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', kept_ms)
return 1
