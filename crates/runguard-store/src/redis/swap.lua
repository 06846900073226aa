-- KEYS: the hash with the generation, how often this node has written, the streams, then the cells of all swaps in order.
-- ARGV: generation ('' = do not ask), the fence ('' = none), the time after which nobody waits for it ('' = never), the number of
-- this write and how long it is kept, bound of a stream, number of streams; then of each swap: which stream, how many cells, entry ('' = none); and of each cell: token expected
-- ('' = not there), what to put ('' = keep, else token and state), how many milliseconds to keep it.
-- Answers nil when the generation is another one, the fence when that is another one, and 0 when it came too late: nothing was
-- done. Else of each swap 1 (done), 2 (full), or what its cells hold; and then of each stream the last entry that was added, or nil.
local KEYS, ARGV, call, sub, tonumber = KEYS, ARGV, redis.call, string.sub, tonumber
local about = call('HMGET', KEYS[1], 'generation', 'fence')
if ARGV[1] ~= '' and about[1] ~= ARGV[1] then
  return false
end
if (about[2] or '') ~= ARGV[2] then
  return about[2] or ''
end
if ARGV[3] ~= '' then
  local time = call('TIME')
  if time[1] * 1000 + math.floor(time[2] / 1000) > tonumber(ARGV[3]) then
    return 0
  end
end
local limit, streams, has_added = tonumber(ARGV[6]), tonumber(ARGV[7]), false
local room, added = {}, {}
for i = 1, streams do
  room[i], added[i] = limit - call('XLEN', KEYS[2 + i]), false
end
local key, arg, last, answers, n = 2 + streams, 7, #ARGV, {}, 0
while arg < last do
  local stream, cells, entry = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2]), ARGV[arg + 3]
  arg = arg + 3
  local values, same, sets, repeated = {}, true, 0, 0
  for i = 1, cells do
    local at = arg + 3 * i
    local value, put = call('GET', KEYS[key + i]), ARGV[at - 1]
    local token = value and sub(value, 1, 8) or ''
    values[i] = value
    same = same and token == ARGV[at - 2]
    if put ~= '' then
      sets = sets + 1
      if token == sub(put, 1, 8) then repeated = repeated + 1 end
    end
  end
  n = n + 1
  if not same then
    if sets > 0 and repeated == sets then
      -- Made by an earlier call. Its time starts again, which is also the write that WAIT waits for.
      for i = 1, cells do
        local at = arg + 3 * i
        if ARGV[at - 1] ~= '' then call('PEXPIRE', KEYS[key + i], ARGV[at]) end
      end
      answers[n] = 1
    else
      answers[n] = values
    end
  elseif entry ~= '' and room[stream] < 1 then
    answers[n] = 2
  else
    for i = 1, cells do
      local at = arg + 3 * i
      local put = ARGV[at - 1]
      if put ~= '' then call('SET', KEYS[key + i], put, 'PX', ARGV[at]) end
    end
    if entry ~= '' then
      room[stream] = room[stream] - 1
      added[stream], has_added = call('XADD', KEYS[2 + stream], '*', 'r', entry), true
    end
    answers[n] = 1
  end
  key, arg = key + cells, arg + 3 * cells
end
-- A write that was sent before and comes later must not take it back.
if has_added and tonumber(call('GET', KEYS[2]) or 0) < tonumber(ARGV[4]) then
  call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
end
answers[n + 1] = added
return answers
