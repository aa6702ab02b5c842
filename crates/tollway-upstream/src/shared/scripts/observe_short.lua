-- The short way of an answer: it says what is known already, and nobody waits for it.
--
-- Keys and arguments are those of observe.lua, which goes on where this does not answer. The first
-- answer of every window goes the long way: it brings a reset that is not known yet.

do
  local call, reset = redis.call, tonumber(ARGV[9])
  if ARGV[10] == 'ok' and ARGV[13] == 'fixed' and ARGV[15] == '' and reset >= 0 and call('EXISTS', KEYS[6]) == 0 then
    local window = call('HMGET', KEYS[5], 'began', 'reset', 'limit', 'slides', 'ends')
    local is_same = window[1] and window[2] and window[5]
      and window[3] == ARGV[6] and window[4] == '0'
      and tonumber(ARGV[5]) >= tonumber(window[1])
      and math.abs(reset - tonumber(window[2])) <= 20
    local left = is_same and tonumber(call('GET', KEYS[1]))
    -- What the upstream has counted leaves no less than what was counted here.
    if left and left <= tonumber(ARGV[7]) then
      local is_quick = string.find(ARGV[4], '-', 1, true)
      if not is_quick or call('XDEL', KEYS[9], ARGV[4]) == 0 then
        call('ZREM', KEYS[4], ARGV[4])
      end
      return 0
    end
  end
end
