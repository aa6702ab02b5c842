-- A plain GCRA as people write it: one key, server time, floating point.
-- KEYS[1] the key; ARGV burst, count, period in seconds, cost
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local interval = tonumber(ARGV[3]) / tonumber(ARGV[2])
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local new_tat = tat + interval * tonumber(ARGV[4])
local wait = new_tat - now - interval * tonumber(ARGV[1])
if wait > 0 then
  return {1, tostring(wait), tostring(tat - now)}
end
redis.call('SET', KEYS[1], tostring(new_tat), 'PX', math.ceil((new_tat - now) * 1000) + 1)
return {0, '-1', tostring(new_tat - now)}
