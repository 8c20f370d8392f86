-- The outbox of shardwise, schema 1, for SQLite.
--
-- Writers use one statement, in the transaction of their own change:
--   INSERT INTO outbox (aggregatetype, aggregateid, type, payload [, id] [, headers]) VALUES (...)
-- Everything here runs inside the writer's own SQLite library, so nothing newer than version 3.24 is used.

CREATE TABLE outbox_meta (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    schema_version    INTEGER NOT NULL,
    -- The number of slots that all publishers agree on; NULL until the first one comes.
    slots             INTEGER,
    -- Above every payload an insert is refused.
    payload_bytes_max INTEGER NOT NULL DEFAULT 1048576
);
INSERT INTO outbox_meta (one, schema_version) VALUES (1, 1);

CREATE TABLE outbox (
    position      INTEGER PRIMARY KEY,
    -- A random UUID unless the writer gives one; an explicit NULL counts as not given.
    id            TEXT NOT NULL ON CONFLICT REPLACE
                  DEFAULT (lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
                      || substr('89ab', (random() & 3) + 1, 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))
                  UNIQUE,
    aggregatetype TEXT NOT NULL,
    aggregateid   TEXT NOT NULL,
    type          TEXT NOT NULL,
    payload       BLOB,
    -- A JSON object or NULL.
    headers       TEXT,
    -- Milliseconds since 1970, by the writer's clock; for people and retention, never for order.
    created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    -- The next two are the trigger's: the aggregate's row, and the place in the aggregate's commit order, from 1.
    aggregate     INTEGER,
    seq           INTEGER,
    -- Set aside (poison = "park"), when and why.
    parked_at     INTEGER,
    parked_error  TEXT,
    CONSTRAINT "aggregatetype must be text, not empty, without NUL, of at most 255 bytes"
        CHECK (typeof(aggregatetype) = 'text' AND length(CAST(aggregatetype AS BLOB)) BETWEEN 1 AND 255
               AND instr(CAST(aggregatetype AS BLOB), x'00') = 0),
    CONSTRAINT "aggregateid must be text, not empty, without NUL, of at most 1024 bytes"
        CHECK (typeof(aggregateid) = 'text' AND length(CAST(aggregateid AS BLOB)) BETWEEN 1 AND 1024
               AND instr(CAST(aggregateid AS BLOB), x'00') = 0),
    CONSTRAINT "type must be text, not empty, without NUL, of at most 255 bytes"
        CHECK (typeof(type) = 'text' AND length(CAST(type AS BLOB)) BETWEEN 1 AND 255 AND instr(CAST(type AS BLOB), x'00') = 0),
    CONSTRAINT "id must be text, not empty, of at most 255 bytes"
        CHECK (typeof(id) = 'text' AND length(CAST(id AS BLOB)) BETWEEN 1 AND 255),
    CONSTRAINT "payload must be text, a blob or NULL" CHECK (typeof(payload) IN ('text', 'blob', 'null')),
    CONSTRAINT "headers must be a JSON object of at most 65536 bytes, or NULL"
        CHECK (headers IS NULL OR (length(CAST(headers AS BLOB)) <= 65536 AND json_valid(headers) AND json_type(headers) = 'object'))
);
CREATE UNIQUE INDEX outbox_in_order ON outbox (aggregate, seq);
CREATE INDEX outbox_parked ON outbox (parked_at) WHERE parked_at IS NOT NULL;

CREATE TABLE outbox_aggregate (
    id            INTEGER PRIMARY KEY,
    -- aggregatetype || '/' || aggregateid
    key           TEXT NOT NULL UNIQUE,
    -- XXH3-64 of the key with its highest bit flipped, so that signed order is unsigned order; NULL until a publisher fills it in.
    hash          INTEGER,
    -- The newest event's seq, and up to where events are delivered or set aside.
    last_seq      INTEGER NOT NULL DEFAULT 0,
    done_seq      INTEGER NOT NULL DEFAULT 0,
    -- About the event at the head, done_seq + 1: attempts charged, sends failed in a row, since when, the last one, when next.
    attempts      INTEGER NOT NULL DEFAULT 0,
    failures      INTEGER NOT NULL DEFAULT 0,
    failing_since INTEGER,
    attempted_at  INTEGER,
    retry_at      INTEGER,
    -- Waits for an operator (poison = "block").
    blocked_at    INTEGER,
    last_error    TEXT
);
CREATE INDEX outbox_aggregate_new ON outbox_aggregate (id) WHERE hash IS NULL;
-- What makes fetching cheap: only aggregates with something to send, in the order of their hashes, so that a slot is a range.
CREATE INDEX outbox_aggregate_pending ON outbox_aggregate (hash) WHERE done_seq < last_seq AND blocked_at IS NULL;
CREATE INDEX outbox_aggregate_blocked ON outbox_aggregate (blocked_at) WHERE blocked_at IS NOT NULL;

-- Who is there. Times are CLOCK_BOOTTIME in nanoseconds and mean something only together with the boot id.
CREATE TABLE outbox_publisher (
    incarnation TEXT PRIMARY KEY,
    publisher   TEXT NOT NULL,
    boot_id     TEXT NOT NULL,
    seen_at     INTEGER NOT NULL,
    ttl         INTEGER NOT NULL
);

-- Who does what. The epoch rises with every taking and never falls.
CREATE TABLE outbox_slot (
    slot        INTEGER PRIMARY KEY,
    epoch       INTEGER NOT NULL,
    incarnation TEXT,
    hash_from   INTEGER NOT NULL,
    hash_to     INTEGER NOT NULL
);
CREATE INDEX outbox_slot_of ON outbox_slot (incarnation, slot);

CREATE TRIGGER outbox_payload_limit BEFORE INSERT ON outbox
WHEN length(CAST(NEW.payload AS BLOB)) > (SELECT payload_bytes_max FROM outbox_meta)
BEGIN
    SELECT RAISE(ABORT, 'outbox: the payload is larger than payload_bytes_max in outbox_meta: store it elsewhere and send a reference');
END;

-- Runs in the writer's transaction: whoever commits first has the smaller seq, and a rollback leaves no gap.
CREATE TRIGGER outbox_sequence AFTER INSERT ON outbox
BEGIN
    INSERT INTO outbox_aggregate (key, last_seq) VALUES (NEW.aggregatetype || '/' || NEW.aggregateid, 1)
        ON CONFLICT (key) DO UPDATE SET last_seq = last_seq + 1;
    UPDATE outbox SET (aggregate, seq) =
        (SELECT a.id, a.last_seq FROM outbox_aggregate a WHERE a.key = NEW.aggregatetype || '/' || NEW.aggregateid)
        WHERE position = NEW.position;
END;

CREATE TRIGGER outbox_fixed BEFORE UPDATE OF id, aggregatetype, aggregateid, type ON outbox
BEGIN
    SELECT RAISE(ABORT, 'outbox: id, aggregatetype, aggregateid and type of an event cannot be changed: insert another event');
END;
