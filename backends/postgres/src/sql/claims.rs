//! Statements of claims. A claim is a row that names the life of its holder; it is held as long as that life has a row in `member`. Lists
//! of slots go in as one array and lists of names as another.

use shardwise_core::{ClaimName, ClaimStore, Epoch, GroupName, Resource, SLOTS_MAX, StoreId};
use shardwise_discovery::RecordId;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::literal::{joined, numbers, text, texts};
use super::position::LogPosition;
use super::{BEGIN, POSITION, Schema, id_of, lock, make_group, signed};
use crate::answers::Answers;

/// In the column `slot` of a name.
const NO_SLOT: i32 = -1;

/// The server and its timeline, as the group's row remembers them.
const HISTORY: &str =
    "(SELECT c.system_identifier FROM pg_control_system() AS c)::text || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)";

/// What is known of the store of claims before an acquisition.
pub(crate) struct KnownStore {
    pub(crate) store: ClaimStore,
    /// How far the server's log was on the disk when this process looked last.
    pub(crate) lsn: u64,
}

/// The resources as rows of a slot and a name, for a FROM clause.
fn rows_of<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> String {
    let (mut slots, mut names) = (Vec::new(), Vec::new());
    for resource in resources {
        match resource {
            Resource::Slot(slot) => slots.push(i64::from(*slot)),
            Resource::Name(name) => names.push(name.as_str()),
        }
    }
    let (slots, names) = (joined(slots), texts(names));
    format!("SELECT unnest('{{{slots}}}'::integer[]) AS slot, '' AS name UNION ALL SELECT {NO_SLOT}, unnest({names})")
}

/// Takes what is free of `wanted`, if the record lives and the store is the one in force. A row that another transaction has locked is left
/// alone. For each resource a row comes back, and then one with the state of store and record.
pub(crate) fn acquire(schema: &Schema, record_id: &RecordId, known: &KnownStore, wanted: &[Resource]) -> String {
    let RecordId { group, instance_id, incarnation } = record_id;
    let (name, notify) = (text(group.as_str()), schema.notify(group));
    let (lock, group_id, standing) = (lock(schema, &name), id_of(schema, &name), standing(schema, record_id));
    let (id, incarnation) = (text(instance_id.as_str()), text(&incarnation.to_string()));
    let (store, floor) = (text(&known.store.id.to_string()), signed(known.store.floor));
    let (lsn, wanted, epoch_max) = (signed(known.lsn), rows_of(wanted), Epoch::MAX);
    format!(
        "{BEGIN} {lock}
        SELECT 1 FROM {schema}.member AS m
        WHERE m.group_id = {group_id} AND m.instance_id = {id} AND m.incarnation = {incarnation} FOR KEY SHARE;
        WITH here AS MATERIALIZED (
            SELECT g.id, g.counter + 1 AS number, g.counter + 1 + g.floor AS epoch FROM {schema}.member_group AS g
            WHERE g.name = {name} AND g.claims_id = {store} AND g.floor = {floor} AND g.history = {HISTORY} AND current_setting('fsync') = 'on'
                AND (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint >= {lsn} AND g.counter + 1 + g.floor <= {epoch_max}
        ), me AS MATERIALIZED (
            SELECT m.joined FROM here AS h JOIN {schema}.member AS m ON m.group_id = h.id
            WHERE m.instance_id = {id} AND m.incarnation = {incarnation} AND NOT m.away
        ), wanted AS MATERIALIZED (
            {wanted}
        ), there AS MATERIALIZED (
            SELECT w.slot, w.name, c.ctid AS place, c.epoch, m.joined AS holder FROM here AS h CROSS JOIN wanted AS w
            LEFT JOIN {schema}.claim AS c ON c.group_id = h.id AND c.slot = w.slot AND c.name = w.name
            LEFT JOIN {schema}.member AS m ON m.group_id = h.id AND m.joined = c.holder
        ), free AS MATERIALIZED (
            SELECT c.ctid AS place FROM me CROSS JOIN there AS t JOIN {schema}.claim AS c ON c.ctid = t.place
            WHERE t.holder IS NULL
            FOR NO KEY UPDATE OF c SKIP LOCKED
        ), taken AS (
            UPDATE {schema}.claim AS c SET holder = me.joined, epoch = h.epoch, changed = h.number FROM here AS h, me, free AS f
            WHERE c.ctid = f.place
            RETURNING c.slot, c.name, c.epoch
        ), made AS (
            INSERT INTO {schema}.claim AS c (group_id, slot, name, holder, epoch, changed)
            SELECT h.id, t.slot, t.name, me.joined, h.epoch, h.number FROM here AS h CROSS JOIN me CROSS JOIN there AS t
            WHERE t.place IS NULL
            ON CONFLICT DO NOTHING
            RETURNING c.slot, c.name, c.epoch
        ), granted AS (
            SELECT * FROM taken UNION ALL SELECT * FROM made
        ), raised AS (
            UPDATE {schema}.member_group AS g SET counter = h.number, claimed = h.number FROM here AS h
            WHERE g.id = h.id AND EXISTS (SELECT 1 FROM granted)
        ), notified AS (
            SELECT {notify} FROM here AS h WHERE EXISTS (SELECT 1 FROM granted)
        )
        SELECT r.slot, r.name, max(r.epoch) AS epoch, max(r.holder) AS holder, (SELECT count(*) FROM notified) AS notified FROM (
            SELECT t.slot, t.name, CASE WHEN t.holder = me.joined THEN t.epoch END AS epoch,
                CASE WHEN t.holder <> me.joined THEN t.holder END AS holder
            FROM me CROSS JOIN there AS t
            UNION ALL SELECT n.slot, n.name, n.epoch, NULL::bigint FROM granted AS n
        ) AS r
        GROUP BY r.slot, r.name;
        {standing}"
    )
}

/// The state of the group's store of claims, and of a record.
fn standing(schema: &Schema, record_id: &RecordId) -> String {
    let RecordId { group, instance_id, incarnation } = record_id;
    let (name, id, incarnation) = (text(group.as_str()), text(instance_id.as_str()), text(&incarnation.to_string()));
    format!(
        "SELECT s.store_id, {POSITION}, g.claims_id, coalesce(g.floor, 0) AS floor, coalesce(g.counter, 0) AS counter, g.history,
            {HISTORY} AS present, current_setting('fsync') = 'on' AS is_durable,
            EXISTS (
                SELECT 1 FROM {schema}.member AS m WHERE m.group_id = g.id AND m.instance_id = {id}
                    AND m.incarnation = {incarnation} AND NOT m.away
            ) AS is_alive
        FROM {schema}.store AS s LEFT JOIN {schema}.member_group AS g ON g.name = {name} WHERE s.one"
    )
}

/// One resource's answer.
pub(crate) struct ClaimAnswer {
    pub(crate) resource: Resource,
    /// The asker holds it under this epoch.
    pub(crate) epoch: Option<Epoch>,
    /// The life of another member that holds it.
    pub(crate) holder: Option<i64>,
}

/// The state of a store of claims, and of the record for which it was read.
pub(crate) struct StoreStanding {
    pub(crate) position: LogPosition,
    /// `None`: no store was made yet.
    pub(crate) store: Option<ClaimStore>,
    pub(crate) counter: u64,
    /// The server and its timeline, as of the making of the store and at present.
    pub(crate) history: String,
    pub(crate) present: String,
    /// Whether the server flushes to the disk.
    pub(crate) is_durable: bool,
    pub(crate) is_alive: bool,
}

impl StoreStanding {
    /// Reads the last row; `None` if the table `store` is empty, or an id is none.
    pub(crate) fn read(answers: &Answers) -> sqlx::Result<Option<Self>> {
        let Some(row) = answers.last().first() else { return Ok(None) };
        let floor = super::unsigned(row, "floor")?;
        let store = match row.try_get::<Option<String>, _>("claims_id")? {
            None => None,
            Some(id) => match StoreId::from_hex(&id) {
                Some(id) => Some(ClaimStore { id, floor }),
                None => return Ok(None),
            },
        };
        Ok(Some(Self {
            position: LogPosition::read(row)?,
            store,
            counter: super::unsigned(row, "counter")?,
            history: row.try_get::<Option<String>, _>("history")?.unwrap_or_default(),
            present: row.try_get("present")?,
            is_durable: row.try_get("is_durable")?,
            is_alive: row.try_get("is_alive")?,
        }))
    }
}

/// The answers to an acquisition; an error is a row that is no claim, with its reason.
pub(crate) fn read_acquired(answers: &Answers) -> sqlx::Result<Result<Vec<ClaimAnswer>, String>> {
    let mut read = Vec::new();
    for row in answers.before_last(1) {
        let resource = match resource_of(row)? {
            Ok(resource) => resource,
            Err(why) => return Ok(Err(why)),
        };
        let epoch = match row.try_get::<Option<i64>, _>("epoch")?.map(|epoch| Epoch::new(epoch.unsigned_abs())).transpose() {
            Ok(epoch) => epoch,
            Err(error) => return Ok(Err(format!("of {resource}: {error}"))),
        };
        read.push(ClaimAnswer { resource, epoch, holder: row.try_get("holder")? });
    }
    Ok(Ok(read))
}

/// The resource of a row, or why it is none.
pub(crate) fn resource_of(row: &PgRow) -> sqlx::Result<Result<Resource, String>> {
    let (slot, name): (i32, String) = (row.try_get("slot")?, row.try_get("name")?);
    Ok(match (u32::try_from(slot), name.as_str()) {
        (Ok(slot), "") if slot < SLOTS_MAX => Ok(Resource::Slot(slot)),
        (Err(_), name) if slot == NO_SLOT => ClaimName::new(name).map(Resource::Name).map_err(|error| error.to_string()),
        _ => Err(format!("slot {slot} and name {name:?} are not a claim")),
    })
}

/// Gives back what the record holds under these epochs. One row says how many of them another transaction has locked: they stay held.
pub(crate) fn release(schema: &Schema, record_id: &RecordId, held: &[(Resource, Epoch)]) -> String {
    let RecordId { group, instance_id, incarnation } = record_id;
    let (name, notify) = (text(group.as_str()), schema.notify(group));
    let (lock, group_id) = (lock(schema, &name), id_of(schema, &name));
    let (id, incarnation) = (text(instance_id.as_str()), text(&incarnation.to_string()));
    let (mut slots, mut names) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for (resource, epoch) in held {
        match resource {
            Resource::Slot(slot) => (slots.0.push(i64::from(*slot)), slots.1.push(signed(epoch.get()))),
            Resource::Name(name) => (names.0.push(name.as_str()), names.1.push(signed(epoch.get()))),
        };
    }
    let (slots, slot_epochs, names, name_epochs) = (numbers(slots.0), numbers(slots.1), texts(names.0), numbers(names.1));
    format!(
        "{BEGIN} {lock}
        WITH me AS MATERIALIZED (
            SELECT g.id, g.counter + 1 AS number, m.joined FROM {schema}.member_group AS g CROSS JOIN {schema}.member AS m
            WHERE g.name = {name} AND m.group_id = {group_id} AND m.instance_id = {id} AND m.incarnation = {incarnation}
        ), given AS MATERIALIZED (
            SELECT s.slot::integer AS slot, '' AS name, s.epoch FROM unnest({slots}, {slot_epochs}) AS s (slot, epoch)
            UNION ALL SELECT {NO_SLOT}, n.name, n.epoch FROM unnest({names}, {name_epochs}) AS n (name, epoch)
        ), held AS MATERIALIZED (
            SELECT c.ctid AS place FROM me CROSS JOIN given AS w
            JOIN {schema}.claim AS c ON c.group_id = me.id AND c.slot = w.slot AND c.name = w.name
            WHERE c.holder = me.joined AND c.epoch = w.epoch
        ), free AS MATERIALIZED (
            SELECT c.ctid AS place FROM held AS w JOIN {schema}.claim AS c ON c.ctid = w.place
            FOR NO KEY UPDATE OF c SKIP LOCKED
        ), released AS (
            UPDATE {schema}.claim AS c SET holder = NULL, changed = me.number FROM me, free AS f
            WHERE c.ctid = f.place
            RETURNING c.slot
        ), raised AS (
            UPDATE {schema}.member_group AS g SET counter = me.number, claimed = me.number FROM me
            WHERE g.id = me.id AND EXISTS (SELECT 1 FROM released)
        ), notified AS (
            SELECT {notify} FROM me WHERE EXISTS (SELECT 1 FROM released)
        )
        SELECT (SELECT count(*) FROM held) - (SELECT count(*) FROM free) AS locked, (SELECT count(*) FROM notified) AS notified"
    )
}

/// How many of the released claims another transaction has locked.
pub(crate) fn read_locked(answers: &Answers) -> sqlx::Result<i64> {
    answers.last().first().map_or(Ok(0), |row| row.try_get("locked"))
}

/// Makes the group's store of claims if there is none, or raises its floor. A floor that is raised admits the server's present history.
pub(crate) fn open_store(schema: &Schema, group: &GroupName, fresh: StoreId, floor: u64) -> String {
    let (name, fresh, floor) = (text(group.as_str()), text(&fresh.to_string()), signed(floor));
    let make_group = make_group(schema, &name);
    format!(
        "{BEGIN} {make_group}
        UPDATE {schema}.member_group AS g SET floor = greatest(g.floor, {floor}), history = p.present,
            claims_id = CASE WHEN g.claims_id IS NULL OR g.history <> p.present THEN {fresh} ELSE g.claims_id END
        FROM (SELECT {HISTORY} AS present) AS p
        WHERE g.name = {name} AND (g.claims_id IS NULL OR g.floor < {floor}) AND current_setting('fsync') = 'on';
        SELECT s.store_id, {POSITION}, g.claims_id, coalesce(g.floor, 0) AS floor, coalesce(g.counter, 0) AS counter, g.history,
            {HISTORY} AS present, current_setting('fsync') = 'on' AS is_durable, false AS is_alive
        FROM {schema}.store AS s LEFT JOIN {schema}.member_group AS g ON g.name = {name} WHERE s.one"
    )
}
