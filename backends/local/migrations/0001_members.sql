-- Schema 1: members and the numbers that say when something changed.

-- One row. `counter` rises with every change to any group and never falls, whatever is deleted; revisions and the numbers of
-- joining are taken from it. `store_id` tells this file from another one put in its place.
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store_id TEXT NOT NULL,
    counter INTEGER NOT NULL,
    records INTEGER NOT NULL
) STRICT;

INSERT INTO store (id, store_id, counter, records) VALUES (1, lower(hex(randomblob(16))), 0, 0);

-- One row for each group that has records. An empty group has none: its revision is then the file's `counter`, which is higher than any
-- revision the group ever had, so that rows need not be kept for groups that are gone.
CREATE TABLE member_group (
    name TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    members INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `deadline` and `previous` are nanoseconds of the boot clock and mean something only under the same `boot_id`.
-- `previous` is the deadline before the last renewal: a renewal that was carried out after it came too late.
CREATE TABLE member (
    group_name TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    joined INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    deadline INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    renewals INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (group_name, instance_id)
) STRICT, WITHOUT ROWID;

-- The triggers run inside the statement that fires them, so a change and its revision are one write.
CREATE TRIGGER member_joins AFTER INSERT ON member BEGIN
    UPDATE store SET counter = counter + 1, records = records + 1;
    INSERT INTO member_group (name, revision, members) SELECT NEW.group_name, counter, 1 FROM store WHERE true
        ON CONFLICT (name) DO UPDATE SET revision = excluded.revision, members = members + 1;
END;

-- A renewal changes neither column: a heartbeat is no news.
CREATE TRIGGER member_changes AFTER UPDATE OF record, joined ON member
WHEN OLD.record IS NOT NEW.record OR OLD.joined IS NOT NEW.joined BEGIN
    UPDATE store SET counter = counter + 1;
    UPDATE member_group SET revision = (SELECT counter FROM store) WHERE name = NEW.group_name;
END;

CREATE TRIGGER member_leaves AFTER DELETE ON member BEGIN
    UPDATE store SET counter = counter + 1, records = records - 1;
    UPDATE member_group SET revision = (SELECT counter FROM store), members = members - 1 WHERE name = OLD.group_name;
    DELETE FROM member_group WHERE name = OLD.group_name AND members <= 0;
END;
