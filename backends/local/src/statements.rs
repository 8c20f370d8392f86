//! All SQL of members in an open file. Every write is one statement, so that no process can be stopped between two halves of a change.

use std::time::Duration;

use shardwise_core::mistakes::undoes_by_incarnation;
use shardwise_core::{Address, GroupName, InstanceId, MEMBERS_MAX, Member, Moment, View};
use shardwise_discovery::{Record, RecordId};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row};
use tokio::time::timeout;

use crate::error::Failure;
use crate::open_store::{OpenStore, Query};

/// The most records one file holds, over all groups; each group holds at most [`MEMBERS_MAX`].
pub const RECORDS_MAX: u32 = 4 * MEMBERS_MAX;

/// How long a list waits for dead records to be deleted before it is filtered instead.
const REAP_PATIENCE: Duration = Duration::from_millis(50);
/// How soon deleting dead records is tried again.
pub(crate) const REAP_AGAIN: Duration = Duration::from_millis(250);

/// Whether a record's member is away. A record that is no JSON is a living one, of which this version knows nothing.
macro_rules! is_away {
    () => {
        "CASE WHEN json_valid(record) THEN coalesce(record ->> 'state' = 'away', 0) ELSE 0 END"
    };
}

pub(crate) use is_away;

/// The row of a record, as long as it is alive: ?1 group, ?2 id, ?3 incarnation, ?4 boot, ?5 now.
macro_rules! living {
    () => {
        concat!("group_name = ?1 AND instance_id = ?2 AND incarnation = ?3 AND boot_id = ?4 AND deadline > ?5 AND NOT ", is_away!())
    };
}

// ?1 group, ?2 id, ?3 incarnation, ?4 boot, ?5 now, ?6 deadline, ?7 record, ?8 members at most, ?9 records at most.
// A record of this id that is alive under another incarnation stays, and no row comes back. A member's own record keeps its number of
// joining while it is alive. A record that is away makes room. In `DO UPDATE`, names without `excluded` mean the row as it was.
const REGISTER: &str = concat!(
    "
    INSERT INTO member (group_name, instance_id, incarnation, joined, boot_id, deadline, previous, renewals, record)
    SELECT ?1, ?2, ?3, counter + 1, ?4, ?6, ?6, 0, ?7 FROM store
    WHERE (records < ?9 AND coalesce((SELECT members FROM member_group WHERE name = ?1), 0) < ?8)
        OR EXISTS (SELECT 1 FROM member WHERE group_name = ?1 AND instance_id = ?2)
    ON CONFLICT (group_name, instance_id) DO UPDATE SET
        joined = iif(incarnation = ?3 AND boot_id = ?4 AND deadline > ?5 AND NOT ",
    is_away!(),
    ", joined, excluded.joined),
        deadline = iif(incarnation = ?3 AND boot_id = ?4 AND deadline > ?5 AND NOT ",
    is_away!(),
    ", max(deadline, ?6), ?6),
        incarnation = ?3, boot_id = ?4, previous = ?6, renewals = renewals + 1, record = ?7
    WHERE incarnation = ?3 OR boot_id <> ?4 OR deadline <= ?5 OR ",
    is_away!(),
    "
    RETURNING joined"
);

// ?1 group, ?2 id, ?3 incarnation, ?4 boot, ?5 now, ?6 deadline. Touches no column that the revision depends on.
const RENEW: &str = concat!(
    "
    UPDATE member SET previous = deadline, deadline = max(deadline, ?6), renewals = renewals + 1
    WHERE ",
    living!(),
    "
    RETURNING previous, joined, renewals"
);

// ?4 and ?5 are the numbers that the renewal left. Every registration and every renewal leaves others, so this deletes the row as it was
// renewed or nothing.
const UNDO_RENEWAL: &str = "
    DELETE FROM member WHERE group_name = ?1 AND instance_id = ?2 AND incarnation = ?3 AND joined = ?4 AND renewals = ?5";

// ?6 record.
const UPDATE: &str = concat!(
    "
    UPDATE member SET record = ?6
    WHERE ",
    living!(),
    "
    RETURNING joined"
);

// ?6 deadline, ?7 record. The number of joining is a new one, so that what the member had claimed ends with its life.
const STEP_AWAY: &str = concat!(
    "
    UPDATE member SET joined = (SELECT counter + 1 FROM store), deadline = ?6, previous = ?6, record = ?7
    WHERE ",
    living!(),
    "
    RETURNING joined"
);

const IS_AWAY: &str = concat!("
    SELECT EXISTS (SELECT 1 FROM member WHERE group_name = ?1 AND instance_id = ?2 AND incarnation = ?3 AND boot_id = ?4 AND deadline > ?5 AND ",
    is_away!(), ")");

const DELETE: &str = "DELETE FROM member WHERE group_name = ?1 AND instance_id = ?2 AND incarnation = ?3";

const REAP: &str = "DELETE FROM member WHERE group_name = ?1 AND (boot_id <> ?2 OR deadline <= ?3)";

const ANY_DEAD: &str = "SELECT EXISTS (SELECT 1 FROM member WHERE boot_id <> ?1 OR deadline <= ?2)";
const SWEEP: &str = "DELETE FROM member WHERE boot_id <> ?1 OR deadline <= ?2";

const HOLDER: &str = "
    SELECT joined, renewals, record FROM member
    WHERE group_name = ?1 AND instance_id = ?2 AND incarnation <> ?3 AND boot_id = ?4 AND deadline > ?5";

const REVISION: &str = "
    SELECT s.store_id, s.counter, coalesce(g.revision, s.counter) AS revision
    FROM store AS s LEFT JOIN member_group AS g ON g.name = ?1";

// One statement, so revision and rows are of one moment; an empty group is one row without a member, never no row.
const MEMBERS: &str = "
    SELECT s.store_id, s.counter, coalesce(g.revision, s.counter) AS revision,
        m.instance_id, m.joined, m.boot_id, m.deadline, m.record
    FROM store AS s LEFT JOIN member_group AS g ON g.name = ?1 LEFT JOIN member AS m ON m.group_name = ?1
    LIMIT ?2";

/// A renewal as it was carried out: the row that it left, and when the record would have ended without it.
pub(crate) struct RenewedRow {
    pub(crate) previous: Moment,
    joined: i64,
    renewals: i64,
}

/// The numbers that say whether anything has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordsVersion {
    pub(crate) store_id: String,
    /// The file's; never lower than any group's.
    pub(crate) counter: u64,
    /// The group's.
    pub(crate) revision: u64,
}

/// A group's records at one moment, the dead ones among them.
pub(crate) struct RecordsRead {
    pub(crate) at: RecordsVersion,
    rows: Vec<MemberRow>,
}

struct MemberRow {
    instance_id: String,
    joined: i64,
    boot_id: String,
    deadline: i64,
    record: String,
}

/// Nanoseconds as SQLite keeps them; beyond 292 years of uptime they stay at the end.
pub(crate) fn nanos(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

pub(crate) fn moment(nanos: i64) -> Moment {
    Moment::from_nanos(nanos.unsigned_abs())
}

impl FromRow<'_, SqliteRow> for RecordsVersion {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let number = |name: &str| row.try_get::<i64, _>(name).map(i64::cast_unsigned);
        Ok(Self { store_id: row.try_get("store_id")?, counter: number("counter")?, revision: number("revision")? })
    }
}

impl MemberRow {
    /// `None` if the group is empty.
    fn from_row(row: &SqliteRow) -> sqlx::Result<Option<Self>> {
        let Some(instance_id) = row.try_get::<Option<String>, _>("instance_id")? else { return Ok(None) };
        let (joined, boot_id) = (row.try_get("joined")?, row.try_get("boot_id")?);
        Ok(Some(Self { instance_id, joined, boot_id, deadline: row.try_get("deadline")?, record: row.try_get("record")? }))
    }

    fn is_alive(&self, boot: &str, now: Moment) -> bool {
        self.boot_id == boot && self.deadline > nanos(now)
    }

    fn decode(&self) -> Result<Member, Failure> {
        let unreadable = |why: String| Failure::Unreadable { instance_id: self.instance_id.clone(), why };
        let instance_id = InstanceId::new(&self.instance_id).map_err(|error| unreadable(error.to_string()))?;
        Record::decode(instance_id, self.joined.cast_unsigned(), &self.record).map_err(|error| unreadable(error.to_string()))
    }
}

impl RecordsRead {
    /// Whether a record has expired by `now`, or is of another boot.
    pub(crate) fn any_dead(&self, boot: &str, now: Moment) -> bool {
        self.rows.iter().any(|row| !row.is_alive(boot, now))
    }

    /// The view at `now`, without dead records, and when to read again: when the next record expires unless it is renewed.
    pub(crate) fn judge(&self, store: &OpenStore, now: Moment) -> Result<(View, Option<Moment>), Failure> {
        if self.rows.len() > MEMBERS_MAX as usize {
            return Err(Failure::TooMany { path: store.path.clone(), records_max: RECORDS_MAX });
        }
        let alive = || self.rows.iter().filter(|row| row.is_alive(&store.boot, now));
        let members = alive().map(MemberRow::decode).collect::<Result<Vec<_>, _>>()?;
        let again = self.any_dead(&store.boot, now).then(|| now.plus(REAP_AGAIN));
        let next_end = alive().map(|row| moment(row.deadline)).chain(again).min();
        Ok((View::new(self.at.revision, members), next_end))
    }
}

impl OpenStore {
    /// Writes the record unless the id is taken or the group or the file is full, which answers `false`.
    pub(crate) async fn register(&self, record_id: &RecordId, record: &str, now: Moment, deadline: Moment) -> sqlx::Result<bool> {
        let query = self.of_record(REGISTER, record_id, now).bind(nanos(deadline)).bind(record).bind(MEMBERS_MAX).bind(RECORDS_MAX);
        Ok(!self.write(query).await?.is_empty())
    }

    /// Renews; `None` if no living record is there.
    pub(crate) async fn renew(&self, record_id: &RecordId, now: Moment, deadline: Moment) -> sqlx::Result<Option<RenewedRow>> {
        let rows = self.write(self.of_record(RENEW, record_id, now).bind(nanos(deadline))).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (previous, joined, renewals) = FromRow::from_row(row)?;
        Ok(Some(RenewedRow { previous: moment(previous), joined, renewals }))
    }

    /// Deletes the row of a renewal that came too late. One that was registered or renewed after it stays: it is not what came too late.
    pub(crate) async fn undo_renewal(&self, record_id: &RecordId, renewed: &RenewedRow) -> sqlx::Result<()> {
        if undoes_by_incarnation() {
            return self.delete(record_id).await;
        }
        self.write(named(UNDO_RENEWAL, record_id).bind(renewed.joined).bind(renewed.renewals)).await.map(drop)
    }

    /// Replaces the content of a living record; `false` if there is none.
    pub(crate) async fn update(&self, record_id: &RecordId, record: &str) -> sqlx::Result<bool> {
        let rows = self.write(self.of_record(UPDATE, record_id, self.clock.now()).bind(record)).await?;
        Ok(!rows.is_empty())
    }

    /// Puts a record that says its member is away in the place of the living one;
    /// `false` if there is neither a living one nor such a record.
    pub(crate) async fn step_away(&self, record_id: &RecordId, record: &str, now: Moment, deadline: Moment) -> sqlx::Result<bool> {
        let query = self.of_record(STEP_AWAY, record_id, now).bind(nanos(deadline)).bind(record);
        if !self.write(query).await?.is_empty() {
            return Ok(true);
        }
        self.of_record(IS_AWAY, record_id, now).fetch_one(&self.readers).await?.try_get(0)
    }

    /// Deletes the record of exactly this incarnation, if there is one.
    pub(crate) async fn delete(&self, record_id: &RecordId) -> sqlx::Result<()> {
        self.write(named(DELETE, record_id)).await.map(drop)
    }

    /// Deletes the group's dead records; `false` if the file cannot be written soon.
    pub(crate) async fn reap(&self, group: &GroupName, now: Moment) -> bool {
        let query = sqlx::query(REAP).bind(group.as_str()).bind(&self.boot).bind(nanos(now));
        match timeout(REAP_PATIENCE, self.write(query)).await {
            Ok(Ok(_)) => return true,
            Ok(Err(failure)) => tracing::debug!(%failure, "expired records, and their claims, stay for now"),
            Err(_) => tracing::debug!("expired records, and their claims, stay for now: deleting them has to wait"),
        }
        false
    }

    /// Deletes the dead records of all groups, including groups that no process watches.
    pub(crate) async fn sweep(&self) -> sqlx::Result<()> {
        let now = nanos(self.clock.now());
        if sqlx::query_scalar(ANY_DEAD).bind(&self.boot).bind(now).fetch_one(&self.readers).await? {
            self.write(sqlx::query(SWEEP).bind(&self.boot).bind(now)).await?;
        }
        Ok(())
    }

    /// Of the living record that keeps `record_id` from its id: where it says it is, and a stamp that changes with each renewal.
    pub(crate) async fn holder(&self, record_id: &RecordId, now: Moment) -> sqlx::Result<Option<(Option<Address>, u64)>> {
        let row = self.of_record(HOLDER, record_id, now).fetch_optional(&self.readers).await?;
        let Some(row) = row else { return Ok(None) };
        let (joined, renewals, record): (i64, i64, String) = FromRow::from_row(&row)?;
        // Even a record that this version cannot read keeps others from the id.
        let member = Record::decode(record_id.instance_id.clone(), joined.cast_unsigned(), &record).ok();
        // Two holders one after the other differ in `joined`, two looks at one holder in `renewals`.
        let stamp = (joined.cast_unsigned() << 32) ^ renewals.cast_unsigned();
        Ok(Some((member.and_then(|member| member.address), stamp)))
    }

    /// The group's records.
    pub(crate) async fn read(&self, connection: &mut SqliteConnection, group: &GroupName) -> Result<RecordsRead, Failure> {
        // One more than allowed, so that too many are noticed.
        let rows = sqlx::query(MEMBERS).bind(group.as_str()).bind(MEMBERS_MAX + 1).fetch_all(connection).await?;
        let gone = || self.damaged("the row of the table `store` is gone".to_owned());
        let at = RecordsVersion::from_row(rows.first().ok_or_else(gone)?)?;
        let rows = rows.iter().filter_map(|row| MemberRow::from_row(row).transpose()).collect::<sqlx::Result<_>>()?;
        Ok(RecordsRead { at, rows })
    }

    /// The group's revision.
    pub(crate) async fn revision(&self, connection: &mut SqliteConnection, group: &GroupName) -> sqlx::Result<RecordsVersion> {
        sqlx::query_as(REVISION).bind(group.as_str()).fetch_one(connection).await
    }

    pub(crate) fn of_record(&self, sql: &'static str, record_id: &RecordId, now: Moment) -> Query {
        named(sql, record_id).bind(self.boot.as_str()).bind(nanos(now))
    }
}

/// A statement whose first values name a record.
pub(crate) fn named(sql: &'static str, record_id: &RecordId) -> Query {
    let RecordId { group, instance_id, incarnation } = record_id;
    sqlx::query(sql).bind(group.as_str()).bind(instance_id.as_str()).bind(incarnation.to_string())
}

/// For the test of their plans.
#[cfg(test)]
pub(crate) const STATEMENTS: &[&str] =
    &[REGISTER, RENEW, UNDO_RENEWAL, UPDATE, STEP_AWAY, IS_AWAY, DELETE, REAP, ANY_DEAD, SWEEP, HOLDER, REVISION, MEMBERS];
