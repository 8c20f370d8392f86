-- Schema 7: an aggregate whose events are all delivered is forgotten at once, unless it has a row of the publishers, and its next event makes it
-- anew. Striking it off wrote a new version of the writers' row with all its index entries. Stops no writer and no publisher: tables are
-- locked for a moment, and only if they are free within 200 ms. Refuses while a publisher is alive that does not know schema 7.
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
    IF (SELECT schema_version FROM outbox_meta) <> 6 THEN
        RAISE EXCEPTION 'this file begins at schema 6, and the outbox is at %: run the files in their order',
            (SELECT schema_version FROM outbox_meta) USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    -- With an older snapshot it would not see what publishers have committed while it waited for them.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'run this file alone in a transaction with ISOLATION LEVEL READ COMMITTED'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
END $$;

SET LOCAL statement_timeout = 0;

DO $$
DECLARE
    deadline timestamptz := clock_timestamp() + interval '10 minutes';
    fence_now timestamptz;
    former text;
    bare bigint[];
BEGIN
    LOOP
        -- The fence's clock does not advance within a call.
        fence_now := outbox_now() + (clock_timestamp() - statement_timestamp());
        SELECT string_agg(p.publisher, ', ' ORDER BY p.publisher) INTO former FROM outbox_publisher AS p
            WHERE coalesce(p.schema, 0) < 7 AND fence_now - p.seen_at <= p.ttl AND p.seen_at - fence_now <= p.ttl;
        IF former IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'object_in_use', MESSAGE = format(
                'outbox: publishers of an earlier version are alive (%s). The outbox stays at schema 6, where writers and all publishers go on: upgrade these publishers, then run `shardwise outbox init` again',
                former);
        END IF;
        BEGIN
            PERFORM set_config('lock_timeout', '200', true);
            LOCK TABLE outbox_meta IN ACCESS EXCLUSIVE MODE;
            LOCK TABLE outbox_publisher IN ACCESS EXCLUSIVE MODE;
            -- Registered since they were looked for: from the beginning, with the answer for that.
            IF EXISTS (SELECT 1 FROM outbox_publisher AS p WHERE coalesce(p.schema, 0) < 7
                AND outbox_now() + (clock_timestamp() - statement_timestamp()) - p.seen_at <= p.ttl
                AND p.seen_at - outbox_now() - (clock_timestamp() - statement_timestamp()) <= p.ttl) THEN
                RAISE lock_not_available;
            END IF;
            -- Where an event is parked, the aggregate keeps its row, because later events may be sent again with it: it gets a row of the
            -- publishers, behind the writers' lock, so that no mark strikes it off meanwhile.
            SELECT array_agg(a.id) INTO bare FROM (
                SELECT w.id FROM outbox_aggregate AS w WHERE w.id IN (SELECT o.aggregate FROM outbox AS o WHERE o.parked_at IS NOT NULL)
                AND NOT EXISTS (SELECT 1 FROM outbox_head AS h WHERE h.aggregate = w.id) ORDER BY w.key FOR NO KEY UPDATE
            ) AS a;
            INSERT INTO outbox_head (aggregate, listed, done_seq) SELECT w.id, false, w.drained_seq FROM outbox_aggregate AS w WHERE w.id = ANY (bare);
            -- What dead publishers still have in hand is marked no more.
            UPDATE outbox_slot AS s SET incarnation = NULL, epoch = s.epoch + 1
                FROM outbox_publisher AS p WHERE p.incarnation = s.incarnation AND coalesce(p.schema, 0) < 7;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected OR unique_violation THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'outbox: its tables have been in use for 10 minutes: look for a long transaction, then run this again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
        END;
        PERFORM pg_sleep(0.05);
    END LOOP;
    DELETE FROM outbox_publisher WHERE coalesce(schema, 0) < 7;
END $$;

ALTER TABLE outbox_publisher
    DROP CONSTRAINT "this publisher is older than the outbox: upgrade it",
    ADD CONSTRAINT "this publisher is older than the outbox: upgrade it" CHECK (coalesce(schema, 0) >= 7);
-- A number that was drawn: publishers write it now and then, and refuse to go on where the next number is not above it, as in a copy without
-- the values of sequences. The rows of forgotten aggregates no longer show that.
ALTER TABLE outbox_meta ADD COLUMN highest bigint NOT NULL DEFAULT 0;

-- Strikes aggregates off that have no event behind `through`. A writer that came and went has left its event and no new version of the row, so
-- the events are looked up by a second statement, behind the locks. It sees the publishers' rows that have come meanwhile as well. Without
-- such a row the aggregate is forgotten: its events in `outbox` are all delivered. A locked row stays in its place. LATERAL and the arrays force
-- one lookup for each aggregate: a plan that was made while a table was empty would compare all with all. Returns the aggregates that are struck off.
CREATE OR REPLACE FUNCTION outbox_strike(aggregates bigint[], through bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    places tid[];
    free bigint[];
    behind bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'outbox_strike needs READ COMMITTED: with an older snapshot it would miss events' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- SKIP LOCKED sometimes waits: see the publisher's statements.
    PERFORM set_config('lock_timeout',
        greatest(least(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 250, 200), 1)::bigint::text, true);
    SELECT array_agg(f.ctid), array_agg(f.id), array_agg(f.done) INTO places, free, behind FROM (
        SELECT a.ctid, a.id, g.done FROM unnest(aggregates, through) AS g (id, done) CROSS JOIN LATERAL (
            SELECT w.ctid, w.id FROM outbox_aggregate AS w WHERE w.id = g.id FOR UPDATE SKIP LOCKED
        ) AS a
    ) AS f;
    -- Any other statement is looked at by a trigger of schema 6.
    PERFORM set_config('shardwise.strike', 'on', true);
    RETURN QUERY
        WITH idle AS MATERIALIZED (
            SELECT g.place, g.id, g.done, h.aggregate IS NOT NULL AS is_kept FROM unnest(places, free, behind) AS g (place, id, done)
            LEFT JOIN LATERAL (SELECT o.seq FROM outbox AS o WHERE o.aggregate = g.id AND o.seq > g.done LIMIT 1) AS e ON true
            LEFT JOIN LATERAL (SELECT l.aggregate FROM outbox_head AS l WHERE l.aggregate = g.id OFFSET 0) AS h ON true
            WHERE e.seq IS NULL
        ), forgotten AS (
            DELETE FROM outbox_aggregate AS a WHERE a.ctid = ANY (ARRAY(SELECT i.place FROM idle AS i WHERE NOT i.is_kept)) RETURNING a.id
        ), struck AS (
            UPDATE outbox_aggregate AS a SET last_seq = greatest(a.last_seq, i.done), drained_seq = greatest(a.last_seq, i.done)
            FROM idle AS i WHERE a.ctid = i.place AND i.is_kept RETURNING a.id, i.done
        ), heads AS (
            UPDATE outbox_head AS h SET listed = false, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL, retry_at = NULL,
                last_error = NULL, done_seq = greatest(h.done_seq,
                    (ARRAY(SELECT s.done FROM struck AS s))[array_position(ARRAY(SELECT s.id FROM struck AS s), h.aggregate)])
            WHERE h.aggregate = ANY (ARRAY(SELECT s.id FROM struck AS s))
        )
        SELECT f.id FROM forgotten AS f UNION ALL SELECT s.id FROM struck AS s;
    PERFORM set_config('shardwise.strike', '', true);
END $$;

UPDATE outbox_meta SET schema_version = 7;
