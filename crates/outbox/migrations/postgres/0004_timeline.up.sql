-- Schema 4: the outbox remembers on which server and timeline publishers came first, so that they notice a failover or a restored copy.
-- Run it in one transaction, with a search_path that leads to the outbox.

-- `system identifier/timeline` as of the first publisher, or of the last `shardwise outbox restored`; NULL until then.
ALTER TABLE outbox_meta ADD COLUMN timeline text;

UPDATE outbox_meta SET schema_version = 4;
