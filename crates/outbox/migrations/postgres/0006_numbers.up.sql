-- Schema 6: a writer changes no row of an aggregate that is on the writers' list already and no row of the publishers', a commit notifies only where
-- a publisher sleeps, and the trigger checks what CHECK constraints of the table checked before. There must be no writer and no publisher of schema 4
-- any more: it waits for the transactions that use the table, at most 10 minutes and without stopping any, and refuses while such a publisher
-- is alive. Then it needs the table for itself for a moment.
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
    -- A writer that comes now would still run the trigger of schema 4. A new outbox has no writers.
    IF (SELECT age(xmin) FROM pg_attribute WHERE attrelid = 'outbox_publisher'::regclass AND attname = 'schema') <= 0
        AND (SELECT age(xmin) FROM pg_class WHERE oid = 'outbox'::regclass) > 0 THEN
        RAISE EXCEPTION 'run 0005 and 0006 in two transactions, one after the other' USING ERRCODE = 'invalid_transaction_state';
    END IF;
END $$;

SET LOCAL statement_timeout = 0;

DO $$
DECLARE
    here oid := (SELECT oid FROM pg_database WHERE datname = current_database());
    deadline timestamptz := clock_timestamp() + interval '10 minutes';
    fence_now timestamptz;
    former text;
    users text[];
    busy text;
    patience numeric := 100;
    highest bigint;
BEGIN
    LOOP
        -- The fence's clock does not advance within a call.
        fence_now := outbox_now() + (clock_timestamp() - statement_timestamp());
        SELECT string_agg(p.publisher, ', ' ORDER BY p.publisher) INTO former FROM outbox_publisher AS p
            WHERE p.schema IS NULL AND fence_now - p.seen_at <= p.ttl AND p.seen_at - fence_now <= p.ttl;
        IF former IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'object_in_use', MESSAGE = format(
                'outbox: publishers of an earlier version are alive (%s). The outbox stays at schema 5, where writers and all publishers go on: upgrade these publishers, then run `shardwise outbox init` again',
                former);
        END IF;
        -- A transaction that writes at this moment may have begun under schema 4; a later one has not. Readers are waited for as well, because the
        -- table's lock below would wait for them with all writers behind it; VACUUM is not, because it gives way by itself.
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
        -- No writer of schema 4 is left, so this is above every number that they gave.
        highest := (SELECT max(last_seq) FROM outbox_aggregate);
        -- Each attempt at a lock is short, and repeated: no writer waits longer than 3 s behind one of them.
        BEGIN
            PERFORM set_config('lock_timeout', patience::bigint::text, true);
            -- First, as writers take them. For its constraints.
            LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE;
            PERFORM set_config('lock_timeout', '200', true);
            LOCK TABLE outbox_aggregate IN SHARE ROW EXCLUSIVE MODE;
            -- Who registers, and who forgets aggregates, holds a row of it.
            LOCK TABLE outbox_meta IN ACCESS EXCLUSIVE MODE;
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
        -- Writers and publishers that queued behind the attempt go on for longer than they waited.
        PERFORM pg_sleep(least(9 * patience / 1000, 9));
        patience := least(patience * 1.25, 3000);
    END LOOP;
    -- From here on every number that is drawn is above its aggregate's. Set in any case: the trigger takes a floor that is not set for one
    -- that was not copied.
    PERFORM setval('outbox_floor', greatest(last_value, highest)) FROM outbox_floor WHERE NOT is_called OR last_value < highest;
END $$;

DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_index WHERE indexrelid = to_regclass('outbox_aggregate_listed') AND NOT indisvalid) THEN
        RAISE EXCEPTION 'outbox: the index outbox_aggregate_listed is not valid, as where CREATE INDEX CONCURRENTLY was cancelled: drop it, then run this again'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END $$;
-- The writers' list: what writers have listed. Publishers read it directly; what fails, or has more behind it, they put on their own list.
CREATE INDEX IF NOT EXISTS outbox_aggregate_listed ON outbox_aggregate (last_seq, id) WHERE last_seq <> drained_seq;

-- A publisher of schema 4 that was stopped in the middle of a reading would strike aggregates off in which events have come since.
CREATE OR REPLACE FUNCTION outbox_struck() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM outbox_head AS h JOIN outbox AS o ON o.aggregate = h.aggregate AND o.seq > h.done_seq WHERE h.aggregate = NEW.id) THEN
        RAISE EXCEPTION 'outbox: this publisher is older than the outbox: upgrade it' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN NEW;
END $$;

-- Logical replication copies rows and no values of sequence objects, so numbers would begin again below delivered ones. For a row that comes
-- by replication the floor is unset, and then the trigger of the writers refuses every event, until `outbox restored` has set it above all
-- rows. setval acts at once and is not rolled back, so no writer sees such a row and a floor. Writers do not pay: it does not fire for them.
CREATE OR REPLACE FUNCTION outbox_copied() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- Looked up, because ALTER TABLE ... ENABLE TRIGGER ALL, as in a restored dump of data alone, makes it fire for writers.
    IF current_setting('session_replication_role') = 'replica' THEN
        PERFORM setval('outbox_floor', f.last_value, false) FROM outbox_floor AS f WHERE f.is_called;
        IF FOUND THEN
            RAISE WARNING 'outbox: rows come by replication, without the values of sequences: it refuses every event until `shardwise outbox restored` has run';
        END IF;
    END IF;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION outbox_copied() FROM PUBLIC;

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
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = 'outbox_aggregate'::regclass AND tgname = 'outbox_copied') THEN
        CREATE TRIGGER outbox_copied BEFORE INSERT ON outbox_aggregate FOR EACH ROW EXECUTE FUNCTION outbox_copied();
        ALTER TABLE outbox_aggregate ENABLE REPLICA TRIGGER outbox_copied;
    END IF;
    CREATE TRIGGER outbox_copied BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION outbox_copied();
    ALTER TABLE outbox ENABLE REPLICA TRIGGER outbox_copied;
    IF owner <> current_user THEN
        EXECUTE format('ALTER FUNCTION outbox_struck() OWNER TO %I', owner);
        EXECUTE format('ALTER FUNCTION outbox_copied() OWNER TO %I', owner);
    END IF;
END $$;

-- The trigger checks instead: each statement reads and sets up all constraints anew, which was nearly half of an insert.
ALTER TABLE outbox
    DROP CONSTRAINT IF EXISTS "aggregatetype must have 1 to 255 bytes",
    DROP CONSTRAINT IF EXISTS "aggregateid must have 1 to 1024 bytes",
    DROP CONSTRAINT IF EXISTS "type must have 1 to 255 bytes",
    DROP CONSTRAINT IF EXISTS "id must have 1 to 255 bytes",
    DROP CONSTRAINT IF EXISTS "give payload or payload_bytes, not both",
    DROP CONSTRAINT IF EXISTS "headers must be a JSON object of at most 65536 bytes",
    DROP CONSTRAINT IF EXISTS "created_at must be a time";

-- The trigger asks for the limit only above 4096 bytes.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM outbox_meta WHERE payload_bytes_max < 4096) THEN
        RAISE WARNING 'outbox: payload_bytes_max in outbox_meta was %, and is 4096 now: from schema 6 on it cannot be lower',
            (SELECT payload_bytes_max FROM outbox_meta);
        UPDATE outbox_meta SET payload_bytes_max = 4096;
    END IF;
    ALTER TABLE outbox_meta ADD CONSTRAINT "payload_bytes_max must be at least 4096" CHECK (payload_bytes_max >= 4096);
END $$;

-- The two functions have no SET search_path, because each row would pay for setting and resetting it. So no name in them may depend
-- on the path of whoever calls. In the text below a function that is called, an operator behind `~` and a type behind `::` are pg_catalog's,
-- and format() fills in the schema (1), its name (2), and the names of its sequences (3 to 6) and of outbox_meta (7). BETWEEN, IN, LIKE, NULLIF,
-- IS DISTINCT FROM, CASE x WHEN and the types of variables are looked up by the path as well: none of the first are used, and bigint is none.
DO $$
DECLARE
    owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'outbox'::regclass);
    here text := quote_ident(current_schema());
    -- In the order in which the server checked the constraints of these names.
    broken text := $text$CASE
        WHEN octet_length(NEW.aggregateid) ~< 1 OR octet_length(NEW.aggregateid) ~> 1024 THEN 'aggregateid must have 1 to 1024 bytes'
        WHEN octet_length(NEW.aggregatetype) ~< 1 OR octet_length(NEW.aggregatetype) ~> 255 THEN 'aggregatetype must have 1 to 255 bytes'
        WHEN NOT isfinite(NEW.created_at) THEN 'created_at must be a time'
        WHEN NEW.payload IS NOT NULL AND NEW.payload_bytes IS NOT NULL THEN 'give payload or payload_bytes, not both'
        WHEN octet_length(NEW.headers) ~> 65536 THEN 'headers must be a JSON object of at most 65536 bytes'
        WHEN json_typeof(NEW.headers::json) ~<> 'object' THEN 'headers must be a JSON object of at most 65536 bytes'
        WHEN octet_length(NEW.id) ~< 1 OR octet_length(NEW.id) ~> 255 THEN 'id must have 1 to 255 bytes'
        WHEN octet_length(NEW.type) ~< 1 OR octet_length(NEW.type) ~> 255 THEN 'type must have 1 to 255 bytes'
    END$text$;
    -- As the server reports a constraint.
    raising text := $text$RAISE EXCEPTION USING ERRCODE = 'check_violation', SCHEMA = %2$L, TABLE = 'outbox', CONSTRAINT = broken,
                MESSAGE = format('new row for relation "outbox" violates check constraint "%%s"', broken)$text$;
    sequence text := $text$
DECLARE
    latest bigint;
    bytes bigint;
    bytes_max bigint;
    broken pg_catalog.text;
BEGIN
    -- Enough for a usual event, with as few functions as can be, since each transaction sets each of them up anew. What does not pass, or is
    -- NULL, is looked at exactly.
    IF '' ~<> ALL (ARRAY[NEW.aggregatetype, NEW.aggregateid, NEW.type, NEW.id])
        AND pg_column_size(ARRAY[NEW.aggregatetype, NEW.aggregateid, NEW.type, NEW.id]) ~<= 255
        AND octet_length(NEW.payload) ~<= 4096 AND NEW.payload_bytes IS NULL AND NEW.headers IS NULL AND NEW.keyhash IS NULL
        AND isfinite(NEW.created_at)
    THEN
        NULL;
    ELSE
        bytes := COALESCE(octet_length(NEW.payload), octet_length(NEW.payload_bytes), 0);
        IF bytes ~> 4096 THEN
            SELECT m.payload_bytes_max INTO bytes_max FROM %1$s.outbox_meta AS m;
            IF bytes ~> bytes_max THEN
                RAISE EXCEPTION USING ERRCODE = 'check_violation', MESSAGE = format(
                    'outbox: the payload of %%s/%%s has %%s bytes; at most %%s are allowed: store it elsewhere and send a reference, or raise payload_bytes_max in outbox_meta',
                    NEW.aggregatetype, NEW.aggregateid, bytes, bytes_max);
            END IF;
        END IF;
        -- The table's NOT NULL says what is wrong with these.
        IF NEW.aggregatetype IS NULL OR NEW.aggregateid IS NULL OR NEW.type IS NULL OR NEW.created_at IS NULL THEN
            RETURN NEW;
        END IF;
        NEW.id := COALESCE(NEW.id, gen_random_uuid()::text);
        broken := <BROKEN>;
        IF broken IS NOT NULL THEN
            <RAISING>;
        END IF;
        NEW.keyhash := NULL;
    END IF;
    LOOP
        -- The lock that makes seq the order of the commits. It is kept to the commit and makes no new version of the row. latest is NULL if
        -- the aggregate is not on the writers' list.
        SELECT a.id, CASE WHEN a.last_seq ~<> a.drained_seq THEN a.last_seq END INTO NEW.aggregate, latest
            FROM %1$s.outbox_aggregate AS a WHERE a.key ~= (NEW.aggregatetype ~|| '/' ~|| NEW.aggregateid) FOR NO KEY UPDATE;
        EXIT WHEN NEW.aggregate IS NOT NULL;
        -- Below the number that is drawn behind the insert. The order has no last value before its first draw.
        latest := pg_sequence_last_value(%3$L::regclass) ~+ COALESCE(pg_sequence_last_value(%4$L::regclass), 0::bigint);
        EXIT WHEN latest IS NULL;
        -- All numbers up to here are delivered, if the key was there before and was forgotten.
        INSERT INTO %1$s.outbox_aggregate (key, last_seq, drained_seq)
            VALUES (NEW.aggregatetype ~|| '/' ~|| NEW.aggregateid, latest ~+ 1, latest)
            ON CONFLICT (key) DO NOTHING RETURNING id INTO NEW.aggregate;
        EXIT WHEN NEW.aggregate IS NOT NULL;
        -- Another writer inserted it at the same moment and has committed: look again.
    END LOOP;
    -- Drawn by a separate statement, after the wait for the lock.
    NEW.seq := pg_sequence_last_value(%3$L::regclass) ~+ nextval(%4$L::regclass);
    IF latest IS NULL THEN
        -- On the writers' list. What is delivered is drained_seq at most, or what the publishers' row says.
        UPDATE %1$s.outbox_aggregate AS a SET last_seq = NEW.seq WHERE a.id ~= NEW.aggregate AND a.last_seq ~< NEW.seq
            RETURNING a.drained_seq INTO latest;
    END IF;
    -- It would be no later than what is sent already, and never be sent.
    IF (NEW.seq ~> latest) IS NOT TRUE THEN
        -- Without an aggregate it was not set when this began, and may be by now.
        IF NEW.seq IS NULL OR NEW.aggregate IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = 'outbox: the sequence outbox_floor is not set, as in a copy by logical replication, which has no values of sequences: run `shardwise outbox restored`';
        END IF;
        -- From here on every event is refused: each attempt draws a number, so one of them would be above the latest, and not above others'.
        PERFORM setval(%3$L::regclass, f.last_value, false) FROM %1$s.outbox_floor AS f;
        SELECT GREATEST(a.last_seq, h.done_seq) INTO latest FROM %1$s.outbox_aggregate AS a LEFT JOIN %1$s.outbox_head AS h ON h.aggregate ~= a.id
            WHERE a.id ~= NEW.aggregate;
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = format(
            'outbox: the next sequence is %%s, and %%s/%%s has come to %%s: the sequence outbox_order fell back, as in a copy without the values of sequences: run `shardwise outbox restored`',
            NEW.seq, NEW.aggregatetype, NEW.aggregateid, latest);
    END IF;
    -- Only where a publisher sleeps. Read here, because this transaction has its number now: a publisher that falls asleep later goes on
    -- looking until the transactions with earlier numbers have ended.
    IF (pg_sequence_last_value(%5$L::regclass) ~<= pg_sequence_last_value(%6$L::regclass)) IS NOT TRUE THEN
        PERFORM pg_notify('shardwise_outbox_' ~|| %7$L::regclass::oid::text, s.last_value::text)
            FROM %1$s.outbox_asleep AS s, %1$s.outbox_woken AS w, %1$s.outbox_meta AS m WHERE s.last_value ~> w.last_value AND m.notify;
    END IF;
    RETURN NEW;
END $text$;
    checked text := $text$
DECLARE
    broken pg_catalog.text := <BROKEN>;
BEGIN
    IF broken IS NOT NULL THEN
        <RAISING>;
    END IF;
    RETURN NEW;
END $text$;
    kind text;
    body text;
BEGIN
    FOREACH kind IN ARRAY ARRAY['sequence', 'checked'] LOOP
        body := CASE kind WHEN 'sequence' THEN sequence ELSE checked END;
        body := replace(replace(body, '<BROKEN>', broken), '<RAISING>', raising);
        body := regexp_replace(body, '\m(octet_length|isfinite|json_typeof|pg_column_size|gen_random_uuid|pg_sequence_last_value|nextval|setval|pg_notify|format)\(',
            'pg_catalog.\1(', 'g');
        body := regexp_replace(body, '~(\|\||<>|<=|[-<>=+])', 'OPERATOR(pg_catalog.\1)', 'g');
        body := regexp_replace(body, '::(text|json|regclass|oid)\M', '::pg_catalog.\1', 'g');
        body := format(body, here, current_schema(), here || '.outbox_floor', here || '.outbox_order', here || '.outbox_asleep',
            here || '.outbox_woken', here || '.outbox_meta');
        EXECUTE format('CREATE OR REPLACE FUNCTION %s.outbox_%s() RETURNS trigger LANGUAGE plpgsql %s AS %L', here, kind,
            CASE kind WHEN 'sequence' THEN 'SECURITY DEFINER' ELSE '' END, body);
    END LOOP;
    IF owner <> current_user THEN
        EXECUTE format('ALTER FUNCTION outbox_checked() OWNER TO %I', owner);
    END IF;
END $$;

-- Another trigger refuses changes of the other columns.
CREATE TRIGGER outbox_checked BEFORE UPDATE OF payload, payload_bytes, headers, created_at ON outbox
    FOR EACH ROW EXECUTE FUNCTION outbox_checked();

UPDATE outbox_meta SET schema_version = 6;
