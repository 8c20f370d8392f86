-- Writes a note over the expected version, 0 for none. KEYS: the group's notes. ARGV: the name, the expected version, the text.
-- Answers the new version, or nothing and what is there. A version has the time in it: one that a failover forgets is not used again.
local there = redis.call('HGET', KEYS[1], ARGV[1])
local version = there and string.match(there, '^(%d+) ') or '0'
if version ~= ARGV[2] then
  return { false, there }
end
local clock = redis.call('TIME')
local written = string.format('%.0f', math.max(tonumber(version) + 1, tonumber(clock[1]) * 1000000 + tonumber(clock[2])))
redis.call('HSET', KEYS[1], ARGV[1], written .. ' ' .. ARGV[3])
return { written }
