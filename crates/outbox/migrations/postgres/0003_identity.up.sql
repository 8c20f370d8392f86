-- Schema 3: the outbox has an identity. Publishers show it in their records, so that two outboxes never share the slots of one group.
-- Run it in one transaction, with a search_path that leads to the outbox.

-- 128 random bits: a name is no identity, because each machine may have its own outbox of that name. Without a default in the column, adding it
-- rewrites nothing.
ALTER TABLE outbox_meta ADD COLUMN outbox_id text;

UPDATE outbox_meta SET outbox_id = replace(gen_random_uuid()::text, '-', ''), schema_version = 3;
