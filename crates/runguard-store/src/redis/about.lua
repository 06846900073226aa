-- KEYS: the hash. ARGV: format, partitions, generation, the generation that lost a partition ('' = none), the secret ('' = none).
-- Creates the hash when it is not there; gives it another generation when it is the one that lost something.
-- Answers format, partitions, generation, the secret, and 1 once every partition carries the generation.
local found = redis.call('HGET', KEYS[1], 'generation')
if not found then
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'secret', ARGV[5])
end
if not found or found == ARGV[4] then
  local time = redis.call('TIME')
  local millis = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('HSET', KEYS[1], 'partitions', ARGV[2], 'generation', ARGV[3], 'marked', 0, 'born_at', millis)
end
return redis.call('HMGET', KEYS[1], 'format', 'partitions', 'generation', 'marked', 'secret')
