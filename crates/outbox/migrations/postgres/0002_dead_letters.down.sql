-- From schema 2 back to schema 1. The record of what operators did goes; aggregates that were forgotten begin at 1 again.
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

-- Runs in the writer's transaction: whoever commits first has the smaller seq, and a rollback leaves no gap.
CREATE OR REPLACE FUNCTION outbox_sequence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    bytes bigint := coalesce(octet_length(NEW.payload), octet_length(NEW.payload_bytes), 0);
    bytes_max bigint;
    drained bigint;
BEGIN
    SELECT payload_bytes_max INTO bytes_max FROM outbox_meta;
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
    INSERT INTO outbox_aggregate AS a (key, last_seq) VALUES (NEW.aggregatetype || '/' || NEW.aggregateid, 1)
        ON CONFLICT (key) DO UPDATE SET last_seq = a.last_seq + 1
        RETURNING a.id, a.last_seq, a.drained_seq INTO NEW.aggregate, NEW.seq, drained;
    IF NEW.seq = drained + 1 THEN
        INSERT INTO outbox_head AS h (aggregate, hash) VALUES (NEW.aggregate, NEW.keyhash)
            ON CONFLICT (aggregate) DO UPDATE SET listed = true, hash = coalesce(h.hash, excluded.hash);
    END IF;
    NEW.keyhash := NULL;
    RETURN NEW;
END $$;

ALTER TABLE outbox_meta DROP COLUMN notify;
-- Their indexes go with them.
ALTER TABLE outbox_head DROP COLUMN waiting, DROP COLUMN ready;
ALTER TABLE outbox_head ADD COLUMN ready boolean GENERATED ALWAYS AS (listed AND blocked_at IS NULL) STORED;
CREATE INDEX outbox_head_ready ON outbox_head (hash, aggregate) WHERE ready;
DROP SEQUENCE outbox_floor;
DROP TABLE outbox_audit;
ALTER TABLE outbox DROP COLUMN replayed;
UPDATE outbox_meta SET schema_version = 1;
