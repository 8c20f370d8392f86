-- Claims, beside the members of schema 1. A program that knows only schema 1 can go on using the file, so `user_version` stays 1: the
-- triggers end a member's claims whoever deletes its record.

-- One row for each row of `member_group`, made and deleted with it. `changed` is the number of the last change to its claims.
CREATE TABLE claim_group (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    changed INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO claim_group (name) SELECT name FROM member_group;

CREATE TRIGGER group_begins AFTER INSERT ON member_group BEGIN
    INSERT INTO claim_group (name) VALUES (NEW.name) ON CONFLICT (name) DO NOTHING;
END;

CREATE TRIGGER group_ends AFTER DELETE ON member_group BEGIN
    DELETE FROM claim_group WHERE name = OLD.name;
END;

-- What is held, by whom (`member.joined`, which is another one for each life of a member), and under which epoch. `resource` is a slot as a
-- number or a name as text. `number` is the file's counter as the acquisition left it; the epoch is that above the group's floor.
-- Rows come and go, and are never changed.
CREATE TABLE claim (
    group_id INTEGER NOT NULL,
    resource ANY NOT NULL CHECK (CASE typeof(resource) WHEN 'integer' THEN resource BETWEEN 0 AND 65535 WHEN 'text' THEN resource <> '' END IS 1),
    holder INTEGER NOT NULL,
    number INTEGER NOT NULL CHECK (number BETWEEN 1 AND 9007199254740991),
    epoch INTEGER NOT NULL CHECK (epoch BETWEEN 1 AND 9007199254740991),
    PRIMARY KEY (group_id, resource)
) STRICT, WITHOUT ROWID;

CREATE INDEX claim_by_holder ON claim (holder, number);
CREATE INDEX member_by_joined ON member (joined);

-- What has come free lately, so that whoever knows the claims up to some number learns the rest without reading all.
CREATE TABLE claim_end (
    number INTEGER PRIMARY KEY,
    group_id INTEGER NOT NULL,
    resource ANY NOT NULL
) STRICT;

-- Groups whose epochs somebody has lifted. They outlive their members.
CREATE TABLE claim_floor (
    group_name TEXT PRIMARY KEY,
    floor INTEGER NOT NULL CHECK (floor BETWEEN 0 AND 4503599627370496)
) STRICT, WITHOUT ROWID;

-- Once for all rows of an acquisition, which have one number.
CREATE TRIGGER claim_begins AFTER INSERT ON claim WHEN NEW.number > (SELECT counter FROM store) BEGIN
    UPDATE store SET counter = NEW.number;
    UPDATE claim_group SET changed = NEW.number WHERE id = NEW.group_id;
END;

CREATE TRIGGER claim_is_kept_as_it_is BEFORE UPDATE ON claim BEGIN
    SELECT raise(ABORT, 'claims are inserted and deleted, never changed');
END;

-- The latest 131,072 numbers are kept: twice what one call can release.
CREATE TRIGGER claim_ends AFTER DELETE ON claim BEGIN
    UPDATE store SET counter = counter + 1;
    INSERT INTO claim_end (number, group_id, resource) SELECT counter, OLD.group_id, OLD.resource FROM store;
    DELETE FROM claim_end WHERE number <= (SELECT counter FROM store) - 131072;
    UPDATE claim_group SET changed = (SELECT counter FROM store) WHERE id = OLD.group_id;
END;

CREATE TRIGGER claimant_leaves AFTER DELETE ON member BEGIN
    DELETE FROM claim WHERE holder = OLD.joined;
END;

-- Registered again after its former record had died, by the same incarnation or another one.
CREATE TRIGGER claimant_lives_anew AFTER UPDATE OF joined ON member WHEN OLD.joined IS NOT NEW.joined BEGIN
    DELETE FROM claim WHERE holder = OLD.joined;
END;
