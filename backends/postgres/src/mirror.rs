//! A group as this process has read it: its members by id and by life, and its claims. Pure: it takes what was read, and shows it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use shardwise_core::{Claim, Epoch, GroupName, Holder, InstanceId, Resource, View};
use shardwise_discovery::silence::SeenRecord;
use shardwise_discovery::{ClaimTable, RecordId};

use crate::sql::reads::{Beat, GroupChanges, KnownNumbers, MirroredMember, NOTHING_KNOWN};

/// The group, as of the numbers that are known.
#[derive(Debug, Default)]
pub(crate) struct GroupMirror {
    /// `None` before anything was read.
    known: Option<i64>,
    members: BTreeMap<InstanceId, MirroredMember>,
    lives: HashMap<i64, InstanceId>,
    /// `None` while claims are not read.
    claims: Option<MirroredClaims>,
}

#[derive(Debug, Default)]
struct MirroredClaims {
    known: Option<i64>,
    /// With the life that acquired each last, whether that is there or not.
    rows: BTreeMap<Resource, (i64, Epoch)>,
}

/// What reading has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MirrorChange {
    pub(crate) members: bool,
    pub(crate) claims: bool,
}

impl GroupMirror {
    /// Whether to read claims. What was known of them is forgotten where they are not.
    pub(crate) fn read_claims(&mut self, wanted: bool) {
        if wanted != self.claims.is_some() {
            self.claims = wanted.then(MirroredClaims::default);
        }
    }

    /// What is known, for the next reading.
    pub(crate) fn known(&self) -> KnownNumbers {
        let claims = self.claims.as_ref().map(|claims| claims.known.unwrap_or(NOTHING_KNOWN));
        KnownNumbers { members: self.known.unwrap_or(NOTHING_KNOWN), claims }
    }

    /// Whether the numbers of the group say that something has changed.
    pub(crate) fn is_behind(&self, revision: i64, claimed: i64) -> bool {
        self.known != Some(revision) || self.claims.as_ref().is_some_and(|claims| claims.known != Some(claimed))
    }

    /// Has everything read anew.
    pub(crate) fn forget(&mut self) {
        let wanted = self.claims.is_some();
        *self = Self::default();
        self.read_claims(wanted);
    }

    /// Takes what was read above `known`. `None`: something in between was deleted, and everything must be read.
    pub(crate) fn take(&mut self, known: KnownNumbers, changes: GroupChanges) -> Option<MirrorChange> {
        let lacks = |number: i64| number != NOTHING_KNOWN && number < changes.head.trimmed;
        if lacks(known.members) || known.claims.is_some_and(lacks) {
            return None;
        }
        let is_whole = known.members == NOTHING_KNOWN;
        let members_changed = is_whole || !changes.members.is_empty() || !changes.departed.is_empty();
        if is_whole {
            self.members.clear();
            self.lives.clear();
        }
        for (id, life) in changes.departed {
            if self.members.get(&id).is_some_and(|there| there.beat.life == life) {
                self.members.remove(&id);
            }
            self.lives.remove(&life);
        }
        for row in changes.members {
            let (id, life) = (row.member.instance_id.clone(), row.beat.life);
            if let Some(former) = self.members.insert(id.clone(), row) {
                self.lives.remove(&former.beat.life);
            }
            self.lives.insert(life, id);
        }
        self.known = Some(changes.head.revision);
        let mut claims_changed = false;
        if let (Some(mirrored), Some(rows), Some(above)) = (&mut self.claims, changes.claims, known.claims) {
            // A life that ends or begins takes claims away or brings them.
            claims_changed = above == NOTHING_KNOWN || !rows.is_empty() || members_changed;
            if above == NOTHING_KNOWN {
                mirrored.rows.clear();
            }
            for row in rows {
                match row.holder {
                    Some(life) => mirrored.rows.insert(row.resource, (life, row.epoch)),
                    None => mirrored.rows.remove(&row.resource),
                };
            }
            mirrored.known = Some(changes.head.claimed);
        }
        Some(MirrorChange { members: members_changed, claims: claims_changed })
    }

    /// Takes beats that were looked at, and gives back those records that have another beat or TTL than before. `None`: a life that was
    /// asked for is not there although no change was made: a row was deleted by hand.
    pub(crate) fn take_beats(&mut self, asked: &[i64], beats: &[Beat]) -> Option<Vec<InstanceId>> {
        let mut changed = Vec::new();
        for beat in beats {
            let Some(id) = self.lives.get(&beat.life) else { continue };
            let Some(row) = self.members.get_mut(id) else { continue };
            if row.beat != *beat {
                row.beat = *beat;
                changed.push(id.clone());
            }
        }
        let is_gone = |life: &i64| self.lives.contains_key(life) && beats.iter().all(|beat| beat.life != *life);
        if asked.iter().any(is_gone) { None } else { Some(changed) }
    }

    /// The life of a member.
    pub(crate) fn life(&self, id: &InstanceId) -> Option<i64> {
        self.members.get(id).map(|row| row.beat.life)
    }

    /// The record of a life, if it is there.
    pub(crate) fn record_of_life(&self, group: &GroupName, life: i64) -> Option<SeenRecord> {
        self.seen(group, self.lives.get(&life)?)
    }

    /// A member's record as an observer takes it.
    pub(crate) fn seen(&self, group: &GroupName, id: &InstanceId) -> Option<SeenRecord> {
        let row = self.members.get(id)?;
        let record = RecordId { group: group.clone(), instance_id: id.clone(), incarnation: row.member.incarnation };
        Some(SeenRecord { record, ttl: row.beat.ttl, beat: Some(row.beat.count) })
    }

    /// All records as an observer takes them.
    pub(crate) fn all_seen(&self, group: &GroupName) -> Vec<SeenRecord> {
        self.members.keys().filter_map(|id| self.seen(group, id)).collect()
    }

    /// The shortest TTL of a member that is to renew.
    pub(crate) fn least_ttl(&self) -> Option<std::time::Duration> {
        let renewing = self.members.values().filter(|row| row.member.state != shardwise_core::MemberState::Away);
        renewing.map(|row| row.beat.ttl).min()
    }

    pub(crate) fn view(&self, revision: u64) -> Arc<View> {
        Arc::new(View::new(revision, self.members.values().map(|row| row.member.clone()).collect()))
    }

    /// The claims whose holders are there; `None` while claims are not read.
    pub(crate) fn claim_table(&self) -> Option<Arc<ClaimTable>> {
        let rows = &self.claims.as_ref()?.rows;
        let claim = |(resource, (life, epoch)): (&Resource, &(i64, Epoch))| {
            let member = &self.members.get(self.lives.get(life)?)?.member;
            let holder = Holder { instance_id: member.instance_id.clone(), incarnation: member.incarnation };
            Some((resource.clone(), Claim { holder, epoch: *epoch }))
        };
        Some(Arc::new(ClaimTable(rows.iter().filter_map(claim).collect())))
    }
}

#[cfg(test)]
mod tests;
