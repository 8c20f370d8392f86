-- From schema 4 back to schema 3.
-- Run it in one transaction, with a search_path that leads to the outbox.
ALTER TABLE outbox_meta DROP COLUMN timeline;
UPDATE outbox_meta SET schema_version = 3;
