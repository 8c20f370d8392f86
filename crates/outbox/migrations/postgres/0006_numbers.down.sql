-- From schema 6 back to schema 5. It stops nobody. Publishers of schema 4 stay shut out until 0005 is undone, because last_seq is exact again
-- only then.
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
        -- Somebody else may insert it at the same moment: then this waits, and locks that row.
        INSERT INTO outbox_aggregate AS a (key, last_seq) VALUES (NEW.aggregatetype || '/' || NEW.aggregateid, 1)
            ON CONFLICT (key) DO UPDATE SET last_seq = a.last_seq
            RETURNING a.id, a.last_seq, a.drained_seq, a.xmax = '0'::xid INTO NEW.aggregate, latest, drained, is_new;
    END IF;
    -- Drawn by a statement of its own, behind the wait for the lock. Writers of schema 4 count by themselves, and may have come further than
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
