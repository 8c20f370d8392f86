-- Schema 2: dead letters are sent again and discarded, with a record of who did it; aggregates without events can be forgotten.
-- What runs inside the writer's own SQLite library needs nothing newer than version 3.24.

-- Heads that wait for a retry are in an index of their own, by its time: before it they cost a poll nothing. For a while 0001 had these
-- already; here they are made anew, or are there.
DROP INDEX outbox_aggregate_pending;
CREATE INDEX outbox_aggregate_pending ON outbox_aggregate (hash) WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NULL;
CREATE INDEX IF NOT EXISTS outbox_aggregate_waiting ON outbox_aggregate (retry_at)
    WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS outbox_slot_at ON outbox_slot (hash_from);

-- The sequence that the event had first, if it is sent again on an operator's word.
ALTER TABLE outbox ADD COLUMN replayed INTEGER;

-- Above every sequence of an aggregate that was forgotten.
ALTER TABLE outbox_meta ADD COLUMN seq_floor INTEGER NOT NULL DEFAULT 0;

-- What operators did, and what publishers gave up for good.
CREATE TABLE outbox_audit (
    id     INTEGER PRIMARY KEY,
    -- Milliseconds since 1970.
    at     INTEGER NOT NULL,
    who    TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('replay', 'unblock', 'replay-aggregate', 'discard', 'expire')),
    -- The event (of replay-aggregate the first one), its aggregate's key, the sequence it had then, and how many events it was about.
    event  TEXT NOT NULL,
    key    TEXT NOT NULL,
    seq    INTEGER NOT NULL,
    events INTEGER NOT NULL DEFAULT 1,
    why    TEXT NOT NULL
);
CREATE INDEX outbox_audit_at ON outbox_audit (at);

-- As in schema 1, but for a new aggregate, which begins above the floor: should it be one that was forgotten, its sequence goes on.
DROP TRIGGER outbox_sequence;
CREATE TRIGGER outbox_sequence AFTER INSERT ON outbox
BEGIN
    INSERT INTO outbox_aggregate (key, last_seq, done_seq)
        SELECT NEW.aggregatetype || '/' || NEW.aggregateid, m.seq_floor + 1, m.seq_floor FROM outbox_meta AS m WHERE true
        ON CONFLICT (key) DO UPDATE SET
            -- 0: a row that `enqueue` has just made, to have a place for the hash.
            done_seq = CASE last_seq WHEN 0 THEN excluded.done_seq ELSE done_seq END,
            last_seq = CASE last_seq WHEN 0 THEN excluded.last_seq ELSE last_seq + 1 END;
    UPDATE outbox SET (aggregate, seq) =
        (SELECT a.id, a.last_seq FROM outbox_aggregate a WHERE a.key = NEW.aggregatetype || '/' || NEW.aggregateid)
        WHERE position = NEW.position;
END;

UPDATE outbox_meta SET schema_version = 2;
