-- Notes, another addition to version 1: small values of groups, which outlive their members.

-- A write is a new row in the place of the old one, so `version` rises over all of them and none comes back, whatever is deleted.
CREATE TABLE note (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    group_name TEXT NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (group_name, name)
) STRICT;
