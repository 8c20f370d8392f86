-- From schema 3 back to schema 2.
ALTER TABLE outbox_meta DROP COLUMN outbox_id;
UPDATE outbox_meta SET schema_version = 2;
