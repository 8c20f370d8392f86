-- Writes the record unless another life of the member is there and not away. Its own living record keeps its number of joining.
-- KEYS[4]: the farewell of this id. ARGV: id, incarnation, process and number of the call, TTL, the most records, JSON.
local id, incarnation, writer, call, ttl, most, json = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11]), ARGV[12]
local there = get(id)
if there and there.incarnation == incarnation and is_later(there, writer, call) then
  return finish('SUPERSEDED')
end
if there and there.incarnation ~= incarnation and there.state == 'live' then
  -- Each renewal moves the deadline.
  return finish('TAKEN', redis.call('ZSCORE', deadlines, id) or '0', there.text)
end
if not there then
  local life, by, number = string.match(redis.call('GET', KEYS[4]) or '', '^(%x+) (%x+) (%d+)$')
  if life == incarnation and is_later({ writer = by, call = number }, writer, call) then
    return finish('SUPERSEDED')
  end
  if redis.call('HLEN', records) >= most then
    return finish('FULL')
  end
end
-- This change gets the next number.
local joined = there and there.state == 'live' and there.joined or whole(revision + 1)
local record = { joined = joined, incarnation = incarnation, state = 'live', writer = writer, call = call, ttl = ttl, era = era, json = json }
ends_at(id, ttl)
changed(id, put(id, record))
return finish('OK')
