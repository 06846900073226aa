-- KEYS: streams. Answers the last entry that each of them ever had; nil where that may not be asked.
local ends = {}
for i, key in ipairs(KEYS) do
  local about = redis.pcall('XINFO', 'STREAM', key)
  if about.err then
    ends[i] = string.find(about.err, 'no such key', 1, true) and '0-0' or false
  else
    for field = 1, #about - 1, 2 do
      if about[field] == 'last-generated-id' then ends[i] = about[field + 1] end
    end
  end
end
return ends
