-- KEYS: the hash. ARGV: format, partitions, generation, the generation that lost something ('' = none), the secret ('' = none),
-- the format of a database whose states begin anew ('' = a part of it was emptied, and the rest stays).
-- Creates the hash when it is not there; gives it another generation when it is the one that lost something, and with it
-- another set of states when what it has is old.
-- Answers format, partitions, generation, 1 once every partition carries the generation, which set of states, the secret.
local found = redis.call('HGET', KEYS[1], 'generation')
if not found then
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'secret', ARGV[5])
end
if not found or found == ARGV[4] then
  local time = redis.call('TIME')
  local millis = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('HSET', KEYS[1], 'partitions', ARGV[2], 'generation', ARGV[3], 'marked', 0, 'born_at', millis)
  if found and ARGV[6] ~= '' then
    redis.call('HSET', KEYS[1], 'format', ARGV[6], 'states', ARGV[3])
  end
end
return redis.call('HMGET', KEYS[1], 'format', 'partitions', 'generation', 'marked', 'states', 'secret')
