-- Frees a bucket that nobody can leave: nothing left, no end in sight, no request under way.
--
-- Stands behind bucket.lua, which draws the keys and tells when a bucket is stranded: a request of
-- an old client gets one lease from the first look on. No argument of its own.
--
-- Who waits here is woken and sends a probe. If only old clients wait, one place is put into their
-- counter, for one of them to probe with. Answers 1 if the bucket was freed.
--
-- A counter that says what an absent one would (one place, no limit known) and that nobody has
-- taken from for a lease is deleted: without an end, it would stay for ever.

if call('PTTL', KEYS[1]) ~= -1 then return 0 end
forget_lost()
if whole(call('GET', KEYS[1])) == 1 and call('EXISTS', KEYS[2], WAITING) == 0 and in_flight() == 0 then
  call('DEL', KEYS[1])
  return 0
end
local slots, _, _, how = standing(read_window())
if how ~= 'probe' or slots < 1 then return 0 end
if call('EXISTS', WAITING) == 1 then
  notify(call('ZRANGE', WAITING, 0, 0), 0)
else
  -- They have a lease for it, as before.
  call('SET', KEYS[1], 1)
  await_foreign()
end
return 1
