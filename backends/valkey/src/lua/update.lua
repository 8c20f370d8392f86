-- Replaces the text of the living record. The same text again is no change for others.
-- ARGV: id, incarnation, process and number of the call, JSON.
local id, writer, call, json = ARGV[6], ARGV[8], ARGV[9], ARGV[10]
local there = get(id)
if not there or there.incarnation ~= ARGV[7] or there.state ~= 'live' then
  return finish('LOST')
end
if is_later(there, writer, call) then
  return finish('SUPERSEDED')
end
local is_same = there.json == json
there.writer, there.call, there.era, there.json = writer, call, era, json
local text = put(id, there)
if not is_same then
  changed(id, text)
end
return finish('OK')
