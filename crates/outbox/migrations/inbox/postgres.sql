-- A consumer's inbox for PostgreSQL: which events it has seen. In the consumer's own database, harmless if it is there.
CREATE TABLE IF NOT EXISTS outbox_inbox (
    -- The consumer's name, so that several may share a database.
    consumer text COLLATE "C" NOT NULL,
    -- The event's id.
    event    text COLLATE "C" NOT NULL,
    seen_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event)
);
CREATE INDEX IF NOT EXISTS outbox_inbox_seen ON outbox_inbox (seen_at);
