-- From schema 7 back to schema 6: each event has an aggregate's row again, by which publishers of schema 6 delete old events. It stops no
-- writer; publishers take, mark and release nothing while it reads the table.
-- Run it in one transaction, with a search_path that leads to the outbox.

SELECT set_config('search_path',
    coalesce((SELECT quote_ident(n.nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
              WHERE c.oid = to_regclass('outbox_meta')), 'none') || ', pg_temp', true);
DO $$
BEGIN
    IF current_schema() IS NULL THEN
        RAISE EXCEPTION 'the search_path leads to no outbox: run 0001 first, or name its schema' USING ERRCODE = 'invalid_schema_name';
    END IF;
    IF current_setting('search_path') NOT LIKE '%, pg_temp' THEN
        RAISE EXCEPTION 'run this file in one transaction, such as with psql --single-transaction';
    END IF;
    IF (SELECT schema_version FROM outbox_meta) <> 7 THEN
        RAISE EXCEPTION 'this file begins at schema 7, and the outbox is at %: run the files in their order',
            (SELECT schema_version FROM outbox_meta) USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'run this file alone in a transaction with ISOLATION LEVEL READ COMMITTED'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
END $$;

SET LOCAL statement_timeout = 0;

DO $$
DECLARE
    deadline timestamptz := clock_timestamp() + interval '10 minutes';
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '200', true);
            LOCK TABLE outbox_meta IN ACCESS EXCLUSIVE MODE;
            LOCK TABLE outbox_publisher IN ACCESS EXCLUSIVE MODE;
            -- Whoever strikes aggregates off has rows of one of these.
            LOCK TABLE outbox_slot IN EXCLUSIVE MODE;
            LOCK TABLE outbox_head IN EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'outbox: its tables have been in use for 10 minutes: look for a long transaction, then run this again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
        END;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;

ALTER TABLE outbox_publisher
    DROP CONSTRAINT "this publisher is older than the outbox: upgrade it",
    ADD CONSTRAINT "this publisher is older than the outbox: upgrade it" CHECK (schema IS NOT NULL);
ALTER TABLE outbox_meta DROP COLUMN highest;

CREATE OR REPLACE FUNCTION outbox_strike(aggregates bigint[], through bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    free bigint[];
    behind bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'outbox_strike needs READ COMMITTED: with an older snapshot it would miss events' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- SKIP LOCKED sometimes waits: see the publisher's statements.
    PERFORM set_config('lock_timeout',
        greatest(least(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 250, 200), 1)::bigint::text, true);
    SELECT array_agg(f.id), array_agg(f.done) INTO free, behind FROM (
        SELECT a.id, g.done FROM unnest(aggregates, through) AS g (id, done) JOIN outbox_aggregate AS a ON a.id = g.id
        FOR NO KEY UPDATE OF a SKIP LOCKED
    ) AS f;
    -- Any other statement is looked at by a trigger of schema 6.
    PERFORM set_config('shardwise.strike', 'on', true);
    RETURN QUERY
        WITH struck AS (
            UPDATE outbox_aggregate AS a SET last_seq = greatest(a.last_seq, g.done), drained_seq = greatest(a.last_seq, g.done)
            FROM unnest(free, behind) AS g (id, done)
            WHERE a.id = g.id AND NOT EXISTS (SELECT 1 FROM outbox AS o WHERE o.aggregate = g.id AND o.seq > g.done)
            RETURNING a.id, g.done
        ), heads AS (
            UPDATE outbox_head AS h SET listed = false, done_seq = greatest(h.done_seq, s.done), attempts = 0, failures = 0, failing_since = NULL,
                attempted_at = NULL, retry_at = NULL, last_error = NULL
            FROM struck AS s WHERE h.aggregate = s.id
        )
        SELECT s.id FROM struck AS s;
    PERFORM set_config('shardwise.strike', '', true);
END $$;

-- The events of forgotten aggregates, all delivered. Their keys may have rows again, so these rows have names that no key has, because each key has
-- a slash. Publishers delete them when their last event is deleted.
INSERT INTO outbox_aggregate (id, key, last_seq, drained_seq) OVERRIDING SYSTEM VALUE
    SELECT o.aggregate, 'forgotten ' || o.aggregate, max(o.seq), max(o.seq) FROM outbox AS o
    WHERE NOT EXISTS (SELECT 1 FROM outbox_aggregate AS a WHERE a.id = o.aggregate) GROUP BY o.aggregate;

UPDATE outbox_meta SET schema_version = 6;
