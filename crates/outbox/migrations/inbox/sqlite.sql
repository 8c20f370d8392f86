-- A consumer's inbox for SQLite: which events it has seen. In the consumer's own database, harmless if it is there.
CREATE TABLE IF NOT EXISTS outbox_inbox (
    -- The consumer's name, so that several may share a database.
    consumer TEXT NOT NULL,
    -- The event's id.
    event    TEXT NOT NULL,
    -- Seconds since 1970.
    seen_at  INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER)),
    PRIMARY KEY (consumer, event)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS outbox_inbox_seen ON outbox_inbox (seen_at);
