//! Statements that write members. Each locks the group's row first, except for a renewal, and takes the next number of the group.

use std::time::Duration;

use shardwise_core::MEMBERS_MAX;
use shardwise_discovery::{CallNumber, RecordId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::literal::{Literal, numbers, text, texts};
use super::{BEGIN, Schema, id_of, lock, make_group, signed, unsigned};
use crate::answers::Answers;

/// Departures and released names of so many changes are kept, at least, for readers that know less.
const CHANGES_KEPT: i64 = 8_192;
/// So many changes later they are deleted.
const TRIM_EVERY: i64 = 1_024;

/// The values of a record that a statement names it by.
struct RecordLiterals {
    group: Literal,
    id: Literal,
    incarnation: Literal,
}

impl RecordLiterals {
    fn of(record_id: &RecordId) -> Self {
        let RecordId { group, instance_id, incarnation } = record_id;
        Self { group: text(group.as_str()), id: text(instance_id.as_str()), incarnation: text(&incarnation.to_string()) }
    }
}

fn millis(duration: Duration) -> i64 {
    // Up, so that nothing ends early.
    let up = u128::from(!duration.subsec_nanos().is_multiple_of(1_000_000));
    i64::try_from(duration.as_millis() + up).unwrap_or(i64::MAX)
}

/// The group's row as `here`, with the number of this change.
fn here(schema: &Schema, group: &Literal) -> String {
    format!(
        "here AS MATERIALIZED (
            SELECT g.id, g.counter + 1 AS number, g.beats + 1 AS beat FROM {schema}.member_group AS g WHERE g.name = {group}
        )"
    )
}

/// Whether `m` is the living record, and no later call of the same process has written it.
fn is_own(record: &RecordLiterals, CallNumber { writer, number }: CallNumber) -> String {
    let RecordLiterals { id, incarnation, .. } = record;
    format!(
        "m.group_id = h.id AND m.instance_id = {id} AND m.incarnation = {incarnation} AND NOT m.away
            AND (m.writer <> {writer} OR m.call <= {number})"
    )
}

/// Deletes what no process needs any more to keep up.
fn tidy(schema: &Schema, group: &Literal) -> String {
    let id_of = id_of(schema, group);
    let trimmed = format!("(SELECT g.trimmed FROM {schema}.member_group AS g WHERE g.name = {group})");
    format!(
        "UPDATE {schema}.member_group AS g SET trimmed = g.counter - {CHANGES_KEPT}
        WHERE g.name = {group} AND g.counter - {CHANGES_KEPT} >= g.trimmed + {TRIM_EVERY};
        DELETE FROM {schema}.departure AS d WHERE d.group_id = {id_of} AND d.changed <= {trimmed};
        WITH released AS MATERIALIZED (
            SELECT c.ctid AS place FROM {schema}.claim AS c
            WHERE c.group_id = {id_of} AND c.holder IS NULL AND c.name <> '' AND c.changed <= {trimmed}
            LIMIT 1000 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM {schema}.claim AS c USING released AS r WHERE c.ctid = r.place;"
    )
}

/// Writes the record unless another life of the member is there and not away. Its own living record keeps its number of joining.
pub(crate) fn register(schema: &Schema, record_id: &RecordId, record: &str, ttl: Duration, call: CallNumber) -> String {
    let literals = RecordLiterals::of(record_id);
    let (make_group, lock, tidy) = (make_group(schema, &literals.group), lock(schema, &literals.group), tidy(schema, &literals.group));
    let (here, notify) = (here(schema, &literals.group), schema.notify(&record_id.group));
    let group_id = id_of(schema, &literals.group);
    let (record, ttl, before_last) = (text(record), millis(ttl), MEMBERS_MAX - 1);
    let (RecordLiterals { id, incarnation, .. }, CallNumber { writer, number }) = (literals, call);
    format!(
        "{BEGIN} {make_group} {lock} {tidy}
        WITH {here}, written AS (
            INSERT INTO {schema}.member AS m (group_id, instance_id, incarnation, joined, changed, beat, ttl_ms, away, writer, call, record)
            SELECT h.id, {id}, {incarnation}, h.number, h.number, h.beat, {ttl}, false, {writer}, {number}, {record} FROM here AS h
            WHERE (EXISTS (SELECT 1 FROM {schema}.member AS o WHERE o.group_id = h.id AND o.instance_id = {id})
                    OR NOT EXISTS (SELECT 1 FROM {schema}.member AS o WHERE o.group_id = h.id OFFSET {before_last}))
                AND NOT EXISTS (
                    SELECT 1 FROM {schema}.departure AS d WHERE d.group_id = h.id AND d.instance_id = {id}
                        AND d.incarnation = {incarnation} AND d.writer = {writer} AND d.call > {number}
                )
            ON CONFLICT (group_id, instance_id) DO UPDATE SET incarnation = excluded.incarnation,
                joined = CASE WHEN m.incarnation = excluded.incarnation AND NOT m.away THEN m.joined ELSE excluded.joined END,
                changed = excluded.changed, beat = greatest(m.beat + 1, excluded.beat), ttl_ms = excluded.ttl_ms, away = false,
                writer = excluded.writer, call = excluded.call, record = excluded.record, renewed_at = clock_timestamp()
            WHERE m.away OR (m.incarnation = excluded.incarnation AND (m.writer <> excluded.writer OR m.call <= excluded.call))
            RETURNING m.joined
        ), raised AS (
            UPDATE {schema}.member_group AS g SET counter = h.number, revision = h.number FROM here AS h
            WHERE g.id = h.id AND EXISTS (SELECT 1 FROM written)
        )
        SELECT w.joined, {notify} AS notified FROM written AS w;
        SELECT m.incarnation, m.joined, m.beat, m.record FROM {schema}.member AS m
        WHERE m.group_id = {group_id} AND m.instance_id = {id}"
    )
}

/// What a registration met.
pub(crate) enum Registered {
    /// The record is written.
    Written,
    /// The id has a record; perhaps the caller's own, which a later call of its process has written.
    Taken(HolderRow),
    /// There is no record, and none was made: the group is full, or a later call has ended this life.
    Refused,
}

/// The record that has an id.
pub(crate) struct HolderRow {
    pub(crate) incarnation: String,
    /// Its number of joining.
    pub(crate) life: i64,
    pub(crate) beat: u64,
    pub(crate) record: String,
}

impl Registered {
    pub(crate) fn read(answers: &Answers) -> sqlx::Result<Self> {
        if !answers.before_last(1).is_empty() {
            return Ok(Self::Written);
        }
        let Some(row) = answers.last().first() else { return Ok(Self::Refused) };
        let (incarnation, life, record) = (row.try_get("incarnation")?, row.try_get("joined")?, row.try_get("record")?);
        Ok(Self::Taken(HolderRow { incarnation, life, beat: unsigned(row, "beat")?, record }))
    }
}

/// Raises the beat of the living record. One row comes back if there is one.
pub(crate) fn renew(schema: &Schema, record_id: &RecordId, ttl: Duration) -> String {
    let (RecordLiterals { group, id, incarnation }, ttl) = (RecordLiterals::of(record_id), millis(ttl));
    let group_id = id_of(schema, &group);
    format!(
        "{BEGIN}
        UPDATE {schema}.member AS m SET beat = m.beat + 1, ttl_ms = {ttl}, renewed_at = clock_timestamp()
        WHERE m.group_id = {group_id} AND m.instance_id = {id} AND m.incarnation = {incarnation} AND NOT m.away
        RETURNING m.beat"
    )
}

/// What became of a write to a member's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    Written,
    /// A later call of the same process has written it.
    Superseded,
    /// There is no living record.
    Lost,
    /// It is away.
    Away,
}

impl Changed {
    pub(crate) fn read(answers: &Answers) -> sqlx::Result<Self> {
        if !answers.before_last(1).is_empty() {
            return Ok(Self::Written);
        }
        let away = |row: &PgRow| row.try_get::<bool, _>("away");
        Ok(match answers.last().first().map(away).transpose()? {
            Some(true) => Self::Away,
            Some(false) => Self::Superseded,
            None => Self::Lost,
        })
    }
}

/// Whether the record of this life is there, and whether it is away.
fn state_of(schema: &Schema, RecordLiterals { group, id, incarnation }: &RecordLiterals) -> String {
    let group_id = id_of(schema, group);
    format!(
        "SELECT m.away FROM {schema}.member AS m
        WHERE m.group_id = {group_id} AND m.instance_id = {id} AND m.incarnation = {incarnation}"
    )
}

/// Replaces the text of the living record. The same text again is no change for others.
pub(crate) fn update(schema: &Schema, record_id: &RecordId, record: &str, call: CallNumber) -> String {
    let literals = RecordLiterals::of(record_id);
    let (lock, here, is_own) = (lock(schema, &literals.group), here(schema, &literals.group), is_own(&literals, call));
    let (state_of, notify, record) = (state_of(schema, &literals), schema.notify(&record_id.group), text(record));
    let CallNumber { writer, number } = call;
    format!(
        "{BEGIN} {lock}
        WITH {here}, written AS (
            UPDATE {schema}.member AS m SET record = {record}, writer = {writer}, call = {number},
                changed = CASE WHEN m.record = {record} THEN m.changed ELSE h.number END
            FROM here AS h WHERE {is_own}
            RETURNING m.changed, h.id, h.number
        ), raised AS (
            UPDATE {schema}.member_group AS g SET counter = w.number, revision = w.number FROM written AS w
            WHERE g.id = w.id AND w.changed = w.number
        ), notified AS (
            SELECT {notify} FROM written AS w WHERE w.changed = w.number
        )
        SELECT w.changed, (SELECT count(*) FROM notified) AS notified FROM written AS w;
        {state_of}"
    )
}

/// Puts a record that is away in the place of the living one, as another life, so that the claims of the former one end.
pub(crate) fn step_away(schema: &Schema, record_id: &RecordId, record: &str, rejoin_grace: Duration, call: CallNumber) -> String {
    let literals = RecordLiterals::of(record_id);
    let (lock, here, is_own) = (lock(schema, &literals.group), here(schema, &literals.group), is_own(&literals, call));
    let (state_of, notify, record) = (state_of(schema, &literals), schema.notify(&record_id.group), text(record));
    let (RecordLiterals { id, incarnation, .. }, CallNumber { writer, number }, rejoin_grace) = (literals, call, millis(rejoin_grace));
    format!(
        "{BEGIN} {lock}
        WITH {here}, former AS MATERIALIZED (
            SELECT m.joined FROM here AS h JOIN {schema}.member AS m ON {is_own}
        ), written AS (
            UPDATE {schema}.member AS m SET away = true, joined = h.number, changed = h.number, beat = m.beat + 1, ttl_ms = {rejoin_grace},
                writer = {writer}, call = {number}, record = {record}, renewed_at = clock_timestamp()
            FROM here AS h WHERE {is_own}
            RETURNING m.joined
        ), parted AS (
            INSERT INTO {schema}.departure (group_id, changed, instance_id, incarnation, joined, writer, call)
            SELECT h.id, h.number, {id}, {incarnation}, f.joined, {writer}, {number} FROM here AS h CROSS JOIN former AS f
            WHERE EXISTS (SELECT 1 FROM written)
        ), raised AS (
            UPDATE {schema}.member_group AS g SET counter = h.number, revision = h.number FROM here AS h
            WHERE g.id = h.id AND EXISTS (SELECT 1 FROM written)
        )
        SELECT w.joined, {notify} AS notified FROM written AS w;
        {state_of}"
    )
}

/// The rest of a statement that has deleted members as `gone`: remembers them, and raises the group's numbers.
fn departures(schema: &Schema, notify: &str) -> String {
    format!(
        "parted AS (
            INSERT INTO {schema}.departure (group_id, changed, instance_id, incarnation, joined, writer, call)
            SELECT h.id, h.number, d.instance_id, d.incarnation, d.joined, d.writer, d.call FROM here AS h CROSS JOIN gone AS d
        ), raised AS (
            UPDATE {schema}.member_group AS g SET counter = h.number, revision = h.number,
                beats = greatest(g.beats, (SELECT max(d.beat) FROM gone AS d))
            FROM here AS h WHERE g.id = h.id AND EXISTS (SELECT 1 FROM gone)
        )
        SELECT d.instance_id, {notify} AS notified FROM gone AS d"
    )
}

/// Deletes the record of this life, whether it is away or not. Where there is none it is remembered as departed, because its registration
/// may have been given up and arrive later.
pub(crate) fn deregister(schema: &Schema, record_id: &RecordId, call: CallNumber) -> String {
    let literals = RecordLiterals::of(record_id);
    let (make_group, lock, here) = (make_group(schema, &literals.group), lock(schema, &literals.group), here(schema, &literals.group));
    let departures = departures(schema, &schema.notify(&record_id.group));
    let (RecordLiterals { id, incarnation, .. }, CallNumber { writer, number }) = (literals, call);
    // The number of this change stands for a life that no process has seen.
    format!(
        "{BEGIN} {make_group} {lock}
        WITH {here}, gone AS (
            DELETE FROM {schema}.member AS m USING here AS h
            WHERE m.group_id = h.id AND m.instance_id = {id} AND m.incarnation = {incarnation}
                AND (m.writer <> {writer} OR m.call <= {number})
            RETURNING m.instance_id, m.incarnation, m.joined, m.beat, m.writer,
                CASE WHEN m.writer = {writer} THEN {number} ELSE m.call END AS call
        ), absent AS (
            INSERT INTO {schema}.departure (group_id, changed, instance_id, incarnation, joined, writer, call)
            SELECT h.id, h.number, {id}, {incarnation}, h.number, {writer}, {number} FROM here AS h
            WHERE NOT EXISTS (
                SELECT 1 FROM {schema}.member AS o
                WHERE o.group_id = h.id AND o.instance_id = {id} AND o.incarnation = {incarnation}
            )
            RETURNING changed
        ), counted AS (
            UPDATE {schema}.member_group AS g SET counter = h.number FROM here AS h
            WHERE g.id = h.id AND EXISTS (SELECT 1 FROM absent)
        ), {departures}"
    )
}

/// Deletes those records whose beat is still the one that was seen. Their ids come back.
pub(crate) fn evict(schema: &Schema, evictions: &[(RecordId, u64)]) -> Option<String> {
    let (first, _) = evictions.first()?;
    let group = text(first.group.as_str());
    let (lock, here, departures) = (lock(schema, &group), here(schema, &group), departures(schema, &schema.notify(&first.group)));
    let ids = texts(evictions.iter().map(|(record_id, _)| record_id.instance_id.as_str()));
    let incarnations: Vec<_> = evictions.iter().map(|(record_id, _)| record_id.incarnation.to_string()).collect();
    let incarnations = texts(incarnations.iter().map(String::as_str));
    let beats = numbers(evictions.iter().map(|(_, beat)| signed(*beat)));
    Some(format!(
        "{BEGIN} {lock}
        WITH {here}, named AS MATERIALIZED (
            SELECT * FROM unnest({ids}, {incarnations}, {beats}) AS n (instance_id, incarnation, beat)
        ), gone AS (
            DELETE FROM {schema}.member AS m USING here AS h, named AS n
            WHERE m.group_id = h.id AND m.instance_id = n.instance_id AND m.incarnation = n.incarnation AND m.beat = n.beat
            RETURNING m.instance_id, m.incarnation, m.joined, m.beat, m.writer, m.call
        ), {departures}"
    ))
}

/// Writes a row of this process and nothing else: whether the database takes writes. The first time it deletes the rows of processes that
/// are gone.
pub(crate) fn probe(schema: &Schema, writer: i64, is_first: bool) -> String {
    let forget = if is_first {
        format!("DELETE FROM {schema}.observer AS o WHERE o.id <> {writer} AND o.seen_at < clock_timestamp() - interval '1 day';")
    } else {
        String::new()
    };
    format!(
        "{BEGIN} {forget}
        INSERT INTO {schema}.observer AS o (id) VALUES ({writer}) ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp()"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_never_shortened() {
        for (nanos, ms) in [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2), (2_500_000_000, 2_500)] {
            assert_eq!(millis(Duration::from_nanos(nanos)), ms, "{nanos} ns");
        }
        assert_eq!(millis(Duration::MAX), i64::MAX);
    }
}
