//! All SQL of claims. As with records, every write is one statement: triggers of the schema number the change, and end a member's claims
//! with its record, however that is deleted. Lists of resources and claims go in and come out as JSON: one value for thousands of rows.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use shardwise_core::{
    Claim, ClaimName, ClaimStore, Epoch, GroupName, Holder, Incarnation, InstanceId, Moment, Resource, SLOTS_MAX, StoreId,
};
use shardwise_discovery::{RecordId, one_line};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row};

use crate::error::Failure;
use crate::open_store::OpenStore;
use crate::statements::{REAP_AGAIN, RecordsVersion, is_away, moment, named, nanos};

const STORE: &str = "
    SELECT store_id, coalesce((SELECT floor FROM claim_floor WHERE group_name = ?1), 0) AS floor FROM store";

const RAISE_FLOOR: &str = "
    INSERT INTO claim_floor (group_name, floor) VALUES (?1, ?2)
    ON CONFLICT (group_name) DO UPDATE SET floor = excluded.floor WHERE excluded.floor > floor";

// ?1 group, ?2 id, ?3 incarnation, ?4 boot, ?5 now, ?6 what is wanted, ?7 the store's id, ?8 its floor, ?9 the last epoch.
// Held is what a living record holds, the asker's own included: that stays under its epoch. A claim whose holder is dead or was never there
// is replaced. Nothing happens without a living record, or under another store.
const ACQUIRE: &str = concat!(
    "
    INSERT OR REPLACE INTO claim (group_id, resource, holder, number, epoch)
    SELECT g.id, w.value, m.joined, s.counter + 1, s.counter + 1 + ?8
    FROM store AS s CROSS JOIN claim_group AS g CROSS JOIN member AS m CROSS JOIN json_each(?6) AS w
    WHERE g.name = ?1 AND s.counter + 1 + ?8 <= ?9
        AND m.group_name = ?1 AND m.instance_id = ?2 AND m.incarnation = ?3 AND m.boot_id = ?4 AND m.deadline > ?5
        AND NOT ",
    is_away!(),
    "
        AND substr(s.store_id, 1, 16) = ?7 AND coalesce((SELECT floor FROM claim_floor WHERE group_name = ?1), 0) = ?8
        AND NOT EXISTS (
            SELECT 1 FROM claim AS c CROSS JOIN member AS h
            WHERE c.group_id = g.id AND c.resource = w.value AND h.joined = c.holder AND h.boot_id = ?4 AND h.deadline > ?5
        )"
);

// ?1 group, ?2 id, ?3 incarnation, ?4 boot, ?5 now, ?6 what is wanted. One row.
const ANSWER: &str = concat!(
    "
    SELECT s.store_id, s.counter, s.counter AS revision, coalesce((SELECT floor FROM claim_floor WHERE group_name = ?1), 0) AS floor,
        m.joined IS NOT NULL AS alive, m.joined IS NULL OR g.id IS NOT NULL AS whole,
        (
            SELECT json_group_array(json_array(c.resource, c.epoch)) FROM json_each(?6) AS w CROSS JOIN claim AS c
            WHERE c.group_id = g.id AND c.resource = w.value AND c.holder = m.joined
        ) AS held
    FROM store AS s LEFT JOIN claim_group AS g ON g.name = ?1
    LEFT JOIN member AS m
        ON m.group_name = ?1 AND m.instance_id = ?2 AND m.incarnation = ?3 AND m.boot_id = ?4 AND m.deadline > ?5 AND NOT ",
    is_away!()
);

// ?1 group, ?2 id, ?3 incarnation, ?4 what is given back, each with its epoch.
const RELEASE: &str = "
    DELETE FROM claim WHERE (group_id, resource, epoch, holder) IN (
        SELECT g.id, r.value ->> 0, r.value ->> 1, m.joined
        FROM claim_group AS g CROSS JOIN member AS m CROSS JOIN json_each(?4) AS r
        WHERE g.name = ?1 AND m.group_name = ?1 AND m.instance_id = ?2 AND m.incarnation = ?3
    )";

const CLAIMS_MARK: &str = "
    SELECT s.store_id, s.counter, coalesce(m.revision, s.counter) AS revision, coalesce(g.id, 0) AS group_id, coalesce(g.changed, 0) AS changed
    FROM store AS s LEFT JOIN member_group AS m ON m.name = ?1 LEFT JOIN claim_group AS g ON g.name = ?1";

// ?1 group, ?2 boot, ?3 now.
const ENDS: &str = "
    SELECT min(iif(boot_id = ?2 AND deadline > ?3, deadline, NULL)) AS next_end, coalesce(max(boot_id <> ?2 OR deadline <= ?3), 0) AS dead
    FROM member WHERE group_name = ?1";

// ?1 group, ?2 its id and ?3 the number up to which its claims are known; -1 if they are not. One statement, for a consistent read.
// `since` is -1 if everything has to be read: the group was replaced, or the record of what was freed since may be gone. A BLOB,
// which only an edit by hand can put there, would be taken for JSON.
const CHANGES: &str = "
    SELECT k.*,
        (
            SELECT json_group_array(json_array(h.instance_id, h.incarnation, json(h.claims))) FROM (
                SELECT m.instance_id, m.incarnation, (
                    SELECT json_group_array(json_array(iif(typeof(c.resource) <> 'blob', c.resource, NULL), c.epoch)) FROM claim AS c
                    WHERE c.holder = m.joined AND c.number > k.since AND c.group_id = k.group_id
                ) AS claims
                FROM member AS m WHERE m.group_name = ?1
            ) AS h WHERE h.claims <> '[]'
        ) AS held,
        (
            SELECT json_group_array(e.resource) FROM claim_end AS e
            WHERE k.since >= 0 AND e.number > k.since AND e.group_id = k.group_id AND typeof(e.resource) <> 'blob'
        ) AS ended
    FROM (
        SELECT s.store_id, s.counter, coalesce(g.id, 0) AS group_id, coalesce(g.changed, 0) AS changed, s.counter AS revision,
            iif(g.id = ?2 AND ?3 >= coalesce((SELECT min(number) FROM claim_end), 0), ?3, -1) AS since
        FROM store AS s LEFT JOIN claim_group AS g ON g.name = ?1
    ) AS k";

/// The result of an acquisition.
pub(crate) struct AcquireRow {
    pub(crate) at: RecordsVersion,
    pub(crate) store: ClaimStore,
    /// The asker has a living record.
    pub(crate) alive: bool,
    /// Those of the wanted that it holds.
    pub(crate) held: BTreeMap<Resource, Epoch>,
}

/// The numbers that say whether a group's claims have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimsVersion {
    /// Another one each time the group begins; 0 while it has no members.
    group_id: i64,
    /// The number of the last change.
    changed: i64,
}

/// A group's claims, or the changes in them.
pub(crate) struct ClaimsRead {
    pub(crate) at: RecordsVersion,
    pub(crate) mark: ClaimsVersion,
    /// Everything was read.
    pub(crate) whole: bool,
    pub(crate) changes: Changes,
}

impl FromRow<'_, SqliteRow> for ClaimsVersion {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self { group_id: row.try_get("group_id")?, changed: row.try_get("changed")? })
    }
}

impl OpenStore {
    /// The group's store of claims.
    pub(crate) async fn claim_store(&self, group: &GroupName) -> Result<ClaimStore, Failure> {
        self.read_claim_store(&sqlx::query(STORE).bind(group.as_str()).fetch_one(&self.readers).await?)
    }

    /// Lifts the group's floor, unless it is as high already. A floor that is forgotten would let epochs fall.
    pub(crate) async fn raise_floor(&self, group: &GroupName, floor: u64) -> sqlx::Result<()> {
        let query = sqlx::query(RAISE_FLOOR).bind(group.as_str()).bind(floor.min(ClaimStore::FLOOR_MAX).cast_signed());
        self.write_through(query).await.map(drop)
    }

    /// Grants what is free of `wanted`, if the record lives and the store is the one in
    /// force. An epoch that is forgotten would be granted again.
    pub(crate) async fn acquire(&self, record_id: &RecordId, known: &ClaimStore, wanted: &str, now: Moment) -> sqlx::Result<()> {
        let floor = i64::try_from(known.floor).unwrap_or(i64::MAX);
        let query = self.of_record(ACQUIRE, record_id, now).bind(wanted).bind(known.id.to_string()).bind(floor);
        self.write_through(query.bind(Epoch::MAX.get().cast_signed())).await.map(drop)
    }

    /// Those of `wanted` that the record holds now.
    pub(crate) async fn answer(&self, record_id: &RecordId, wanted: &str, now: Moment) -> Result<AcquireRow, Failure> {
        let row = self.of_record(ANSWER, record_id, now).bind(wanted).fetch_one(&self.readers).await?;
        let store = self.read_claim_store(&row)?;
        if !row.try_get::<bool, _>("whole")? {
            return Err(self.damaged(format!("the row of {:?} in the table `claim_group` is gone", record_id.group)));
        }
        let held = row.try_get::<Option<String>, _>("held")?;
        let held = held.map(|held| decode_held(&held)).transpose().map_err(|why| self.bad_claim(why))?;
        Ok(AcquireRow { at: FromRow::from_row(&row)?, store, alive: row.try_get("alive")?, held: held.into_iter().flatten().collect() })
    }

    /// Deletes those claims of the record that stand under these epochs.
    pub(crate) async fn release(&self, record_id: &RecordId, held: &str) -> sqlx::Result<()> {
        self.write(named(RELEASE, record_id).bind(held)).await.map(drop)
    }

    /// The numbers of the group's records and claims.
    pub(crate) async fn claims_mark(
        &self,
        connection: &mut SqliteConnection,
        group: &GroupName,
    ) -> sqlx::Result<(RecordsVersion, ClaimsVersion)> {
        let row = sqlx::query(CLAIMS_MARK).bind(group.as_str()).fetch_one(connection).await?;
        Ok((FromRow::from_row(&row)?, FromRow::from_row(&row)?))
    }

    /// Deletes the group's dead records, and with them their claims. Answers when to look again: when the next of the living ends, unless
    /// it is renewed.
    pub(crate) async fn delete_dead(
        &self,
        connection: &mut SqliteConnection,
        group: &GroupName,
        now: Moment,
    ) -> sqlx::Result<Option<Moment>> {
        let (mut next, mut dead) = self.ends(connection, group, now).await?;
        if dead && self.reap(group, now).await {
            (next, dead) = self.ends(connection, group, now).await?;
        }
        let again = dead.then(|| now.plus(REAP_AGAIN));
        Ok(next.map(moment).into_iter().chain(again).min())
    }

    /// The end of the group's next living record, and whether there are dead ones.
    async fn ends(&self, connection: &mut SqliteConnection, group: &GroupName, now: Moment) -> sqlx::Result<(Option<i64>, bool)> {
        sqlx::query_as(ENDS).bind(group.as_str()).bind(&self.boot).bind(nanos(now)).fetch_one(connection).await
    }

    /// The group's claims, or the changes since `known`.
    pub(crate) async fn read_claims(
        &self,
        connection: &mut SqliteConnection,
        group: &GroupName,
        known: Option<&ClaimsVersion>,
    ) -> Result<ClaimsRead, Failure> {
        let (group_id, changed) = known.map_or((-1, -1), |known| (known.group_id, known.changed));
        let row = sqlx::query(CHANGES).bind(group.as_str()).bind(group_id).bind(changed).fetch_one(connection).await?;
        let changes = decode_changes(row.try_get("held")?, row.try_get("ended")?).map_err(|why| self.bad_claim(why))?;
        let whole = row.try_get::<i64, _>("since")? < 0;
        Ok(ClaimsRead { at: FromRow::from_row(&row)?, mark: FromRow::from_row(&row)?, whole, changes })
    }

    fn read_claim_store(&self, row: &SqliteRow) -> Result<ClaimStore, Failure> {
        let (id, floor) = (row.try_get::<String, _>("store_id")?, row.try_get::<i64, _>("floor")?);
        let damaged = |what| self.damaged(format!("{what} is not a valid one"));
        let id = id.get(..16).and_then(StoreId::from_hex).ok_or_else(|| damaged(format!("the store's id {id:?}")))?;
        let floor = u64::try_from(floor).map_err(|_| damaged(format!("the floor {floor}")))?;
        Ok(ClaimStore { id, floor })
    }

    fn bad_claim(&self, why: String) -> Failure {
        Failure::BadClaim { path: self.path.clone(), why }
    }
}

/// The changes: claims that are held, and those that came free before that.
pub(crate) struct Changes {
    pub(crate) held: Vec<(Resource, Claim)>,
    pub(crate) ended: Vec<Resource>,
}

/// A slot is a number, a name is text.
fn written(resource: &Resource) -> Value {
    match resource {
        Resource::Slot(slot) => Value::from(*slot),
        Resource::Name(name) => Value::from(name.as_str()),
    }
}

/// A list of resources.
pub(crate) fn encode<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> String {
    resources.into_iter().map(written).collect::<Value>().to_string()
}

/// A list of resources with epochs.
pub(crate) fn encode_held(held: &[(Resource, Epoch)]) -> String {
    held.iter().map(|(resource, epoch)| json!([written(resource), epoch.get()])).collect::<Value>().to_string()
}

/// The inverse of [`encode_held`]. Text that cannot be read, such as after an edit by hand, is an error that names the resource.
pub(crate) fn decode_held(json: &str) -> Result<Vec<(Resource, Epoch)>, String> {
    parsed::<Vec<(Value, i64)>>(json)?.into_iter().map(read_claim).collect()
}

pub(crate) fn decode_changes(held: &str, ended: &str) -> Result<Changes, String> {
    let mut claims = Vec::new();
    for (id, incarnation, held) in parsed::<Vec<(String, String, Vec<(Value, i64)>)>>(held)? {
        let incarnation = Incarnation::from_hex(&incarnation).ok_or_else(|| format!("{id:?} has the incarnation {incarnation:?}"))?;
        let instance_id = InstanceId::new(&id).map_err(|error| error.to_string())?;
        let holder = Holder { instance_id, incarnation };
        for pair in held {
            let (resource, epoch) = read_claim(pair)?;
            claims.push((resource, Claim { holder: holder.clone(), epoch }));
        }
    }
    // An entry that cannot be read was never reported as held.
    let ended = parsed::<Vec<Value>>(ended)?.iter().filter_map(|value| read_resource(value).ok()).collect();
    Ok(Changes { held: claims, ended })
}

fn parsed<'de, T: Deserialize<'de>>(json: &'de str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| one_line(&error.to_string()))
}

fn read_claim((value, epoch): (Value, i64)) -> Result<(Resource, Epoch), String> {
    let resource = read_resource(&value)?;
    let number = u64::try_from(epoch).map_err(|_| format!("on {resource}: {epoch} is not an epoch"))?;
    let epoch = Epoch::new(number).map_err(|error| format!("on {resource}: {error}"))?;
    Ok((resource, epoch))
}

/// The resource that a value of the table stands for, or why it is none.
fn read_resource(value: &Value) -> Result<Resource, String> {
    match value {
        Value::String(name) => ClaimName::new(name).map(Resource::Name).map_err(|error| error.to_string()),
        Value::Number(slot) if !slot.is_f64() => {
            let valid = slot.as_u64().and_then(|slot| u32::try_from(slot).ok()).filter(|slot| *slot < SLOTS_MAX);
            valid.map(Resource::Slot).ok_or_else(|| format!("{slot} is not a slot"))
        }
        Value::Null => Err("there are bytes where a slot or a name should be".to_owned()),
        other => Err(format!("{other} is neither a slot nor a name")),
    }
}

/// For the test of their plans.
#[cfg(test)]
pub(crate) const STATEMENTS: &[&str] = &[STORE, RAISE_FLOOR, ACQUIRE, ANSWER, RELEASE, CLAIMS_MARK, ENDS, CHANGES];
