-- wrk: POST /throttle with one of 100,000 keys; prints percentiles in microseconds.
local bodies = {}
for i = 1, 1000 do
  bodies[i] = wrk.format("POST", "/throttle", {["content-type"] = "application/json"},
    string.format('{"key":"user:%d","max_burst":16,"count_per_period":30,"period":60}', i * 97))
end
local at = 0
request = function()
  at = at % 1000 + 1
  return bodies[at]
end
done = function(summary, latency, requests)
  io.write(string.format("RESULT %d %d %d %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
    summary.errors.status + summary.errors.connect + summary.errors.read))
end
