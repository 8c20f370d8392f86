-- The journals of shardwise for SQLite 3.25 and newer: for each name of each group a list of events, counted from 1, and the latest
-- snapshot of what they lead to.
CREATE TABLE IF NOT EXISTS shardwise_journal (
    id         INTEGER PRIMARY KEY,
    group_name TEXT NOT NULL,
    name       TEXT NOT NULL,
    -- The highest epoch that was seen.
    epoch      INTEGER NOT NULL,
    -- How many events were ever appended; which of them the snapshot covers; which are deleted.
    version    INTEGER NOT NULL,
    snapshot   INTEGER NOT NULL,
    pruned     INTEGER NOT NULL,
    -- Bytes of the events after the snapshot.
    tail_bytes INTEGER NOT NULL,
    UNIQUE (group_name, name)
);
CREATE TABLE IF NOT EXISTS shardwise_journal_event (
    journal INTEGER NOT NULL REFERENCES shardwise_journal ON DELETE CASCADE,
    version INTEGER NOT NULL,
    -- Under which it was appended.
    epoch   INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (journal, version)
);
CREATE TABLE IF NOT EXISTS shardwise_journal_snapshot (
    journal INTEGER PRIMARY KEY REFERENCES shardwise_journal ON DELETE CASCADE,
    version INTEGER NOT NULL,
    state   BLOB NOT NULL
);
