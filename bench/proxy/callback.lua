-- The answer to an interaction: no limit counts it, so only the proxy's own work is measured.
wrk.method = "POST"
wrk.body = '{"type":5}'
wrk.headers["Authorization"] = "Bot one"
wrk.headers["Content-Type"] = "application/json"
