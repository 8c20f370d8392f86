-- The progress of shardwise for SQLite 3.24 and newer: for each key of each group, the position from which its owner goes on.
CREATE TABLE IF NOT EXISTS shardwise_progress (
    group_name  TEXT NOT NULL,
    key         TEXT NOT NULL,
    -- The highest epoch that was seen.
    epoch       INTEGER NOT NULL CHECK (typeof(epoch) = 'integer' AND epoch BETWEEN 1 AND 9007199254740991),
    -- How many times a position was saved.
    number      INTEGER NOT NULL CHECK (typeof(number) = 'integer' AND number BETWEEN 0 AND 9007199254740991),
    -- The latest position, by which instance it was saved, and under which epoch. NULL before the first.
    position    TEXT,
    saved_by    TEXT,
    saved_epoch INTEGER,
    PRIMARY KEY (group_name, key),
    CONSTRAINT key_within_2048_bytes CHECK (length(CAST(key AS BLOB)) <= 2048),
    CONSTRAINT position_within_4096_bytes CHECK (length(CAST(position AS BLOB)) <= 4096)
) WITHOUT ROWID;
