-- Puts a record that is away in the place of the living one.
-- ARGV: id, incarnation, process and number of the call, grace in microseconds, JSON.
local id, writer, call = ARGV[6], ARGV[8], ARGV[9]
local there = get(id)
if not there or there.incarnation ~= ARGV[7] then
  return finish('LOST')
end
if there.state == 'away' then
  return finish('OK')
end
if is_later(there, writer, call) then
  return finish('SUPERSEDED')
end
there.state, there.writer, there.call, there.ttl, there.era, there.json = 'away', writer, call, ARGV[10], era, ARGV[11]
ends_at(id, there.ttl)
changed(id, put(id, there))
return finish('OK')
