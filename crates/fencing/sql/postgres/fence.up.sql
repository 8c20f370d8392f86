-- The fences of shardwise for PostgreSQL 13 and newer: the highest epoch that was seen, for each resource of each group.
-- It stands in the database that is written to, because only there can it refuse a write.
CREATE TABLE IF NOT EXISTS shardwise_fence (
    group_name text COLLATE "C" NOT NULL,
    -- 'slot/17' or 'name/' and the name.
    resource   text COLLATE "C" NOT NULL,
    epoch      bigint NOT NULL CHECK (epoch BETWEEN 1 AND 9007199254740991),
    PRIMARY KEY (group_name, resource)
);
