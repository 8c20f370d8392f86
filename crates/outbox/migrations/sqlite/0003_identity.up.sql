-- Schema 3: the outbox has an identity. Publishers show it in their records, so that two outboxes never share the slots of one group.
ALTER TABLE outbox_meta ADD COLUMN outbox_id TEXT;
-- 128 random bits: a name is no identity, because each machine may have its own outbox of that name.
UPDATE outbox_meta SET outbox_id = lower(hex(randomblob(16))), schema_version = 3;
