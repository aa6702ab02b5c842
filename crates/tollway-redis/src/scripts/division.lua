-- Division of durations, for the algorithms that count whole intervals.

-- A count stops here, far above any limit, so that sums stay exact.
local UNITS_MAX = 4503599627370496

-- a + b, of pairs.
local function plus(a_us, a_ns, b_us, b_ns)
  local ns = a_ns + b_ns
  if ns >= 1000 then return a_us + b_us + 1, ns - 1000 end
  return a_us + b_us, ns
end

-- a - b, of pairs.
local function minus(a_us, a_ns, b_us, b_ns)
  local ns = a_ns - b_ns
  if ns < 0 then return a_us - b_us - 1, ns + 1000 end
  return a_us - b_us, ns
end

-- How many times the duration i fits into the duration d, and what is left over. The count is exact
-- below 2^53; beyond that it is merely large, which is all that anybody asks of it then.
local function divide(d_us, d_ns, i_us, i_ns)
  if i_ns == 0 then
    local rest = fmod(d_us, i_us)
    return (d_us - rest) / i_us, rest, d_ns
  end
  if i_us < 9e9 then
    -- In two digits of base 1000: each partial remainder times 1000 stays below 2^53.
    local i = i_us * 1000 + i_ns
    local high = fmod(d_us, i)
    local low = high * 1000 + d_ns
    local rest = fmod(low, i)
    local count = (d_us - high) / i * 1000 + (low - rest) / i
    local rest_ns = fmod(rest, 1000)
    return count, (rest - rest_ns) / 1000, rest_ns
  end
  -- A long interval fits a few times only: the estimate is at most one too high.
  local count = floor(d_us / i_us)
  local ns = count * i_ns
  local over = fmod(ns, 1000)
  local us, rest_ns = minus(d_us, d_ns, count * i_us + (ns - over) / 1000, over)
  if us < 0 then
    count = count - 1
    us, rest_ns = plus(us, rest_ns, i_us, i_ns)
  end
  return count, us, rest_ns
end
