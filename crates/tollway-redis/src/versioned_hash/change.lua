-- Changes one field of a versioned hash, unless it is not what the caller has seen.
--
--   KEYS[1]  the hash
--   ARGV     epoch if the hash is new; channel; most fields; changes that are kept;
--            field; its version as the caller knows it, 0 for none; whether it stays, 1 or 0;
--            its new value; the change as it is told; then pairs: a field that has ended, its version
--
-- Answers {1, epoch, version}, {0, "other"} if the field is not as the caller knows it, or
-- {0, "full"}. A value is stored as `<version> <value>`.
local hash = KEYS[1]
local new_epoch, channel, most, kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local field, known, stays, value, told = 'f' .. ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]

local function version_of(name)
    local found = redis.call('HGET', hash, name)
    return found and string.match(found, '^(%d+) ') or '0'
end

if version_of(field) ~= known then
    return {0, 'other'}
end
local head = redis.call('HMGET', hash, 'epoch', 'count')
local epoch, count = head[1] or new_epoch, tonumber(head[2] or '0')
for at = 10, #ARGV, 2 do
    local ended = 'f' .. ARGV[at]
    if ended ~= field and version_of(ended) == ARGV[at + 1] then
        count = count - redis.call('HDEL', hash, ended)
    end
end
if known ~= '0' then
    count = count - 1
end
if stays == '1' then
    count = count + 1
end
if stays == '1' and known == '0' and count > most then
    return {0, 'full'}
end
redis.call('HSET', hash, 'epoch', epoch)
redis.call('HSET', hash, 'count', count)
local version = redis.call('HINCRBY', hash, 'version', 1)
if stays == '1' then
    redis.call('HSET', hash, field, version .. ' ' .. value)
else
    redis.call('HDEL', hash, field)
end
redis.call('HSET', hash, 'l' .. version, told)
redis.call('HDEL', hash, 'l' .. (version - kept))
-- Whoever may not publish still changes: others look by themselves.
redis.pcall('PUBLISH', channel, version)
return {1, epoch, version}
