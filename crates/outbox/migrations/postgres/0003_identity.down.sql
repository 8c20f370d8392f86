-- From schema 3 back to schema 2.
-- Run it in one transaction, with a search_path that leads to the outbox.
ALTER TABLE outbox_meta DROP COLUMN outbox_id;
UPDATE outbox_meta SET schema_version = 2;
