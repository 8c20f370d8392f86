-- Schema 8: a session that writes first events of aggregates expects the next one to be a first one too, and looks for the aggregate's row only if
-- inserting it fails; and ids that no writer gives sort by time, so that they go to the end of their index. Publishers of schema 7 continue.
-- It waits for the transactions that use the table, at most 10 minutes and without stopping any; then it needs the table for itself for a moment,
-- for the new default.
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
        -- Whoever uses the table at this moment, readers included, because the lock below would wait for them with all writers behind it. VACUUM
        -- gives way by itself.
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
        -- Each attempt is short, and repeated: no writer waits longer than 3 s behind one of them.
        BEGIN
            PERFORM set_config('lock_timeout', patience::bigint::text, true);
            LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE;
            PERFORM set_config('lock_timeout', '200', true);
            LOCK TABLE outbox_meta IN EXCLUSIVE MODE;
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

-- UUIDs of version 7 (RFC 9562), as a writer in Rust gives them: the time in milliseconds, the version, and random bits. A random id goes to any
-- page of the index; in a large table each is a page to read and, behind a checkpoint, to write to the log.
-- A default that is not ours any more stays.
DO $$
BEGIN
    IF (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE d.adrelid = 'outbox'::regclass AND a.attname = 'id') = '(gen_random_uuid())::text' THEN
        ALTER TABLE outbox ALTER COLUMN id SET DEFAULT (right('00000000000' || to_hex((date_part('epoch', clock_timestamp()) * 1000)::bigint), 12)
            || '7' || right(gen_random_uuid()::text, -15))::uuid::text;
    END IF;
END $$;

-- As in 0006, with what is said there about names. New: `is_new`, and a cheaper first check.
DO $$
DECLARE
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
    -- A guess, which outlives the transaction: that this session writes the first event of an aggregate again.
    is_new pg_catalog.bool := current_setting('shardwise.new_aggregates', true) ~= 'on';
BEGIN
    -- Enough for a usual event, with as few functions as can be, since each transaction sets each of them up anew. What does not pass, or is
    -- NULL, is looked at exactly.
    IF NEW.aggregatetype ~<> '' AND NEW.aggregateid ~<> '' AND NEW.type ~<> '' AND NEW.id ~<> ''
        AND octet_length(NEW.aggregatetype ~|| NEW.aggregateid ~|| NEW.type ~|| NEW.id) ~<= 255
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
        -- As by default.
        NEW.id := COALESCE(NEW.id, (right('00000000000' ~|| to_hex((date_part('epoch', clock_timestamp()) ~* 1000)::bigint), 12)
            ~|| '7' ~|| right(gen_random_uuid()::text, -15))::uuid::text);
        broken := <BROKEN>;
        IF broken IS NOT NULL THEN
            <RAISING>;
        END IF;
        NEW.keyhash := NULL;
    END IF;
    LOOP
        IF is_new IS NOT TRUE THEN
            -- The lock that makes seq the order of the commits. It is kept to the commit and makes no new version of the row. latest is NULL
            -- if the aggregate is not on the writers' list.
            SELECT a.id, CASE WHEN a.last_seq ~<> a.drained_seq THEN a.last_seq END INTO NEW.aggregate, latest
                FROM %1$s.outbox_aggregate AS a WHERE a.key ~= (NEW.aggregatetype ~|| '/' ~|| NEW.aggregateid) FOR NO KEY UPDATE;
            EXIT WHEN NEW.aggregate IS NOT NULL;
        END IF;
        -- Below the number that is drawn behind the insert. The order has no last value before its first draw.
        latest := pg_sequence_last_value(%3$L::regclass) ~+ COALESCE(pg_sequence_last_value(%4$L::regclass), 0::bigint);
        IF latest IS NULL THEN
            IF is_new THEN
                -- What the writer may have given.
                NEW.aggregate := NULL;
            END IF;
            EXIT;
        END IF;
        -- All numbers up to here are delivered, if the key was there before and was forgotten.
        INSERT INTO %1$s.outbox_aggregate (key, last_seq, drained_seq)
            VALUES (NEW.aggregatetype ~|| '/' ~|| NEW.aggregateid, latest ~+ 1, latest)
            ON CONFLICT (key) DO NOTHING RETURNING id INTO NEW.aggregate;
        IF NEW.aggregate IS NOT NULL THEN
            -- For one in 17: a right guess spares less than a wrong one costs, which ends it, so that a mixture does not pay for guesses.
            IF is_new IS NOT TRUE AND mod(latest, 17::bigint) ~= 0 THEN
                PERFORM set_config('shardwise.new_aggregates', 'on', false);
            END IF;
            EXIT;
        END IF;
        -- It was there, or another writer inserted it at the same moment and has committed: look for it.
        IF is_new THEN
            PERFORM set_config('shardwise.new_aggregates', '', false);
            is_new := false;
        END IF;
    END LOOP;
    -- Drawn by a separate statement, after the wait for the lock.
    NEW.seq := pg_sequence_last_value(%3$L::regclass) ~+ nextval(%4$L::regclass);
    IF (NEW.seq ~> latest) IS NOT TRUE THEN
        IF latest IS NULL AND NEW.aggregate IS NOT NULL THEN
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
            SELECT GREATEST(a.last_seq, h.done_seq) INTO latest
                FROM %1$s.outbox_aggregate AS a LEFT JOIN %1$s.outbox_head AS h ON h.aggregate ~= a.id WHERE a.id ~= NEW.aggregate;
            RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = format(
                'outbox: the next sequence is %%s, and %%s/%%s has come to %%s: the sequence outbox_order fell back, as in a copy without the values of sequences: run `shardwise outbox restored`',
                NEW.seq, NEW.aggregatetype, NEW.aggregateid, latest);
        END IF;
    END IF;
    -- Only where a publisher sleeps. Read here, because this transaction has its number now: a publisher that falls asleep later goes on
    -- looking until the transactions with earlier numbers have ended.
    IF (pg_sequence_last_value(%5$L::regclass) ~<= pg_sequence_last_value(%6$L::regclass)) IS NOT TRUE THEN
        PERFORM pg_notify('shardwise_outbox_' ~|| %7$L::regclass::oid::text, s.last_value::text)
            FROM %1$s.outbox_asleep AS s, %1$s.outbox_woken AS w, %1$s.outbox_meta AS m WHERE s.last_value ~> w.last_value AND m.notify;
    END IF;
    RETURN NEW;
END $text$;
    body text;
BEGIN
    body := replace(replace(sequence, '<BROKEN>', broken), '<RAISING>', raising);
    body := regexp_replace(body,
        '\m(octet_length|isfinite|json_typeof|gen_random_uuid|right|to_hex|date_part|clock_timestamp|mod|pg_sequence_last_value|nextval|setval|'
            || 'pg_notify|format|current_setting|set_config)\(',
        'pg_catalog.\1(', 'g');
    body := regexp_replace(body, '~(\|\||<>|<=|[-<>=+*])', 'OPERATOR(pg_catalog.\1)', 'g');
    body := regexp_replace(body, '::(text|json|regclass|oid|uuid)\M', '::pg_catalog.\1', 'g');
    body := format(body, here, current_schema(), here || '.outbox_floor', here || '.outbox_order', here || '.outbox_asleep',
        here || '.outbox_woken', here || '.outbox_meta');
    EXECUTE format('CREATE OR REPLACE FUNCTION %s.outbox_sequence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS %L', here, body);
END $$;

UPDATE outbox_meta SET schema_version = 8;
