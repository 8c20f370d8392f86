-- Deletes the record of this life, and remembers that for calls of the same process that arrive late.
-- KEYS[4]: the farewell of this id. ARGV: id, incarnation, process and number of the call, for how many milliseconds to remember.
local id, incarnation, writer, call = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local there = get(id)
if there and there.incarnation == incarnation then
  if is_later(there, writer, call) then
    return finish('OK')
  end
  redis.call('HDEL', records, id)
  redis.call('ZREM', deadlines, id)
  changed(id, '')
end
redis.call('SET', KEYS[4], incarnation .. ' ' .. writer .. ' ' .. call, 'PX', ARGV[10])
return finish('OK')
