-- KEYS: how often the node has written, then streams. ARGV: how long the first is kept.
-- Answers the first, and of each stream the last entry that it ever had; nil where that may not be asked.
local answers = { redis.call('GET', KEYS[1]) }
redis.call('PEXPIRE', KEYS[1], ARGV[1])
for i = 2, #KEYS do
  local about = redis.pcall('XINFO', 'STREAM', KEYS[i])
  answers[i] = false
  if about.err then
    if string.find(about.err, 'no such key', 1, true) then answers[i] = '0-0' end
  else
    for field = 1, #about - 1, 2 do
      if about[field] == 'last-generated-id' then answers[i] = about[field + 1] end
    end
  end
end
return answers
