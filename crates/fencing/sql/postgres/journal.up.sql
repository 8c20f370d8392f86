-- The journals of shardwise for PostgreSQL 13 and newer: for each name of each group a list of events, counted from 1, and the latest
-- snapshot of what they lead to.
CREATE TABLE IF NOT EXISTS shardwise_journal (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    -- The highest epoch that was seen.
    epoch      bigint NOT NULL,
    -- How many events were ever appended; which of them the snapshot covers; which are deleted.
    version    bigint NOT NULL,
    snapshot   bigint NOT NULL,
    pruned     bigint NOT NULL,
    -- Bytes of the events after the snapshot.
    tail_bytes bigint NOT NULL,
    UNIQUE (group_name, name)
);
CREATE TABLE IF NOT EXISTS shardwise_journal_event (
    journal bigint NOT NULL REFERENCES shardwise_journal ON DELETE CASCADE,
    version bigint NOT NULL,
    -- Under which it was appended.
    epoch   bigint NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (journal, version)
);
CREATE TABLE IF NOT EXISTS shardwise_journal_snapshot (
    journal bigint PRIMARY KEY REFERENCES shardwise_journal ON DELETE CASCADE,
    version bigint NOT NULL,
    state   bytea NOT NULL
);
