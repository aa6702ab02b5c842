-- Every request to another channel: a bucket each.
local number = 1000000
request = function()
  number = number + 1
  return wrk.format("POST", "/api/v10/channels/" .. number .. "/messages",
    { ["Authorization"] = "Bot one", ["Content-Type"] = "application/json" }, "{}")
end
