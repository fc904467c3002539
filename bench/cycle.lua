-- Full cycles for wrk: what was claimed is finished first; else a create, else a claim.
-- wrk asks for requests without saying on which connection, so the three kinds are interleaved
-- over all connections; each create is followed by one claim.
-- One thread only: a thread cannot hand its figures to the summary but through globals by name.

local queue = os.getenv("QUEUE")
local producer = { ["Authorization"] = "Bearer " .. os.getenv("PRODUCER_TOKEN") }
local worker = { ["Authorization"] = "Bearer " .. os.getenv("WORKER_TOKEN") }
local create = '{"command":"' .. queue .. '","payload":{"text":"' .. string.rep("x", 100) .. '"}}'
local claim = '{"commands":["' .. queue .. '"],"leaseSeconds":120,"waitSeconds":5}'

local held = {}
local owed = 0
finished = 0
failed = 0

local threads = {}
function setup(thread)
  table.insert(threads, thread)
end

function request()
  local task = table.remove(held)
  if task then
    return wrk.format("POST", "/v1/codeq/tasks/" .. task.id .. "/result", worker,
      '{"status":"COMPLETED","result":{"ok":1},"leaseToken":' .. task.lease .. '}')
  end
  if owed > 0 then
    owed = owed - 1
    return wrk.format("POST", "/v1/codeq/tasks/claim", worker, claim)
  end
  return wrk.format("POST", "/v1/codeq/tasks", producer, create)
end

function response(status, headers, body)
  if status == 202 then
    owed = owed + 1
  elseif status == 200 then
    local lease = body:match('"leaseToken":("?%d+"?)')
    if lease then
      table.insert(held, { id = body:match('"id":"([^"]+)"'), lease = lease })
    else
      finished = finished + 1
    end
  elseif status ~= 204 then
    failed = failed + 1
  end
end

function done(summary, latency, requests)
  local all_finished, all_failed = 0, 0
  for _, thread in ipairs(threads) do
    all_finished = all_finished + thread:get("finished")
    all_failed = all_failed + thread:get("failed")
  end
  local errors = summary.errors
  all_failed = all_failed + errors.connect + errors.read + errors.write + errors.timeout
  for name, value in pairs({
    finished = all_finished, failed = all_failed, requests = summary.requests,
    seconds = summary.duration / 1e6,
    p50 = latency:percentile(50) / 1e3, p90 = latency:percentile(90) / 1e3,
    p99 = latency:percentile(99) / 1e3, max = latency.max / 1e3,
  }) do
    io.write(string.format("cycle-lua %s=%f\n", name, value))
  end
end
