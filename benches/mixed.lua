-- Load for wrk: a day of many flows, so that every panel of the dashboard has something to show.
--
--   wrk … -s mixed.lua URL -- THREADS SESSIONS ORDER LIMIT SEED START_MS SPAN_MS
--
-- The first five as for load.lua (ORDER is not looked at). The requests say what time it is, from START_MS
-- on over SPAN_MS: the server runs with --virtual-clock.

local threads_made = {}
function setup(thread)
  thread:set("number", #threads_made)
  table.insert(threads_made, thread)
end

local limit, sessions, start_ms, span_ms, stride = 0, 1, 0, 0, 1
local sent = 0
answered, body_bytes = 0, 0

local bots = { "desk", "billing", "tech", "orders", "returns", "sales", "legal", "vip" }
local entities = { "email", "phone", "date", "order_id" }
local said = { "john at example dot com", "five five five one two", "the fifteenth", "my order is late", "what do you mean" }

-- Path and body of the step'th call of a session. Sessions differ, and some of them go round in circles.
local function call(session, step)
  local id = string.format('{"session_id":"s-%07d",', session)
  local kind = (session + math.floor(step / 6)) % 10
  if kind <= 2 then
    return "agent-action", id .. string.format('"action_name":"action-%d","action_params_hash":"%d"}', (session * step) % (8 + session % 17), step)
  elseif kind == 3 then
    local from, to = bots[(session + step) % 3 + 1], bots[(session * 7 + step) % #bots + 1]
    return "handoff", id .. string.format('"source_bot":"%s","target_bot":"%s"}', from, to)
  elseif kind == 4 then
    local topic, confidence = session % 300, ((session * 37 + step * 11) % 100) / 100
    if topic % 5 == 0 then confidence = confidence * 0.4 end
    return "kb-requery/record", id .. string.format('"query":"how does topic number %d work","confidence_score":%.2f,"retrieved_chunks":3}', topic, confidence)
  elseif kind == 5 then
    return "kb-requery", id .. string.format('"topic_hash":"topic-%d","query_text":"question %d","last_confidence":%.2f}', session % 200, session % 200, (step % 7) / 10)
  elseif kind == 6 then
    return "ai-task-retry", id .. string.format('"task_name":"task-%d","user_message":"hello"}', session % 40)
  elseif kind == 7 then
    return "no-match-reprompt", id .. string.format('"step_id":"step-%d","user_utterance":"well"}', session % 25)
  elseif kind == 8 then
    return "capture-slot-fill", id .. string.format('"capture_step":"ask-%d","entity_type":"%s","user_utterance":"%s"}', session % 12, entities[session % 4 + 1], said[step % 5 + 1])
  elseif step % 3 == 0 then
    return "budget/record", id .. string.format('"budget":"budget-%d","usd":0.4,"tokens":900,"max_usd":1}', session % 10)
  elseif step % 3 == 1 then
    return "api-circuit/check", id .. string.format('"endpoint_key":"endpoint-%d"}', session % 30)
  end
  local outcome = (session + step) % 11 == 0 and "failure" or "success"
  return "api-circuit/record", id .. string.format('"endpoint_key":"endpoint-%d","outcome":"%s","latency_ms":%d}', session % 30, outcome, (session * 13) % 900)
end

function init(args)
  stride, sessions, limit = tonumber(args[1]), tonumber(args[2]), math.ceil(tonumber(args[4]) / tonumber(args[1]))
  start_ms, span_ms = tonumber(args[6]), tonumber(args[7])
  response = function(status, headers, body)
    answered = answered + 1
    body_bytes = body_bytes + #body
    if answered % 50000 == 0 then io.stderr:write("answered 50000\n") end
    if answered == limit then
      io.stderr:write("done\n")
      wrk.thread:stop()
    end
  end
end

function request()
  -- A few sessions are open at a time; each makes its calls one after the other, and then others come.
  local per_session = math.max(1, math.floor(limit * stride / sessions))
  local group = math.floor(sent / (50 * per_session))
  local session = (group * 50 + sent % 50) * stride + number
  local step = math.floor(sent / 50) % per_session
  local path, body = call(session, step)
  local now = start_ms + math.floor(math.min(sent / limit, 1) * span_ms)
  sent = sent + 1
  return string.format("POST /guard/%s HTTP/1.1\r\nHost: %s\r\nx-runguard-now: %d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, wrk.host, now, #body, body)
end

function done(summary, latency, requests)
  local answers, bytes = 0, 0
  for _, thread in ipairs(threads_made) do
    answers = answers + thread:get("answered")
    bytes = bytes + thread:get("body_bytes")
  end
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "microseconds": %d, "refused": %d, "socket_errors": %d, "p50": %d, "p99": %d, "answered": %d, "body_bytes": %d}\n',
    summary.requests, summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99), answers, bytes))
end
