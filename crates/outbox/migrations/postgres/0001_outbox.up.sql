-- The outbox of shardwise, schema 1, for PostgreSQL 13 and newer. Run it in one transaction, in the schema where the tables shall be.
--
-- Writers use one statement, in the transaction of their own change:
--   INSERT INTO outbox (aggregatetype, aggregateid, type, payload [, id] [, headers]) VALUES (...)
-- and need no more than: GRANT INSERT ON outbox TO writer;

-- The triggers run with their owner's rights, so the names in them must not lead anywhere else: only to this schema, and last to pg_temp.
SELECT set_config('search_path', coalesce(quote_ident(current_schema()), 'none') || ', pg_temp', true);
DO $$
BEGIN
    IF current_schema() IS NULL THEN
        RAISE EXCEPTION 'the search_path leads to no schema: create one, or name another' USING ERRCODE = 'invalid_schema_name';
    END IF;
    IF current_setting('search_path') NOT LIKE '%, pg_temp' THEN
        RAISE EXCEPTION 'run this file in one transaction, such as with psql --single-transaction';
    END IF;
END $$;

CREATE TABLE outbox_meta (
    one               boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version    bigint NOT NULL,
    -- The number of slots that all publishers agree on; NULL until the first one comes.
    slots             bigint,
    -- Above every payload an insert is refused.
    payload_bytes_max bigint NOT NULL DEFAULT 1048576
);
INSERT INTO outbox_meta (schema_version) VALUES (1);

CREATE TABLE outbox (
    position      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- A random UUID unless the writer gives one; an explicit NULL counts as not given.
    id            text COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text UNIQUE,
    aggregatetype text NOT NULL,
    aggregateid   text NOT NULL,
    type          text NOT NULL,
    -- Text, as it was written: JSON keeps its order of keys and its numbers.
    payload       text,
    -- A payload that is no text. One of the two at most.
    payload_bytes bytea,
    -- A JSON object or NULL.
    headers       text,
    -- For people and retention, never for order.
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The next two are the trigger's: the aggregate's row, and the place in the aggregate's commit order, from 1.
    aggregate     bigint,
    seq           bigint,
    -- The key's hash if the writer can compute it, for a new aggregate; the trigger moves it to its row. Others leave it alone.
    keyhash       bigint,
    -- Set aside (poison = "park"), when and why.
    parked_at     timestamptz,
    parked_error  text,
    CONSTRAINT "aggregatetype must have 1 to 255 bytes" CHECK (octet_length(aggregatetype) BETWEEN 1 AND 255),
    CONSTRAINT "aggregateid must have 1 to 1024 bytes" CHECK (octet_length(aggregateid) BETWEEN 1 AND 1024),
    CONSTRAINT "type must have 1 to 255 bytes" CHECK (octet_length(type) BETWEEN 1 AND 255),
    CONSTRAINT "id must have 1 to 255 bytes" CHECK (octet_length(id) BETWEEN 1 AND 255),
    CONSTRAINT "give payload or payload_bytes, not both" CHECK (payload IS NULL OR payload_bytes IS NULL),
    CONSTRAINT "headers must be a JSON object of at most 65536 bytes"
        CHECK (headers IS NULL OR (octet_length(headers) <= 65536 AND json_typeof(headers::json) = 'object')),
    CONSTRAINT "created_at must be a time" CHECK (isfinite(created_at))
);
CREATE UNIQUE INDEX outbox_in_order ON outbox (aggregate, seq);
CREATE INDEX outbox_parked ON outbox (parked_at) WHERE parked_at IS NOT NULL;

-- An aggregate has two rows, because no publisher may wait for a writer whose transaction stays open. This one is the writers': its lock makes
-- seq the order of the commits. Publishers change it only while no writer has it, to say that everything is delivered.
CREATE TABLE outbox_aggregate (
    id          bigint GENERATED ALWAYS AS IDENTITY (CACHE 32) PRIMARY KEY,
    -- aggregatetype || '/' || aggregateid
    key         text COLLATE "C" NOT NULL UNIQUE,
    -- The newest event's seq.
    last_seq    bigint NOT NULL DEFAULT 0,
    -- The newest event's seq when publishers struck the aggregate off their list; the next event puts it on again.
    drained_seq bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);

-- And this one is the publishers': where delivery stands. A writer changes it only to put an aggregate on the list, and while that is not
-- committed no publisher looks at it.
CREATE TABLE outbox_head (
    aggregate     bigint PRIMARY KEY,
    -- XXH3-64 of the key with its highest bit flipped, so that signed order is unsigned order; NULL until a publisher computes it.
    hash          bigint,
    -- On the publishers' list: there may be something to deliver.
    listed        boolean NOT NULL DEFAULT true,
    -- Up to where events are delivered or set aside.
    done_seq      bigint NOT NULL DEFAULT 0,
    -- About the event at the head, done_seq + 1: attempts charged, sends failed in a row, since when, the last one, when next.
    attempts      bigint NOT NULL DEFAULT 0,
    failures      bigint NOT NULL DEFAULT 0,
    failing_since timestamptz,
    attempted_at  timestamptz,
    retry_at      timestamptz,
    -- Waits for an operator (poison = "block").
    blocked_at    timestamptz,
    last_error    text,
    -- A column and not the index's condition, so that moving done_seq touches no index.
    ready         boolean GENERATED ALWAYS AS (listed AND blocked_at IS NULL) STORED
) WITH (fillfactor = 70);
CREATE INDEX outbox_head_new ON outbox_head (aggregate) WHERE hash IS NULL;
-- What makes fetching cheap: only aggregates with something to send, in the order of their hashes, so that a slot is a range.
CREATE INDEX outbox_head_ready ON outbox_head (hash, aggregate) WHERE ready;
CREATE INDEX outbox_head_blocked ON outbox_head (blocked_at) WHERE blocked_at IS NOT NULL;

-- Who is there, by the clock of outbox_now().
CREATE TABLE outbox_publisher (
    incarnation text COLLATE "C" PRIMARY KEY,
    publisher   text NOT NULL,
    seen_at     timestamptz NOT NULL,
    ttl         interval NOT NULL
) WITH (fillfactor = 50);

-- Who does what. The epoch rises with every taking and never falls.
CREATE TABLE outbox_slot (
    slot        bigint PRIMARY KEY,
    epoch       bigint NOT NULL,
    incarnation text COLLATE "C",
    hash_from   bigint NOT NULL,
    hash_to     bigint NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX outbox_slot_of ON outbox_slot (incarnation, slot);

-- The fence's clock: when the statement came here, however long it then waits for a lock.
CREATE FUNCTION outbox_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT pg_catalog.statement_timestamp()';

-- Runs in the writer's transaction: whoever commits first has the smaller seq, and a rollback leaves no gap.
CREATE FUNCTION outbox_sequence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
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
CREATE TRIGGER outbox_sequence BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION outbox_sequence();

CREATE FUNCTION outbox_fixed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: id, aggregatetype, aggregateid and type of an event cannot be changed: insert another event'
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER outbox_fixed BEFORE UPDATE OF id, aggregatetype, aggregateid, type, aggregate, seq ON outbox
    FOR EACH ROW EXECUTE FUNCTION outbox_fixed();

-- The inserting role needs no right on the trigger's function, and no other role may run it.
REVOKE ALL ON FUNCTION outbox_sequence() FROM PUBLIC;
