-- Load for wrk: agents that ask before every action.
--
--   wrk … -s load.lua URL -- THREADS SESSIONS ORDER LIMIT SEED
--
-- THREADS   the same number as wrk's -t; each thread drives its own share of the sessions, so that
--           the calls of one session arrive in their order
-- ORDER     "turn": every session in turn makes its next call; "random": a random session does
-- LIMIT     answers after which the threads fall silent (0: never). wrk itself sleeps until it is
--           interrupted, so the caller watches stderr for "done" lines
-- SEED      of the random order: another one for each run, or every run meets the same sessions

-- Names of one length keep Content-Length constant: a request is then one concatenation of two
-- strings made beforehand, and Lua stays far below the cost of the HTTP around it.
local actions = {
  "lookup_order", "check_status", "search_items", "create_entry",
  "update_order", "fetch_prices", "notify_agent", "verify_email",
}
-- What an agent does, call by call: it mostly moves on, repeats itself now and then, and runs twice
-- into the rule against four in a row. After twenty allowed calls the ceiling refuses the rest.
local script = { 0, 1, 1, 2, 3, 3, 3, 3, 4, 0, 5, 5, 2, 6, 6, 6, 6, 1, 7, 0, 4, 4, 2, 5, 7, 3, 1, 6 }
local VARIANTS = 16

local threads_made = {}
function setup(thread)
  thread:set("number", #threads_made)
  table.insert(threads_made, thread)
end

local heads, tails, first, stride, own, order, limit = {}, {}, 0, 1, 0, "turn", 0
local sent = 0
answered, body_bytes = 0, 0

local function head(session)
  local body = string.format('{"session_id":"s-%07d","action_name":"', session)
  local length = #body + #actions[1] + #'","action_params_hash":"0123456789abcdef"}'
  return "POST " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.host .. "\r\n"
    .. "Content-Type: application/json\r\nContent-Length: " .. length .. "\r\n\r\n" .. body
end

function init(args)
  stride, order, limit = tonumber(args[1]), args[3], math.ceil(tonumber(args[4]) / tonumber(args[1]))
  first = number
  own = math.floor((tonumber(args[2]) - first - 1) / stride) + 1
  math.randomseed(tonumber(args[5]) * 100 + number)

  for index, name in ipairs(actions) do
    for variant = 0, VARIANTS - 1 do
      tails[(index - 1) * VARIANTS + variant] =
        string.format('%s","action_params_hash":"%016x"}', name, 0x9e3779b9 * (variant + 1))
    end
  end

  if limit > 0 then
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
end

function request()
  local slot, step
  if order == "random" then
    slot, step = math.random(0, own - 1), sent
  else
    slot, step = sent % own, math.floor(sent / own)
  end
  local session = first + slot * stride
  sent = sent + 1
  local action = (script[step % #script + 1] + session) % #actions
  local opening = heads[slot]
  if not opening then
    opening = head(session)
    -- Not kept for random sessions: runs over few and over many sessions must cost wrk the same.
    if order == "turn" and own <= 20000 then heads[slot] = opening end
  end
  return opening .. tails[action * VARIANTS + (session + step) % VARIANTS]
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
