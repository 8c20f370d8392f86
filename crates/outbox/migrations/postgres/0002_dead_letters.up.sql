-- Schema 2: dead letters are sent again and discarded, with a record of who did it; aggregates without events can be forgotten; heads that
-- wait for a retry cost a poll nothing; writers can tell of their commits.
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

-- For a while 0001 had these three already: where they are there, nothing is to be done.
-- Whether writers tell publishers of their commits. It makes all of them commit one after the other.
ALTER TABLE outbox_meta ADD COLUMN IF NOT EXISTS notify boolean NOT NULL DEFAULT false;
-- Columns and not the indexes' conditions, so that moving done_seq touches no index. Who waits for a retry is in an index of its own, and costs
-- a poll nothing before its time.
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'outbox_head'::regclass AND attname = 'waiting' AND NOT attisdropped) THEN
        -- Its index goes with it.
        ALTER TABLE outbox_head DROP COLUMN ready;
        ALTER TABLE outbox_head
            ADD COLUMN ready boolean GENERATED ALWAYS AS (listed AND blocked_at IS NULL AND retry_at IS NULL) STORED,
            ADD COLUMN waiting boolean GENERATED ALWAYS AS (listed AND blocked_at IS NULL AND retry_at IS NOT NULL) STORED;
    END IF;
END $$;
CREATE INDEX IF NOT EXISTS outbox_head_ready ON outbox_head (hash, aggregate) WHERE ready;
CREATE INDEX IF NOT EXISTS outbox_head_waiting ON outbox_head (retry_at) WHERE waiting;

-- The sequence that the event had first, if it is sent again on an operator's word.
ALTER TABLE outbox ADD COLUMN replayed bigint;

-- What operators did, and what publishers gave up for good.
CREATE TABLE outbox_audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    who    text NOT NULL,
    action text NOT NULL CHECK (action IN ('replay', 'unblock', 'replay-aggregate', 'discard', 'expire')),
    -- The event (of replay-aggregate the first one), its aggregate's key, the sequence it had then, and how many events it was about.
    event  text NOT NULL,
    key    text NOT NULL,
    seq    bigint NOT NULL,
    events bigint NOT NULL DEFAULT 1,
    why    text NOT NULL
);
CREATE INDEX outbox_audit_at ON outbox_audit (at);

-- Above every sequence of an aggregate that was forgotten. A sequence object and no row, because every transaction must see it at once,
-- whatever its snapshot.
CREATE SEQUENCE outbox_floor MINVALUE 0 START WITH 0;

-- The trigger's function runs with the rights of who owns it, which may be another role than the one that runs this file.
DO $$
DECLARE
    owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'outbox'::regclass);
BEGIN
    IF owner <> current_user THEN
        EXECUTE format('ALTER TABLE outbox_audit OWNER TO %I', owner);
        EXECUTE format('ALTER SEQUENCE outbox_floor OWNER TO %I', owner);
    END IF;
END $$;

-- As in schema 1, but for a new aggregate, which begins above the floor: should it be one that was forgotten, its sequence goes on.
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

UPDATE outbox_meta SET schema_version = 2;
