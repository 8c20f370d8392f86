-- Schema 5: writers and publishers of schemas 4 and 6 side by side, for the time of an upgrade. Writers draw the sequence of an event behind
-- the aggregate's lock, from one sequence object for the whole outbox, and still count last_seq, by which publishers of schema 4 read.
-- It stops no writer and no publisher: it locks no table that writers use, and the publishers' tables for a moment. 0006 ends the upgrade.
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
    IF (SELECT schema_version FROM outbox_meta) <> 4 THEN
        RAISE EXCEPTION 'this file begins at schema 4, and the outbox is at %: run the files in their order',
            (SELECT schema_version FROM outbox_meta) USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    -- With an older snapshot it would not see what writers have committed while it waited for them.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'run this file alone in a transaction with ISOLATION LEVEL READ COMMITTED'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
END $$;

SET LOCAL statement_timeout = 0;

-- A cache would give a session its numbers before its waits.
CREATE SEQUENCE outbox_order CACHE 1;
-- The last ticket of a publisher that fell asleep, and the last one that a notification woke: with the first one above, a commit notifies.
CREATE SEQUENCE outbox_asleep MINVALUE 0 CACHE 1;
CREATE SEQUENCE outbox_woken MINVALUE 0 CACHE 1;
-- No ticket is given yet; the first one is 1.
SELECT setval('outbox_asleep', 0), setval('outbox_woken', 0);

-- Strikes aggregates off the publishers' list: those with no event behind `through`. A writer that came and went has left its event and no
-- new version of the row, so the events are looked up by a second statement, behind the locks. It sees the publishers' rows that have come
-- meanwhile as well. Without such a row, drained_seq is how far the aggregate is delivered. Returns the aggregates that are struck off.
CREATE FUNCTION outbox_strike(aggregates bigint[], through bigint[]) RETURNS SETOF bigint
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

-- Puts aggregates on the publishers' list: those that are not delivered as far as `seqs` says. From then on they are delivered as far as that
-- if `sent`, otherwise as far as they are. What is delivered is read by a statement of its own, because the caller has waited for the fence
-- since its snapshot, and another call of this publisher may have struck them off meanwhile. Returns how many rows it wrote.
CREATE FUNCTION outbox_place(aggregates bigint[], hashes bigint[], seqs bigint[], sent boolean) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    placed bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'outbox_place needs READ COMMITTED: an older snapshot would send events again' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    INSERT INTO outbox_head AS h (aggregate, hash, done_seq)
        SELECT g.id, g.hash, CASE WHEN sent THEN g.seq ELSE d.done_seq END FROM unnest(aggregates, hashes, seqs) AS g (id, hash, seq)
        CROSS JOIN LATERAL (
            SELECT coalesce(l.done_seq, a.drained_seq) AS done_seq FROM outbox_aggregate AS a LEFT JOIN outbox_head AS l ON l.aggregate = a.id
            WHERE a.id = g.id OFFSET 0
        ) AS d
        WHERE d.done_seq < g.seq
        ON CONFLICT (aggregate) DO UPDATE SET hash = excluded.hash, done_seq = excluded.done_seq, listed = true, attempts = 0, failures = 0, failing_since = NULL,
            attempted_at = NULL, retry_at = NULL, last_error = NULL
            WHERE CASE WHEN sent THEN h.done_seq < excluded.done_seq ELSE NOT h.listed END;
    GET DIAGNOSTICS placed = ROW_COUNT;
    RETURN placed;
END $$;
-- They run with the rights of their caller.
GRANT EXECUTE ON FUNCTION outbox_strike(bigint[], bigint[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION outbox_place(bigint[], bigint[], bigint[], boolean) TO PUBLIC;

DO $$
DECLARE
    owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'outbox'::regclass);
    role text;
BEGIN
    IF owner <> current_user THEN
        EXECUTE format('ALTER SEQUENCE outbox_order OWNER TO %I', owner);
        EXECUTE format('ALTER SEQUENCE outbox_asleep OWNER TO %I', owner);
        EXECUTE format('ALTER SEQUENCE outbox_woken OWNER TO %I', owner);
        EXECUTE format('ALTER FUNCTION outbox_strike(bigint[], bigint[]) OWNER TO %I', owner);
        EXECUTE format('ALTER FUNCTION outbox_place(bigint[], bigint[], bigint[], boolean) OWNER TO %I', owner);
    END IF;
    -- The publishers' roles are those that may raise the floor.
    FOR role IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_class AS c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'outbox_floor'::regclass AND a.privilege_type = 'UPDATE' AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT SELECT ON SEQUENCE outbox_order TO %s', role);
        EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE outbox_asleep, outbox_woken TO %s', role);
        EXECUTE format('GRANT INSERT ON outbox_head TO %s', role);
    END LOOP;
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

-- The publishers' table is locked only if it is free within 200 ms, again and again: behind a longer wait they would lose their leases.
DO $$
DECLARE
    highest bigint := (SELECT max(last_seq) FROM outbox_aggregate);
    deadline timestamptz := clock_timestamp() + interval '10 minutes';
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '200ms', true);
            -- Who forgets aggregates raises the floor, and holds this row meanwhile.
            PERFORM 1 FROM outbox_meta FOR UPDATE;
            LOCK TABLE outbox_publisher IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'outbox: the table outbox_publisher has been in use for 10 minutes: look for a long transaction, then run this again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
        END;
        PERFORM pg_sleep(0.05);
    END LOOP;
    PERFORM setval('outbox_floor', highest) FROM outbox_floor WHERE last_value < highest;
    -- The newest schema that the publisher knows; NULL for those that know none above 4.
    ALTER TABLE outbox_publisher ADD COLUMN schema bigint;
    UPDATE outbox_meta SET schema_version = 5;
END $$;
