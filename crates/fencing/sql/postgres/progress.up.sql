-- The progress of shardwise for PostgreSQL 13 and newer: for each key of each group, the position from which its owner goes on.
CREATE TABLE IF NOT EXISTS shardwise_progress (
    group_name  text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    -- The highest epoch that was seen.
    epoch       bigint NOT NULL CHECK (epoch BETWEEN 1 AND 9007199254740991),
    -- How many times a position was saved.
    number      bigint NOT NULL CHECK (number BETWEEN 0 AND 9007199254740991),
    -- The latest position, by which instance it was saved, and under which epoch. NULL before the first.
    position    text,
    saved_by    text,
    saved_epoch bigint,
    PRIMARY KEY (group_name, key),
    CONSTRAINT key_within_2048_bytes CHECK (octet_length(key) <= 2048),
    CONSTRAINT position_within_4096_bytes CHECK (octet_length(position) <= 4096)
);
