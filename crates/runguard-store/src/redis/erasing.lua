-- KEYS: nodes by the time they were last seen; erasures with the nodes that have yet to confirm them.
-- ARGV: what is said, the node, the erasure; of one that is here, the nodes it knew and when they were last seen.
local verb, node, erasure = ARGV[1], ARGV[2], ARGV[3]
local now = tonumber(redis.call('TIME')[1])

local function without(nodes)
  local others = {}
  for _, other in ipairs(nodes) do
    if other ~= node then
      others[#others + 1] = other
    end
  end
  return table.concat(others, ',')
end

if verb == 'here' then
  -- A database that was emptied, or put back to an earlier state, learns from those who are here whom it has lost.
  for place = 4, #ARGV, 2 do
    redis.call('ZADD', KEYS[1], 'NX', ARGV[place + 1], ARGV[place])
  end
  redis.call('ZADD', KEYS[1], now, node)
  -- Whoever was away for 30 days does not come back.
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 2592000)
  return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
elseif verb == 'announced' then
  redis.call('HSET', KEYS[2], erasure, without(redis.call('ZRANGE', KEYS[1], 0, -1)))
elseif verb == 'confirmed' then
  local waiting = redis.call('HGET', KEYS[2], erasure)
  if waiting then
    local nodes = {}
    for other in string.gmatch(waiting, '[^,]+') do
      nodes[#nodes + 1] = other
    end
    redis.call('HSET', KEYS[2], erasure, without(nodes))
  end
elseif verb == 'forgotten' then
  redis.call('HDEL', KEYS[2], erasure)
end
return 1
