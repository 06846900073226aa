-- Load for wrk, one for each node of a cluster, at the same time.
--
--   wrk -t 1 … -s cluster.lua URL -- THREADS SESSIONS ORDER LIMIT SEED NODE NODES
--
-- THREADS, LIMIT, SEED as for load.lua. ORDER:
--   spread    a random session of all: every session meets every node, as behind a plain balancer
--   own       a random session of this node's share: a balancer that sends a session to one node
--   endpoint  one circuit for all sessions: checks and outcomes in turn
--   session   one session
--   each:X    every session once: agent-action, ai-task-retry, handoff, or kept (an agent-action with a request_id)

local actions = {
  "lookup_order", "check_status", "search_items", "create_entry",
  "update_order", "fetch_prices", "notify_agent", "verify_email",
}

local made = {}
function setup(thread) table.insert(made, thread) end

local sessions, order, limit, node, nodes = 1, "spread", 0, 0, 1
local sent = 0
answered, body_bytes = 0, 0

local function post(path, body)
  return "POST /guard/" .. path .. " HTTP/1.1\r\nHost: " .. wrk.host
    .. "\r\nContent-Type: application/json\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body
end

local function action(session, step, more)
  return post("agent-action", string.format('{"session_id":"s-%07d","action_name":"%s","action_params_hash":"%016x"%s}',
    session, actions[(session + step) % #actions + 1], 0x9e3779b9 * (step % 16 + 1), more or ""))
end

local makers = {
  spread = function() return action(math.random(0, sessions - 1), math.random(0, 15)) end,
  own = function() return action(math.random(0, math.floor(sessions / nodes) - 1) * nodes + node, math.random(0, 15)) end,
  session = function() return action(0, math.random(0, 15)) end,
  endpoint = function(step)
    local session = math.random(0, sessions - 1)
    if step % 2 == 0 then
      return post("api-circuit/check", string.format('{"session_id":"s-%07d","endpoint_key":"crm.lookup"}', session))
    end
    return post("api-circuit/record",
      string.format('{"session_id":"s-%07d","endpoint_key":"crm.lookup","outcome":"success","latency_ms":%d}', session, session % 900))
  end,
  ["each:agent-action"] = function(step) return action(step, 1) end,
  ["each:kept"] = function(step) return action(step, 1, string.format(',"request_id":"request-%08d"', step)) end,
  ["each:ai-task-retry"] = function(step)
    return post("ai-task-retry", string.format('{"session_id":"s-%07d","task_name":"classify","user_message":"where is it?"}', step))
  end,
  ["each:handoff"] = function(step)
    return post("handoff", string.format('{"session_id":"s-%07d","source_bot":"desk","target_bot":"billing"}', step))
  end,
}
local make

function init(args)
  sessions, order, limit = tonumber(args[2]), args[3], tonumber(args[4])
  math.randomseed(tonumber(args[5]))
  node, nodes = tonumber(args[6]), tonumber(args[7])
  make = makers[order]
  if limit > 0 then
    response = function(status, headers, body)
      answered = answered + 1
      body_bytes = body_bytes + #body
      if answered == limit then
        io.stderr:write("done\n")
        wrk.thread:stop()
      end
    end
  end
end

function request()
  local step = sent
  sent = sent + 1
  return make(step)
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "microseconds": %d, "refused": %d, "socket_errors": %d, "p50": %d, "p99": %d, "answered": %d, "body_bytes": %d}\n',
    summary.requests, summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99), made[1]:get("answered"), made[1]:get("body_bytes")))
end
