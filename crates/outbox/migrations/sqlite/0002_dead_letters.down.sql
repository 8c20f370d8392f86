-- From schema 2 back to schema 1. The record of what operators did goes; aggregates that were forgotten begin at 1 again.
DROP TRIGGER outbox_sequence;
CREATE TRIGGER outbox_sequence AFTER INSERT ON outbox
BEGIN
    INSERT INTO outbox_aggregate (key, last_seq) VALUES (NEW.aggregatetype || '/' || NEW.aggregateid, 1)
        ON CONFLICT (key) DO UPDATE SET last_seq = last_seq + 1;
    UPDATE outbox SET (aggregate, seq) =
        (SELECT a.id, a.last_seq FROM outbox_aggregate a WHERE a.key = NEW.aggregatetype || '/' || NEW.aggregateid)
        WHERE position = NEW.position;
END;

DROP INDEX outbox_slot_at;
DROP INDEX outbox_aggregate_waiting;
DROP INDEX outbox_aggregate_pending;
CREATE INDEX outbox_aggregate_pending ON outbox_aggregate (hash) WHERE done_seq < last_seq AND blocked_at IS NULL;
DROP TABLE outbox_audit;
ALTER TABLE outbox_meta DROP COLUMN seq_floor;
ALTER TABLE outbox DROP COLUMN replayed;
UPDATE outbox_meta SET schema_version = 1;
