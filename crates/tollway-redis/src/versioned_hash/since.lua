-- What has changed in a versioned hash since a version of it.
--
--   KEYS[1]  the hash
--   ARGV     epoch and version as the caller knows them; the most changes worth telling one by one
--
-- Answers {} if there is no hash, {epoch, version} if nothing has changed, {epoch, version, 0,
-- changes ...}, or all of the hash: {epoch, version, 1, field, value ...}.
local hash = KEYS[1]
local head = redis.call('HMGET', hash, 'epoch', 'version')
local epoch, version = head[1], tonumber(head[2] or '0')
if not epoch then
    return {}
end
local known = tonumber(ARGV[2])
if epoch == ARGV[1] and version == known then
    return {epoch, version}
end
if epoch == ARGV[1] and version > known and version - known <= tonumber(ARGV[3]) then
    local answer = {epoch, version, 0}
    for at = known + 1, version do
        local change = redis.call('HGET', hash, 'l' .. at)
        if not change then
            answer = nil
            break
        end
        answer[#answer + 1] = change
    end
    if answer then
        return answer
    end
end
local all = redis.call('HGETALL', hash)
table.insert(all, 1, 1)
table.insert(all, 1, version)
table.insert(all, 1, epoch)
return all
