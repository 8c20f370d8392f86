-- What the scripts of a group begin with.
-- KEYS: the group's numbers, its records by id, their deadlines by id.
-- ARGV: the channel of its changes, the server's history as the caller knows it, the name of an era that may begin, the highest revision that
-- the caller has shown, and w if the group may be made.
local group, records, deadlines = KEYS[1], KEYS[2], KEYS[3]
local channel, origin, fresh, shown = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- Microseconds of the server's clock.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- Whole numbers below 2^53 as text: Lua would write large ones with an exponent.
local function whole(number)
  return string.format('%.0f', number)
end

local numbers = redis.call('HMGET', group, 'origin', 'era', 'revision', 'at')
local era, revision = numbers[2] or '', tonumber(numbers[3] or '0')
-- Ids and records by turns, behind the two places for era and revision; an empty record is one that has ended.
local changes, is_new_era = { '', '' }, false

local function changed(id, text)
  changes[#changes + 1] = id
  changes[#changes + 1] = text
end

-- A record: the number of joining, the incarnation, live or away, process and number of the call that wrote it, the TTL in microseconds,
-- the era in which it was written, and the JSON.
local function get(id)
  local text = redis.call('HGET', records, id)
  if not text then
    return nil
  end
  local record = { text = text }
  record.joined, record.incarnation, record.state, record.writer, record.call, record.ttl, record.era, record.json =
    string.match(text, '^(%d+) (%x+) (%a+) (%x+) (%d+) (%d+) (%x+) (.*)$')
  -- What cannot be read was not written by us, and is written over.
  return record.joined and record or nil
end

local function put(id, record)
  local parts = { record.joined, record.incarnation, record.state, record.writer, record.call, record.ttl, record.era, record.json }
  local text = table.concat(parts, ' ')
  redis.call('HSET', records, id, text)
  return text
end

-- Whether a later call of the same process has written it.
local function is_later(record, writer, call)
  return record.writer == writer and tonumber(record.call) > tonumber(call)
end

local function ends_at(id, ttl)
  redis.call('ZADD', deadlines, whole(now + tonumber(ttl)), id)
end

-- Gives every record its whole TTL: the deadlines are by a clock that is not this one any more.
local function restart_leases()
  local all = redis.call('HGETALL', records)
  for i = 1, #all, 2 do
    local ttl = string.match(all[i + 1], '^%d+ %x+ %a+ %x+ %d+ (%d+) ')
    if ttl then
      ends_at(all[i], ttl)
    end
  end
end

-- The group was made now, the server is another one or has restarted, or what it confirmed is gone. The caller knows the server's history
-- from the time when it connected; the server may have another name for it since.
if (numbers[1] ~= origin or revision < shown) and (numbers[1] or ARGV[5] == 'w' or shown > 0) then
  origin = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or origin
  if numbers[1] ~= origin or revision < shown then
    era, is_new_era, revision = fresh, true, math.max(revision, shown)
    restart_leases()
  end
elseif numbers[4] and now < tonumber(numbers[4]) then
  restart_leases()
end

-- Evicts the members that are due.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', whole(now), 'LIMIT', 0, 1000)) do
  redis.call('ZREM', deadlines, id)
  if redis.call('HDEL', records, id) == 1 then
    changed(id, '')
  end
end

-- Publishes what has changed, as one revision, and answers: era, revision, the server's history, the time until the next deadline (-1:
-- there is none), and what the script has to say.
local function finish(...)
  if is_new_era or #changes > 2 then
    revision = revision + 1
    redis.call('HSET', group, 'origin', origin, 'era', era, 'revision', whole(revision), 'at', whole(now))
    changes[1], changes[2] = era, whole(revision)
    redis.call('PUBLISH', channel, table.concat(changes, '\0'))
  end
  local first = redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')
  local wait = first[2] and math.max(0, tonumber(first[2]) - now) or -1
  return { era, whole(revision), origin, whole(wait), ... }
end
