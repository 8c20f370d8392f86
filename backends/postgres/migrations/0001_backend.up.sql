-- The tables in which workers of shardwise meet, schema 1, for PostgreSQL 13 and newer. Run it in one transaction, with a search_path that
-- leads to a schema that has nothing else, such as `SET LOCAL search_path = shardwise`.

CREATE TABLE store (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version bigint NOT NULL,
    -- Distinguishes these tables from others that are made in their place.
    store_id       text NOT NULL
);
INSERT INTO store (schema_version, store_id) VALUES (1, replace(gen_random_uuid()::text, '-', ''));

-- One row for each group that ever had a member, a claim or a floor. It outlives its members, because its numbers must not begin anew. A
-- change locks this row first, so changes are committed in the order of their numbers. A renewal does not.
CREATE TABLE member_group (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name      text COLLATE "C" NOT NULL UNIQUE,
    -- The number of the last change, of members or of claims.
    counter   bigint NOT NULL DEFAULT 0,
    -- That of the last change of a member, and of the last acquisition or release.
    revision  bigint NOT NULL DEFAULT 0,
    claimed   bigint NOT NULL DEFAULT 0,
    -- Departures and released names are deleted up to this number: who knows less reads everything.
    trimmed   bigint NOT NULL DEFAULT 0,
    -- The highest beat of a record that was deleted: a new record begins above it.
    beats     bigint NOT NULL DEFAULT 0,
    -- The group's store of claims; NULL until the first member claims.
    claims_id text,
    -- Every epoch is above it.
    floor     bigint NOT NULL DEFAULT 0 CHECK (floor BETWEEN 0 AND 4503599627370496),
    -- `system identifier/timeline` of the server as of the time when the store of claims was made, or when its floor was last raised.
    history   text
) WITH (fillfactor = 50);

-- A member is a row, and a renewal raises its beat. Nothing here says when a lease ends: each observer measures that with its own clock.
CREATE TABLE member (
    group_id    bigint NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    incarnation text NOT NULL,
    -- The number of the change that made this life of the member; claims refer to it.
    joined      bigint NOT NULL,
    -- The number of its last change.
    changed     bigint NOT NULL,
    beat        bigint NOT NULL,
    ttl_ms      bigint NOT NULL CHECK (ttl_ms > 0),
    away        boolean NOT NULL,
    -- The process that wrote it last, and which of its calls that was: a call that arrives late changes nothing.
    writer      bigint NOT NULL,
    call        bigint NOT NULL,
    record      text NOT NULL,
    -- For people, by the server's clock.
    renewed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, instance_id)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX member_by_life ON member (group_id, joined);
CREATE INDEX member_by_change ON member (group_id, changed);

-- Lives that ended, so that readers learn of them by number.
CREATE TABLE departure (
    group_id    bigint NOT NULL,
    changed     bigint NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    incarnation text NOT NULL,
    joined      bigint NOT NULL,
    writer      bigint NOT NULL,
    call        bigint NOT NULL,
    PRIMARY KEY (group_id, changed, instance_id)
);
CREATE INDEX departure_by_member ON departure (group_id, instance_id);

-- A slot or a name, and the life of a member that acquired it last. It is held as long as that life has a row in `member`. A transaction of
-- the user's own may hold the row FOR SHARE, so a member's end does not touch it.
CREATE TABLE claim (
    group_id bigint NOT NULL,
    -- A slot, and then no name; or -1 and a name.
    slot     integer NOT NULL DEFAULT -1,
    name     text COLLATE "C" NOT NULL DEFAULT '',
    -- `member.joined`; NULL after a release.
    holder   bigint,
    epoch    bigint NOT NULL CHECK (epoch BETWEEN 1 AND 9007199254740991),
    -- The number of its last change.
    changed  bigint NOT NULL,
    PRIMARY KEY (group_id, slot, name),
    CONSTRAINT "a claim is for a slot or a name" CHECK (CASE WHEN name = '' THEN slot BETWEEN 0 AND 65535 ELSE slot = -1 END)
) WITH (fillfactor = 70);
CREATE INDEX claim_by_change ON claim (group_id, changed);
CREATE INDEX claim_released_names ON claim (group_id, changed) WHERE holder IS NULL AND name <> '';

-- Small values of groups, which outlive their members.
CREATE TABLE note (
    group_name text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    text       text NOT NULL,
    PRIMARY KEY (group_name, name)
);

-- A row for each process that observes others, to find out whether the database takes writes.
CREATE TABLE observer (
    id      bigint PRIMARY KEY,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
