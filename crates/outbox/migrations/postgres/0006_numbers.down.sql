-- From schema 6 back to schema 5. It waits for the transactions that use the table, at most 10 minutes and without stopping any; then it needs
-- the table for itself for a moment, however many rows it has. Publishers of schema 4 stay shut out until 0005 is undone, because last_seq is
-- exact again only then.
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
    -- Schema 5 does not ask for it, and schema 6 would then set it too low.
    IF NOT (SELECT is_called FROM outbox_floor) THEN
        RAISE EXCEPTION 'outbox: rows have come without the values of sequences: run `shardwise outbox restored` first'
            USING ERRCODE = 'object_not_in_prerequisite_state';
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
    users text[];
    busy text;
    patience numeric := 100;
BEGIN
    LOOP
        -- The table's lock below would wait for them with all writers behind it. VACUUM gives way by itself.
        SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}') INTO users FROM pg_locks
            WHERE locktype = 'relation' AND database = here AND relation = 'outbox'::regclass AND mode <> 'ShareUpdateExclusiveLock'
              AND granted AND pid IS DISTINCT FROM pg_backend_pid();
        LOOP
            SELECT string_agg(DISTINCT coalesce('process ' || pid, 'a prepared transaction, see pg_prepared_xacts'), ', ') INTO busy FROM pg_locks
                WHERE virtualtransaction = ANY (users) AND locktype = 'relation' AND database = here AND relation = 'outbox'::regclass AND granted;
            EXIT WHEN busy IS NULL;
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = format(
                    'outbox: transactions that read it or write to it have been open for 10 minutes (%s): end them, then run this again', busy);
            END IF;
            PERFORM pg_sleep(0.05);
        END LOOP;
        -- Each attempt at a lock is short, and repeated: no writer waits longer than 3 s behind one of them.
        BEGIN
            PERFORM set_config('lock_timeout', patience::bigint::text, true);
            LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE;
            PERFORM set_config('lock_timeout', '200', true);
            LOCK TABLE outbox_aggregate IN ACCESS EXCLUSIVE MODE;
            LOCK TABLE outbox_meta IN ACCESS EXCLUSIVE MODE;
            -- A publisher that marks has rows there before it comes to the outbox.
            LOCK TABLE outbox_head IN SHARE ROW EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'outbox: its tables have been in use for 10 minutes: look for a long transaction, then run this again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
        END;
        -- Writers and publishers that queued behind the attempt go on for longer than they waited.
        PERFORM pg_sleep(least(9 * patience / 1000, 9));
        patience := least(patience * 1.25, 3000);
    END LOOP;
END $$;

ALTER TABLE outbox_meta DROP CONSTRAINT "payload_bytes_max must be at least 4096";
-- Its other trigger stays until 0005 is undone, which locks that table.
DROP TRIGGER outbox_copied ON outbox;
DROP TRIGGER outbox_checked ON outbox;
DROP FUNCTION outbox_checked();
-- For what is written from here on. The trigger has checked the rows that are there; VALIDATE CONSTRAINT would read them all.
ALTER TABLE outbox
    ADD CONSTRAINT "aggregatetype must have 1 to 255 bytes" CHECK (octet_length(aggregatetype) BETWEEN 1 AND 255) NOT VALID,
    ADD CONSTRAINT "aggregateid must have 1 to 1024 bytes" CHECK (octet_length(aggregateid) BETWEEN 1 AND 1024) NOT VALID,
    ADD CONSTRAINT "type must have 1 to 255 bytes" CHECK (octet_length(type) BETWEEN 1 AND 255) NOT VALID,
    ADD CONSTRAINT "id must have 1 to 255 bytes" CHECK (octet_length(id) BETWEEN 1 AND 255) NOT VALID,
    ADD CONSTRAINT "give payload or payload_bytes, not both" CHECK (payload IS NULL OR payload_bytes IS NULL) NOT VALID,
    ADD CONSTRAINT "headers must be a JSON object of at most 65536 bytes"
        CHECK (headers IS NULL OR (octet_length(headers) <= 65536 AND json_typeof(headers::json) = 'object')) NOT VALID,
    ADD CONSTRAINT "created_at must be a time" CHECK (isfinite(created_at)) NOT VALID;

-- Publishers read no writers' list at schema 5. The hashes are theirs to fill in.
INSERT INTO outbox_head AS h (aggregate, done_seq) SELECT a.id, a.drained_seq FROM outbox_aggregate AS a WHERE a.last_seq <> a.drained_seq
    ON CONFLICT (aggregate) DO UPDATE SET listed = true WHERE NOT h.listed;
DROP INDEX outbox_aggregate_listed;

CREATE OR REPLACE FUNCTION outbox_sequence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    bytes bigint := coalesce(octet_length(NEW.payload), octet_length(NEW.payload_bytes), 0);
    bytes_max bigint;
    tell boolean;
    latest bigint;
    drained bigint;
    is_new boolean := false;
    done bigint;
BEGIN
    SELECT m.payload_bytes_max, m.notify INTO bytes_max, tell FROM outbox_meta AS m;
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
    -- The lock that makes seq the order of the commits. It is kept to the commit and makes no new version of the row.
    SELECT a.id, a.last_seq, a.drained_seq INTO NEW.aggregate, latest, drained
        FROM outbox_aggregate AS a WHERE a.key = NEW.aggregatetype || '/' || NEW.aggregateid FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        -- Another writer may insert it at the same moment: then this waits, and locks that row.
        INSERT INTO outbox_aggregate AS a (key, last_seq) VALUES (NEW.aggregatetype || '/' || NEW.aggregateid, 1)
            ON CONFLICT (key) DO UPDATE SET last_seq = a.last_seq
            RETURNING a.id, a.last_seq, a.drained_seq, a.xmax = '0'::xid INTO NEW.aggregate, latest, drained, is_new;
    END IF;
    -- Drawn by a separate statement, after the wait for the lock. Writers of schema 4 count by themselves, and may have come further than
    -- the sequence: it catches up.
    LOOP
        SELECT f.last_value + nextval('outbox_order') INTO NEW.seq FROM outbox_floor AS f;
        EXIT WHEN is_new OR NEW.seq > latest;
        IF latest - NEW.seq > 1000000 THEN
            RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = format(
                'outbox: the next sequence is %s, and %s/%s has come to %s: the sequence outbox_order fell back, as in a copy without the values of sequences: run `shardwise outbox restored`',
                NEW.seq, NEW.aggregatetype, NEW.aggregateid, latest);
        END IF;
    END LOOP;
    -- Always, because publishers of schema 4 read no further than last_seq.
    UPDATE outbox_aggregate AS a SET last_seq = NEW.seq WHERE a.id = NEW.aggregate;
    IF is_new OR latest = drained THEN
        INSERT INTO outbox_head AS h (aggregate, hash, done_seq) VALUES (NEW.aggregate, NEW.keyhash, NEW.seq - 1)
            ON CONFLICT (aggregate) DO UPDATE SET listed = true, hash = coalesce(h.hash, excluded.hash)
            RETURNING h.done_seq INTO done;
    END IF;
    IF NEW.seq <= done THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = format(
            'outbox: the next sequence is %s, and %s/%s has come to %s: the sequence outbox_order fell back, as in a copy without the values of sequences: run `shardwise outbox restored`',
            NEW.seq, NEW.aggregatetype, NEW.aggregateid, done);
    END IF;
    NEW.keyhash := NULL;
    IF tell THEN
        -- Once for a transaction, however many events it has. Publishers of schema 4 expect it at every commit.
        PERFORM pg_notify('shardwise_outbox_' || 'outbox_meta'::regclass::oid, s.last_value::text) FROM outbox_asleep AS s;
    END IF;
    RETURN NEW;
END $$;

UPDATE outbox_meta SET schema_version = 5;
