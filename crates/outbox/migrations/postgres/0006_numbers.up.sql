-- Schema 6: a writer changes no row of an aggregate that is on the publishers' list already, and a commit notifies only where a publisher
-- sleeps. There must be no writer and no publisher of schema 4 any more: it waits for the writers, at most 10 minutes and without stopping
-- any, and refuses while such a publisher is alive.
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
END $$;

SET LOCAL statement_timeout = 0;

DO $$
DECLARE
    here oid := (SELECT oid FROM pg_database WHERE datname = current_database());
    deadline timestamptz := clock_timestamp() + interval '10 minutes';
    fence_now timestamptz;
    former text;
    writers text[];
    busy text;
    patience numeric := 100;
    highest bigint;
BEGIN
    LOOP
        -- The fence's clock stands still within a call.
        fence_now := outbox_now() + (clock_timestamp() - statement_timestamp());
        SELECT string_agg(p.publisher, ', ' ORDER BY p.publisher) INTO former FROM outbox_publisher AS p
            WHERE p.schema IS NULL AND fence_now - p.seen_at <= p.ttl AND p.seen_at - fence_now <= p.ttl;
        IF former IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'object_in_use', MESSAGE = format(
                'outbox: publishers of an earlier version are alive (%s). The outbox stays at schema 5, where writers and all publishers go on: upgrade these publishers, then run `shardwise outbox init` again',
                former);
        END IF;
        -- Whoever writes at this moment may have begun under schema 4; whoever comes later has not.
        SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}') INTO writers FROM pg_locks
            WHERE locktype = 'relation' AND database = here AND relation = 'outbox'::regclass AND mode = 'RowExclusiveLock'
              AND granted AND pid IS DISTINCT FROM pg_backend_pid();
        LOOP
            SELECT string_agg(DISTINCT coalesce('process ' || pid, 'a prepared transaction'), ', ') INTO busy FROM pg_locks
                WHERE virtualtransaction = ANY (writers) AND locktype = 'relation' AND database = here AND relation = 'outbox'::regclass AND granted;
            EXIT WHEN busy IS NULL;
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = format(
                    'outbox: transactions that write to it have been open for 10 minutes (%s): end them, then run this again', busy);
            END IF;
            PERFORM pg_sleep(0.05);
        END LOOP;
        -- Nobody counts by itself any more, so it is above everything that writers of schema 4 gave.
        highest := (SELECT max(last_seq) FROM outbox_aggregate);
        -- Each lock only if it comes soon, again and again: nobody waits longer than 3 s behind one of them.
        BEGIN
            PERFORM set_config('lock_timeout', patience::bigint::text, true);
            LOCK TABLE outbox_aggregate IN SHARE ROW EXCLUSIVE MODE;
            PERFORM set_config('lock_timeout', '200', true);
            -- Who registers, and who forgets aggregates, holds this row.
            PERFORM 1 FROM outbox_meta FOR UPDATE;
            LOCK TABLE outbox_publisher IN ACCESS EXCLUSIVE MODE;
            -- Registered since they were looked for: from the beginning, with the answer for that.
            IF EXISTS (SELECT 1 FROM outbox_publisher AS p WHERE p.schema IS NULL
                AND outbox_now() + (clock_timestamp() - statement_timestamp()) - p.seen_at <= p.ttl
                AND p.seen_at - outbox_now() - (clock_timestamp() - statement_timestamp()) <= p.ttl) THEN
                RAISE lock_not_available;
            END IF;
            -- What dead publishers still have in hand is marked no more.
            UPDATE outbox_slot AS s SET incarnation = NULL, epoch = s.epoch + 1
                FROM outbox_publisher AS p WHERE p.incarnation = s.incarnation AND p.schema IS NULL;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'outbox: its tables have been in use for 10 minutes: look for a long transaction, then run this again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
        END;
        patience := least(patience * 1.25, 3000);
        PERFORM pg_sleep(0.05);
    END LOOP;
    -- From here on every number that is drawn is above its aggregate's.
    PERFORM setval('outbox_floor', highest) FROM outbox_floor WHERE last_value < highest;
END $$;

-- A publisher of schema 4 that was stopped in the middle of a reading would strike aggregates off in which events have come since.
CREATE OR REPLACE FUNCTION outbox_struck() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM outbox_head AS h JOIN outbox AS o ON o.aggregate = h.aggregate AND o.seq > h.done_seq WHERE h.aggregate = NEW.id) THEN
        RAISE EXCEPTION 'outbox: this publisher is older than the outbox: upgrade it' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN NEW;
END $$;

DO $$
DECLARE
    owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'outbox'::regclass);
BEGIN
    DELETE FROM outbox_publisher WHERE schema IS NULL;
    -- They are there if this outbox has been at schema 6 before.
    IF NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conrelid = 'outbox_publisher'::regclass AND conname = 'this publisher is older than the outbox: upgrade it') THEN
        ALTER TABLE outbox_publisher ADD CONSTRAINT "this publisher is older than the outbox: upgrade it" CHECK (schema IS NOT NULL);
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = 'outbox_aggregate'::regclass AND tgname = 'outbox_struck') THEN
        CREATE TRIGGER outbox_struck BEFORE UPDATE OF drained_seq ON outbox_aggregate FOR EACH ROW
            WHEN (NEW.drained_seq <> OLD.drained_seq AND current_setting('shardwise.strike', true) IS DISTINCT FROM 'on')
            EXECUTE FUNCTION outbox_struck();
    END IF;
    IF owner <> current_user THEN
        EXECUTE format('ALTER FUNCTION outbox_struck() OWNER TO %I', owner);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox_sequence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    bytes bigint := coalesce(octet_length(NEW.payload), octet_length(NEW.payload_bytes), 0);
    bytes_max bigint;
    tell boolean;
    latest bigint;
    drained bigint;
    is_new boolean := false;
    done bigint;
    ticket bigint;
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
        -- Somebody else may insert it at the same moment: then this waits, and locks that row.
        INSERT INTO outbox_aggregate AS a (key, last_seq)
            SELECT NEW.aggregatetype || '/' || NEW.aggregateid, f.last_value + n.last_value FROM outbox_floor AS f, outbox_order AS n
            ON CONFLICT (key) DO UPDATE SET last_seq = a.last_seq
            RETURNING a.id, a.last_seq, a.drained_seq, a.xmax = '0'::xid INTO NEW.aggregate, latest, drained, is_new;
    END IF;
    -- Drawn by a statement of its own, behind the wait for the lock.
    SELECT f.last_value + nextval('outbox_order') INTO NEW.seq FROM outbox_floor AS f;
    IF is_new OR latest = drained THEN
        IF NOT is_new THEN
            UPDATE outbox_aggregate AS a SET last_seq = NEW.seq WHERE a.id = NEW.aggregate;
        END IF;
        INSERT INTO outbox_head AS h (aggregate, hash, done_seq) VALUES (NEW.aggregate, NEW.keyhash, NEW.seq - 1)
            ON CONFLICT (aggregate) DO UPDATE SET listed = true, hash = coalesce(h.hash, excluded.hash)
            RETURNING h.done_seq INTO done;
    END IF;
    -- It would be no later than what is sent already, and never be sent.
    IF NEW.seq <= done OR (NEW.seq <= latest AND NOT is_new) THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = format(
            'outbox: the next sequence is %s, and %s/%s has come to %s: the sequence outbox_order fell back, as in a copy without the values of sequences: run `shardwise outbox restored`',
            NEW.seq, NEW.aggregatetype, NEW.aggregateid, greatest(done, latest));
    END IF;
    NEW.keyhash := NULL;
    IF tell THEN
        -- Only where a publisher sleeps. Read behind the lock, where this transaction has its number: a publisher that falls asleep later goes
        -- on looking until the transactions with earlier numbers have ended.
        SELECT s.last_value INTO ticket FROM outbox_asleep AS s, outbox_woken AS w WHERE s.last_value > w.last_value;
        IF FOUND THEN
            PERFORM pg_notify('shardwise_outbox_' || 'outbox_meta'::regclass::oid, ticket::text);
        END IF;
    END IF;
    RETURN NEW;
END $$;

UPDATE outbox_meta SET schema_version = 6;
