-- From schema 5 back to schema 4. Writers wait while it counts every aggregate's last_seq again; first it waits for the transactions that
-- write at its beginning, at most 10 minutes and without stopping anybody. It refuses while a publisher of schema 5 or newer is alive.
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
    IF (SELECT schema_version FROM outbox_meta) <> 5 THEN
        RAISE EXCEPTION 'this file begins at schema 5, and the outbox is at %: run the files in their order',
            (SELECT schema_version FROM outbox_meta) USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    -- With an older snapshot it would not see what writers have committed while it waited for them.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'run this file alone in a transaction with ISOLATION LEVEL READ COMMITTED'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
END $$;

SET LOCAL statement_timeout = 0;
DO $$
DECLARE
    here oid := (SELECT oid FROM pg_database WHERE datname = current_database());
    deadline timestamptz := clock_timestamp() + interval '10 minutes';
    fence_now timestamptz;
    newer text;
    writers text[];
    busy text;
    patience numeric := 100;
    given bigint;
BEGIN
    LOOP
        -- The fence's clock does not advance within a call.
        fence_now := outbox_now() + (clock_timestamp() - statement_timestamp());
        SELECT string_agg(p.publisher, ', ' ORDER BY p.publisher) INTO newer FROM outbox_publisher AS p
            WHERE p.schema IS NOT NULL AND fence_now - p.seen_at <= p.ttl AND p.seen_at - fence_now <= p.ttl;
        IF newer IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'object_in_use', MESSAGE = format(
                'outbox: publishers that need schema 5 or newer are alive (%s): stop them, then run this again', newer);
        END IF;
        SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}') INTO writers FROM pg_locks
            WHERE locktype = 'relation' AND database = here AND relation = 'outbox'::regclass AND mode = 'RowExclusiveLock'
              AND granted AND pid IS DISTINCT FROM pg_backend_pid();
        LOOP
            SELECT string_agg(DISTINCT coalesce('process ' || pid, 'a prepared transaction, see pg_prepared_xacts'), ', ') INTO busy FROM pg_locks
                WHERE virtualtransaction = ANY (writers) AND locktype = 'relation' AND database = here AND relation = 'outbox'::regclass AND granted;
            EXIT WHEN busy IS NULL;
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = format(
                    'outbox: transactions that write to it have been open for 10 minutes (%s): end them, then run this again', busy);
            END IF;
            PERFORM pg_sleep(0.05);
        END LOOP;
        -- Each attempt at a lock is short, and repeated: no writer waits longer than 3 s behind one of them.
        BEGIN
            PERFORM set_config('lock_timeout', patience::bigint::text, true);
            LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE;
            LOCK TABLE outbox_aggregate IN ACCESS EXCLUSIVE MODE;
            PERFORM set_config('lock_timeout', '200', true);
            -- Who registers, and who forgets aggregates, holds this row.
            PERFORM 1 FROM outbox_meta FOR UPDATE;
            LOCK TABLE outbox_publisher IN ACCESS EXCLUSIVE MODE;
            -- Registered since they were looked for: from the beginning, with the answer for that.
            IF EXISTS (SELECT 1 FROM outbox_publisher AS p WHERE p.schema IS NOT NULL
                AND outbox_now() + (clock_timestamp() - statement_timestamp()) - p.seen_at <= p.ttl
                AND p.seen_at - outbox_now() - (clock_timestamp() - statement_timestamp()) <= p.ttl) THEN
                RAISE lock_not_available;
            END IF;
            -- What dead publishers still have in hand is marked no more.
            UPDATE outbox_slot AS s SET incarnation = NULL, epoch = s.epoch + 1
                FROM outbox_publisher AS p WHERE p.incarnation = s.incarnation AND p.schema IS NOT NULL;
            given := (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox_order);
            DROP SEQUENCE outbox_order;
            DROP SEQUENCE outbox_asleep;
            DROP SEQUENCE outbox_woken;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'outbox: its tables have been in use for 10 minutes: look for a long transaction, then run this again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
        END;
        -- Writers that had to wait go on for a longer time than they waited.
        PERFORM pg_sleep(least(9 * patience / 1000, 9));
        patience := least(patience * 1.25, 3000);
    END LOOP;
    -- A key that comes back begins above everything that was drawn.
    PERFORM setval('outbox_floor', f.last_value + given) FROM outbox_floor AS f WHERE given > 0;
    DELETE FROM outbox_publisher WHERE schema IS NOT NULL;
    ALTER TABLE outbox_publisher DROP CONSTRAINT IF EXISTS "this publisher is older than the outbox: upgrade it", DROP COLUMN schema;
    DROP TRIGGER IF EXISTS outbox_struck ON outbox_aggregate;
    DROP FUNCTION IF EXISTS outbox_struck();
    DROP TRIGGER IF EXISTS outbox_copied ON outbox_aggregate;
    DROP FUNCTION IF EXISTS outbox_copied();
    DROP FUNCTION outbox_strike(bigint[], bigint[]);
    DROP FUNCTION outbox_place(bigint[], bigint[], bigint[], boolean);
    -- In schema 6 an aggregate without trouble had no row of the publishers'. Those on the writers' list got one on the way to schema 5.
    INSERT INTO outbox_head (aggregate, listed, done_seq) SELECT id, last_seq <> drained_seq, drained_seq FROM outbox_aggregate
        ON CONFLICT (aggregate) DO NOTHING;
    -- In schema 6 last_seq stood still while an aggregate was listed. What is done counts too: delivered events may be deleted already. Who
    -- is not on the list has nothing to send, and stays off.
    UPDATE outbox_aggregate AS a
        SET last_seq = n.last_seq, drained_seq = CASE WHEN a.last_seq = a.drained_seq THEN n.last_seq ELSE a.drained_seq END
        FROM (
            SELECT c.id, greatest(c.last_seq, h.done_seq, (SELECT max(o.seq) FROM outbox AS o WHERE o.aggregate = c.id)) AS last_seq
            FROM outbox_aggregate AS c LEFT JOIN outbox_head AS h ON h.aggregate = c.id
        ) AS n
        WHERE n.id = a.id AND n.last_seq > a.last_seq;
END $$;

-- Of schema 2: a new aggregate begins above the floor, and others count on.
CREATE OR REPLACE FUNCTION outbox_sequence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    bytes bigint := coalesce(octet_length(NEW.payload), octet_length(NEW.payload_bytes), 0);
    bytes_max bigint;
    tell boolean;
    lowest bigint;
    drained bigint;
    is_new boolean;
BEGIN
    SELECT m.payload_bytes_max, m.notify, f.last_value INTO bytes_max, tell, lowest FROM outbox_meta AS m, outbox_floor AS f;
    IF bytes > bytes_max THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation', MESSAGE = format(
            'outbox: the payload of %s/%s has %s bytes; at most %s are allowed: store it elsewhere and send a reference, or raise payload_bytes_max in outbox_meta',
            NEW.aggregatetype, NEW.aggregateid, bytes, bytes_max);
    END IF;
    -- The table's constraints say what is wrong with these.
    IF NEW.aggregatetype IS NULL OR NEW.aggregateid IS NULL OR octet_length(NEW.aggregatetype) > 255 OR octet_length(NEW.aggregateid) > 1024 THEN
        RETURN NEW;
    END IF;
    NEW.id := coalesce(NEW.id, gen_random_uuid()::text);
    INSERT INTO outbox_aggregate AS a (key, last_seq, drained_seq) VALUES (NEW.aggregatetype || '/' || NEW.aggregateid, lowest + 1, lowest)
        ON CONFLICT (key) DO UPDATE SET last_seq = a.last_seq + 1
        RETURNING a.id, a.last_seq, a.drained_seq, a.xmax = '0'::xid INTO NEW.aggregate, NEW.seq, drained, is_new;
    -- The row may have been forgotten while this waited for it, and then the floor has risen since it was read.
    IF is_new AND (SELECT last_value FROM outbox_floor) > drained THEN
        UPDATE outbox_aggregate AS a SET last_seq = f.last_value + 1, drained_seq = f.last_value FROM outbox_floor AS f WHERE a.id = NEW.aggregate
            RETURNING a.last_seq, a.drained_seq INTO NEW.seq, drained;
    END IF;
    IF NEW.seq = drained + 1 THEN
        INSERT INTO outbox_head AS h (aggregate, hash, done_seq) VALUES (NEW.aggregate, NEW.keyhash, drained)
            ON CONFLICT (aggregate) DO UPDATE SET listed = true, hash = coalesce(h.hash, excluded.hash);
    END IF;
    NEW.keyhash := NULL;
    IF tell THEN
        -- Once for a transaction, however many events it has.
        PERFORM pg_notify('shardwise_outbox_' || 'outbox_meta'::regclass::oid, '');
    END IF;
    RETURN NEW;
END $$;

UPDATE outbox_meta SET schema_version = 4;
