-- Moves the deadline of the living record. One of an earlier era may lack what its member wrote last, so it must be registered anew.
-- ARGV: id, incarnation, TTL.
local id, ttl = ARGV[6], ARGV[8]
local there = get(id)
if not there or there.incarnation ~= ARGV[7] or there.state ~= 'live' or there.era ~= era then
  return finish('LOST')
end
ends_at(id, ttl)
if there.ttl ~= ttl then
  there.ttl = ttl
  put(id, there)
end
redis.call('HSET', group, 'at', whole(now))
return finish('OK')
