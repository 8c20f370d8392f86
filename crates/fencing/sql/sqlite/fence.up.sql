-- The fences of shardwise for SQLite 3.24 and newer: the highest epoch that was seen, for each resource of each group.
-- It stands in the file that is written to, because only there can it refuse a write.
CREATE TABLE IF NOT EXISTS shardwise_fence (
    group_name TEXT NOT NULL,
    -- 'slot/17' or 'name/' and the name.
    resource   TEXT NOT NULL,
    epoch      INTEGER NOT NULL CHECK (typeof(epoch) = 'integer' AND epoch BETWEEN 1 AND 9007199254740991),
    PRIMARY KEY (group_name, resource)
) WITHOUT ROWID;
