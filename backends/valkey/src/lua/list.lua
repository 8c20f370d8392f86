-- All records of the group.
return finish('OK', redis.call('HGETALL', records))
