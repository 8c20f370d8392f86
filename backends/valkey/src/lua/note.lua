-- A note, by the primary. KEYS: the group's notes. ARGV: the name.
return { redis.call('HGET', KEYS[1], ARGV[1]) }
