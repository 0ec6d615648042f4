-- For wrk: POSTs the images that the environment variable IMAGES lists, one after the other, and prints what was not answered with 200.
local bodies, turn = {}, 0
for path in os.getenv("IMAGES"):gmatch("%S+") do
  local file = assert(io.open(path, "rb"))
  bodies[#bodies + 1] = file:read("*a")
  file:close()
end

function request()
  turn = turn % #bodies + 1
  return wrk.format("POST", "/classify", { ["Content-Type"] = "image/jpeg" }, bodies[turn])
end

function done(summary, latency)
  print(string.format("%.1f images/s, p50 %.1f ms, p99 %.1f ms, %d refused or failed", summary.requests / summary.duration * 1e6,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
