//! Statements that read a group: a poll, which says whether anything has changed and brings the beats that are asked for, and the changes
//! since a number. All of one reading is of one snapshot.

use std::time::Duration;

use shardwise_core::{Epoch, GroupName, InstanceId, MEMBERS_MAX, Member, Resource, SLOTS_MAX};
use shardwise_discovery::Record;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::claims::resource_of;
use super::literal::{joined, text};
use super::position::LogPosition;
use super::{POSITION, Schema, id_of, unsigned};
use crate::answers::Answers;
use crate::error::{Failure, PgResult};

/// Twice what slots there can be, so that there is room for as many names.
const CLAIMS_MAX: u32 = SLOTS_MAX * 2;

/// A number below all.
pub(crate) const NOTHING_KNOWN: i64 = -1;

/// The numbers of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) position: LogPosition,
    /// Of the last change of members, and of claims.
    pub(crate) revision: i64,
    pub(crate) claimed: i64,
    /// Who knows less than this must read everything.
    pub(crate) trimmed: i64,
}

impl Head {
    fn read(row: &PgRow) -> sqlx::Result<Self> {
        let (revision, claimed, trimmed) = (row.try_get("revision")?, row.try_get("claimed")?, row.try_get("trimmed")?);
        Ok(Self { position: LogPosition::read(row)?, revision, claimed, trimmed })
    }
}

/// The beat of one life, and the TTL that its last renewal asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beat {
    /// The number of joining.
    pub(crate) life: i64,
    pub(crate) count: u64,
    pub(crate) ttl: Duration,
}

fn head(schema: &Schema, group: &GroupName, beats: &str) -> String {
    let group = text(group.as_str());
    format!(
        "SELECT s.store_id, {POSITION}, coalesce(g.revision, 0) AS revision, coalesce(g.claimed, 0) AS claimed,
            coalesce(g.trimmed, 0) AS trimmed{beats}
        FROM {schema}.store AS s LEFT JOIN {schema}.member_group AS g ON g.name = {group} WHERE s.one"
    )
}

/// The group's numbers, and the beats of these lives.
pub(crate) fn poll(schema: &Schema, group: &GroupName, lives: &[i64]) -> String {
    let beats = if lives.is_empty() {
        ", '' AS beats".to_owned()
    } else {
        format!(
            ", coalesce((
                SELECT string_agg(m.joined || ' ' || m.beat || ' ' || m.ttl_ms, ',') FROM {schema}.member AS m
                WHERE m.group_id = g.id AND m.joined IN ({})
            ), '') AS beats",
            joined(lives.iter().copied())
        )
    };
    head(schema, group, &beats)
}

/// The answer to [`poll`].
pub(crate) fn read_poll(answers: &Answers) -> PgResult<(Head, Vec<Beat>)> {
    let row = answers.last().first().ok_or(Failure::Emptied)?;
    let beats: String = row.try_get("beats").map_err(Failure::of_row)?;
    let beats = beats.split(',').filter(|entry| !entry.is_empty()).map(beat).collect::<Option<_>>();
    let beats = beats.ok_or_else(|| Failure::BadRow { why: "the beats of members are not numbers".into() })?;
    Ok((Head::read(row).map_err(Failure::of_row)?, beats))
}

/// A beat as [`poll`] asks for it.
pub(crate) fn beat(entry: &str) -> Option<Beat> {
    let mut numbers = entry.split(' ').map(|number| number.parse::<u64>().ok());
    let (life, beat, ttl) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(Beat { life: i64::try_from(life).ok()?, count: beat, ttl: Duration::from_millis(ttl) })
}

/// What of a group is known already; [`NOTHING_KNOWN`] if nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownNumbers {
    pub(crate) members: i64,
    /// `None`: claims are not asked for.
    pub(crate) claims: Option<i64>,
}

/// The group's numbers, and all that changed above those that are known.
pub(crate) fn changes(schema: &Schema, group: &GroupName, known: KnownNumbers) -> String {
    let (head, id, above, members_max) = (head(schema, group, ""), id_of(schema, &text(group.as_str())), known.members, MEMBERS_MAX + 1);
    let claims = known.claims.map_or(String::new(), |above| {
        format!(
            "SELECT c.slot, c.name, c.holder, c.epoch FROM {schema}.claim AS c
            WHERE c.group_id = {id} AND c.changed > {above} LIMIT {};",
            CLAIMS_MAX + 1
        )
    });
    format!(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
        {claims}
        SELECT d.instance_id, d.joined FROM {schema}.departure AS d WHERE d.group_id = {id} AND d.changed > {above} AND {above} >= 0;
        SELECT m.instance_id, m.joined, m.beat, m.ttl_ms, m.record FROM {schema}.member AS m
        WHERE m.group_id = {id} AND m.changed > {above} LIMIT {members_max};
        {head}"
    )
}

/// A record that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MirroredMember {
    pub(crate) member: Member,
    pub(crate) beat: Beat,
}

/// A claim as its row says. It counts only if the holder's life is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimRow {
    pub(crate) resource: Resource,
    /// The life that acquired it last and has not released it.
    pub(crate) holder: Option<i64>,
    pub(crate) epoch: Epoch,
}

/// The answer to [`changes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupChanges {
    pub(crate) head: Head,
    pub(crate) members: Vec<MirroredMember>,
    /// Lives that have ended.
    pub(crate) departed: Vec<(InstanceId, i64)>,
    /// `None`: claims were not asked for.
    pub(crate) claims: Option<Vec<ClaimRow>>,
}

impl GroupChanges {
    pub(crate) fn read(answers: &Answers, known: KnownNumbers) -> PgResult<Self> {
        let head = answers.last().first().ok_or(Failure::Emptied)?;
        let head = Head::read(head).map_err(Failure::of_row)?;
        let members = answers.before_last(1).iter().map(member_of).collect::<PgResult<Vec<_>>>()?;
        if members.len() > MEMBERS_MAX as usize {
            return Err(Failure::TooManyMembers);
        }
        let departed = answers.before_last(2).iter().map(departure_of).collect::<PgResult<_>>()?;
        let claims = known.claims.map(|_| answers.before_last(3).iter().map(claim_of).collect::<PgResult<Vec<_>>>()).transpose()?;
        if claims.as_ref().is_some_and(|claims| claims.len() > CLAIMS_MAX as usize) {
            return Err(Failure::TooManyClaimsThere { max: CLAIMS_MAX });
        }
        Ok(Self { head, members, departed, claims })
    }
}

fn instance_id(row: &PgRow) -> PgResult<InstanceId> {
    let id: String = row.try_get("instance_id").map_err(Failure::of_row)?;
    InstanceId::new(&id).map_err(|error| Failure::Unreadable { instance_id: id, why: error.to_string() })
}

fn member_of(row: &PgRow) -> PgResult<MirroredMember> {
    let instance_id = instance_id(row)?;
    let read = || -> sqlx::Result<(i64, u64, u64, String)> {
        Ok((row.try_get("joined")?, unsigned(row, "beat")?, unsigned(row, "ttl_ms")?, row.try_get("record")?))
    };
    let (life, beat, ttl_ms, record) = read().map_err(Failure::of_row)?;
    let unreadable = |error: &dyn std::fmt::Display| Failure::Unreadable { instance_id: instance_id.to_string(), why: error.to_string() };
    let member = Record::decode(instance_id.clone(), life.unsigned_abs(), &record).map_err(|error| unreadable(&error))?;
    Ok(MirroredMember { member, beat: Beat { life, count: beat, ttl: Duration::from_millis(ttl_ms) } })
}

fn departure_of(row: &PgRow) -> PgResult<(InstanceId, i64)> {
    Ok((instance_id(row)?, row.try_get("joined").map_err(Failure::of_row)?))
}

fn claim_of(row: &PgRow) -> PgResult<ClaimRow> {
    let bad = |why| Failure::BadClaim { why };
    let resource = resource_of(row).map_err(Failure::of_row)?.map_err(bad)?;
    let epoch: i64 = row.try_get("epoch").map_err(Failure::of_row)?;
    let epoch = Epoch::new(epoch.unsigned_abs()).map_err(|error| bad(format!("of {resource}: {error}")))?;
    Ok(ClaimRow { resource, holder: row.try_get("holder").map_err(Failure::of_row)?, epoch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_are_three_numbers() {
        let read = beat("12 7 3000");
        assert_eq!(read, Some(Beat { life: 12, count: 7, ttl: Duration::from_secs(3) }));
        for entry in ["", "1", "1 2", "1 2 x", "-1 2 3", "18446744073709551615 2 3"] {
            assert_eq!(beat(entry), None, "{entry:?}");
        }
    }
}
