-- Prolongs leases, or notes how far a job is.
--
--   ARGV[3]     'beat' or 'progress'
--   ARGV[4..]   per lease | id 8 | attempt 4 |, for progress also | done 8 | total 8 |
--
-- Answers { now, state, expires ... }: 1 held, 2 held but cancelled, 0 lost.

upkeep()

local answer, prolonged = {}, {}
for n = 4, #ARGV do
  local id, attempt, at = read('<dI4', ARGV[n])
  local name = format('%d', id)
  local lease = call('HGET', P .. 'r', name)
  local l = lease and lease_read(lease)
  if not l or l.attempt ~= attempt then
    answer[#answer + 1], answer[#answer + 2] = 0, '0'
  else
    if ARGV[3] == 'progress' then
      l.done, l.total = read('<dd', ARGV[n], at)
    elseif now + Q.lease > l.expires then
      l.expires = now + Q.lease
      if #ARGV == 4 then l.alone = 1 end
      prolonged[#prolonged + 1] = name
    end
    call('HSET', P .. 'r', name, lease_format(l))
    answer[#answer + 1] = l.flags % 2 == 1 and 2 or 1
    answer[#answer + 1] = format('%d', l.expires)
  end
end
for from = 1, #prolonged, TOGETHER do
  local upto = min(from + TOGETHER - 1, #prolonged)
  call('ZADD', P .. 'l', now + Q.lease, table.concat(prolonged, ' ', from, upto))
end
return reply({ format('%d', now), answer })
