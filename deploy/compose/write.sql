-- One transaction writes to several aggregates in sorted order, so that two writers never wait for each other.
INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
SELECT 'order', id, 'OrderTouched', json_build_object('at', clock_timestamp())::text
FROM (SELECT n::text AS id FROM generate_series(1, 100) AS n ORDER BY n::text) AS orders;
