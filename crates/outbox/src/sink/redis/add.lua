-- Adds events to a stream, in their order, up to the first that is not taken. All or nothing of it is seen by others at once.
-- KEYS[1]: the stream. ARGV[1]: about how many entries it keeps, or 0. Then for each event: its id in the stream, its id as an event,
-- the number of fields and values, fields and values.
-- Answers how many are in the stream, and why the next one is not.
local taken, at = 0, 2
while at <= #ARGV do
  local place, event, words = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local add = { 'XADD', KEYS[1] }
  if ARGV[1] ~= '0' then
    add[3], add[4], add[5] = 'MAXLEN', '~', ARGV[1]
  end
  add[#add + 1] = place
  for i = at + 3, at + 2 + words do
    add[#add + 1] = ARGV[i]
  end
  local called, added = pcall(function() return redis.pcall(unpack(add)) end)
  if not called then
    -- What is there stays there, and the answer names only this event.
    return { taken, tostring(added) }
  end
  if type(added) == 'table' and added.err then
    if not string.find(added.err, 'equal or smaller', 1, true) then
      return { taken, added.err }
    end
    if string.find(place, '*', 1, true) then
      return { taken, 'NEWER' }
    end
    -- Is what stands at this place this very event?
    local there = redis.call('XRANGE', KEYS[1], place, place)
    if #there == 0 then
      return { taken, 'PAST' }
    end
    local same = false
    for i = 1, #there[1][2], 2 do
      if there[1][2][i] == 'id' and there[1][2][i + 1] == event then
        same = true
      end
    end
    if not same then
      return { taken, 'OTHER' }
    end
  end
  taken = taken + 1
  at = at + 3 + words
end
return { taken, '' }
