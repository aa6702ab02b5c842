-- Exact arithmetic on moments and durations, for numbers that a double would round.
--
-- A moment is a pair: whole microseconds (below 2^53 until the year 2255) and the nanoseconds
-- beyond them, 0 to 999. The server's TIME has no nanoseconds, but intervals may have, so moments
-- that were computed do. Every number here is an integer below 2^53, or only compared.
--
-- This part needs nothing and stands first in every script; its names are seen by all the others.

local pack, read, byte = struct.pack, struct.unpack, string.byte
local floor, fmod = math.floor, math.fmod

-- The bytes of a return and of what a value begins with, as decide.lua draws them.
local RETURN_LEN, HEAD_LEN = 53, 4

-- How far in the future a stored moment is believed: SKEW of tollway-core, in microseconds.
local SKEW_US = 10000

local now_us, now_ns = 0, 0
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
else
  now_us, now_ns = read('<dd', ARGV[1])
end
