//! A group as this process has read it. Pure: it takes messages in the order of the stream, and shows what stands there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{Claim, ClaimName, Epoch, GroupName, Holder, InstanceId, Resource, View};
use shardwise_discovery::silence::SeenRecord;
use shardwise_discovery::{ClaimTable, Note, RecordId};

use crate::consumer::StreamDelivery;
use crate::messages::{ClaimMessage, StoredBeat, StoredMember, read_note};
use crate::names::{GroupSubjects, SubjectPart};

/// How long a marker is kept that says what is gone.
const MARKERS_LAST: Duration = Duration::from_hours(1);

/// The notes of a group, as far as each can be read.
pub(crate) type ReadNotes = BTreeMap<ClaimName, Result<Note, String>>;

/// The group, as of the messages that were taken.
#[derive(Debug)]
pub(crate) struct BucketMirror {
    subjects: GroupSubjects,
    members: BTreeMap<InstanceId, StoredMember>,
    /// Of those that are followed.
    beats: BTreeMap<InstanceId, StoredBeat>,
    claims: BTreeMap<Resource, (ClaimMessage, Epoch)>,
    /// With the reason where one cannot be read.
    notes: Arc<ReadNotes>,
    /// Markers by what they stand for: sequence and time.
    left: BTreeMap<InstanceId, (u64, u64)>,
    released: BTreeMap<Resource, (u64, u64)>,
    /// What cannot be read, by subject.
    unreadable: BTreeMap<String, String>,
    /// The highest sequence of any member's record or marker.
    revision: u64,
    delivered: u64,
    /// The time of the newest message.
    newest: u64,
}

/// What a message has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BucketChange {
    pub(crate) members: bool,
    pub(crate) claims: bool,
    pub(crate) notes: bool,
}

impl BucketChange {
    pub(crate) const fn with(self, other: Self) -> Self {
        Self { members: self.members || other.members, claims: self.claims || other.claims, notes: self.notes || other.notes }
    }
}

/// A marker that has stood for long enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OldMarker {
    pub(crate) subject: String,
    pub(crate) sequence: u64,
}

impl BucketMirror {
    pub(crate) fn new(subjects: GroupSubjects) -> Self {
        Self {
            subjects,
            members: BTreeMap::new(),
            beats: BTreeMap::new(),
            claims: BTreeMap::new(),
            notes: Arc::default(),
            left: BTreeMap::new(),
            released: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            revision: 0,
            delivered: 0,
            newest: 0,
        }
    }

    /// The highest sequence that was delivered: everything before it that is followed was taken.
    pub(crate) const fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(crate) const fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes one message. Also answers whose beat it was.
    pub(crate) fn take(&mut self, delivery: &StreamDelivery) -> (BucketChange, Option<InstanceId>) {
        self.delivered = self.delivered.max(delivery.sequence);
        self.newest = self.newest.max(delivery.stored_at);
        let (sequence, payload) = (delivery.sequence, &*delivery.payload);
        let at = (sequence, delivery.stored_at);
        let none = BucketChange::default();
        match self.subjects.part(&delivery.subject) {
            Some(SubjectPart::Beat(id)) => match StoredBeat::read(sequence, payload) {
                Ok(beat) => {
                    self.beats.insert(id.clone(), beat);
                    self.read_again(&delivery.subject);
                    (none, Some(id))
                }
                Err(why) => self.cannot_read(&delivery.subject, why),
            },
            Some(SubjectPart::Member(id)) => {
                self.revision = self.revision.max(sequence);
                self.read_again(&delivery.subject);
                if payload.is_empty() {
                    self.members.remove(&id);
                    self.left.insert(id, at);
                    return (BucketChange { members: true, claims: true, notes: false }, None);
                }
                self.left.remove(&id);
                match StoredMember::read(id.clone(), sequence, payload) {
                    Ok(member) => {
                        let former = self.members.insert(id, member);
                        let is_same_life = former.is_some_and(|former| self.is_same_holder(&former));
                        (BucketChange { members: true, claims: !is_same_life, notes: false }, None)
                    }
                    // What stood there before is out of date, and what stands there now keeps the place.
                    Err(why) => self.cannot_read(&delivery.subject, why),
                }
            }
            Some(SubjectPart::Claim(resource)) => self.take_claim(&delivery.subject, resource, at, payload),
            Some(SubjectPart::Note(name)) => {
                let notes = Arc::make_mut(&mut self.notes);
                // One that was edited by hand keeps no other note and no member from being read.
                match read_note(sequence, payload).transpose() {
                    Some(note) => notes.insert(name, note),
                    None => notes.remove(&name),
                };
                (BucketChange { notes: true, ..none }, None)
            }
            Some(SubjectPart::Other) | None => (none, None),
        }
    }

    fn take_claim(&mut self, subject: &str, resource: Resource, at: (u64, u64), payload: &[u8]) -> (BucketChange, Option<InstanceId>) {
        let change = BucketChange { claims: true, ..BucketChange::default() };
        let read = ClaimMessage::read(payload).and_then(|claim| {
            let epoch = |claim: ClaimMessage| claim.epoch(at.0).map(|epoch| (claim, epoch)).map_err(|error| error.to_string());
            claim.map(epoch).transpose()
        });
        match read {
            Ok(Some(claim)) => {
                self.released.remove(&resource);
                self.claims.insert(resource, claim);
            }
            Ok(None) => {
                self.claims.remove(&resource);
                self.released.insert(resource, at);
            }
            Err(why) => {
                // It has no holder, and no member is granted it until it is deleted by hand.
                self.claims.remove(&resource);
                tracing::warn!(subject, why, "a claim cannot be read and is left out; delete that key");
            }
        }
        (change, None)
    }

    /// Whether a record is of the same life as the one that stands there now, and away or not like that.
    fn is_same_holder(&self, former: &StoredMember) -> bool {
        let present = self.members.get(&former.member.instance_id);
        present.is_some_and(|present| present.life == former.life && is_away(present) == is_away(former))
    }

    fn read_again(&mut self, subject: &str) {
        if !self.unreadable.is_empty() {
            self.unreadable.remove(subject);
        }
    }

    fn cannot_read(&mut self, subject: &str, why: String) -> (BucketChange, Option<InstanceId>) {
        self.unreadable.insert(subject.to_owned(), why);
        (BucketChange { members: true, ..BucketChange::default() }, None)
    }

    /// What cannot be read, and why.
    pub(crate) fn unreadable(&self) -> Option<(&str, &str)> {
        self.unreadable.iter().next().map(|(subject, why)| (subject.as_str(), why.as_str()))
    }

    /// What was read of a beat apart; messages that are on their way to the reader may be newer.
    pub(crate) fn put_beat(&mut self, id: &InstanceId, beat: Option<StoredBeat>) {
        match beat {
            Some(beat) if self.beats.get(id).is_none_or(|known| known.sequence() < beat.sequence()) => {
                self.beats.insert(id.clone(), beat);
            }
            Some(_) => {}
            None => {
                self.beats.remove(id);
            }
        }
    }

    /// What stands at the subject of a member's beats, if that is followed.
    pub(crate) fn beat(&self, id: &InstanceId) -> Option<&StoredBeat> {
        self.beats.get(id)
    }

    /// A member's record as an observer takes it; `None` if it has ended, or there is none.
    pub(crate) fn seen(&self, group: &GroupName, id: &InstanceId) -> Option<SeenRecord> {
        let record = |incarnation| RecordId { group: group.clone(), instance_id: id.clone(), incarnation };
        let member = self.members.get(id);
        match self.beats.get(id) {
            Some(StoredBeat::Living { sequence, beat }) => {
                Some(SeenRecord { record: record(beat.incarnation), ttl: beat.ttl, beat: Some(*sequence) })
            }
            Some(StoredBeat::Evicted { sequence }) if member.is_none_or(|member| member.life < *sequence) => None,
            _ => member.map(|member| SeenRecord { record: record(member.member.incarnation), ttl: member.ttl, beat: None }),
        }
    }

    /// All records as an observer takes them.
    pub(crate) fn all_seen(&self, group: &GroupName) -> Vec<SeenRecord> {
        let ids: BTreeSet<_> = self.members.keys().chain(self.beats.keys()).collect();
        ids.into_iter().filter_map(|id| self.seen(group, id)).collect()
    }

    /// Whether that life is known to have ended.
    pub(crate) fn has_ended(&self, id: &InstanceId, life: u64) -> bool {
        self.beats.get(id).is_some_and(|beat| beat.has_ended(life))
    }

    /// Members whose life is evicted and whose record stands there all the same, because the process that evicted them was stopped in
    /// between. Each with the sequence of the tombstone.
    pub(crate) fn half_evicted(&self) -> Vec<(InstanceId, u64)> {
        let tombstone = |(id, beat): (&InstanceId, &StoredBeat)| match beat {
            StoredBeat::Evicted { sequence } if self.members.get(id).is_some_and(|member| member.life < *sequence) => {
                Some((id.clone(), *sequence))
            }
            _ => None,
        };
        self.beats.iter().filter_map(tombstone).collect()
    }

    /// The shortest TTL of a member that is to renew.
    pub(crate) fn least_ttl(&self) -> Option<Duration> {
        self.members.values().filter(|member| !is_away(member)).map(|member| member.ttl).min()
    }

    pub(crate) fn member_count(&self) -> usize {
        self.members.len()
    }

    /// The first member by id, which tidies up for all.
    pub(crate) fn first_member(&self) -> Option<&InstanceId> {
        self.members.keys().next()
    }

    pub(crate) fn view(&self, revision: u64, foreign: &[InstanceId]) -> Arc<View> {
        let members = self.members.values().map(|member| member.member.clone()).collect();
        Arc::new(View::new(revision, members).with_foreign(foreign.to_vec()))
    }

    /// The claims whose holders are there and not away.
    pub(crate) fn claim_table(&self) -> Arc<ClaimTable> {
        let claim = |(resource, (claim, epoch)): (&Resource, &(ClaimMessage, Epoch))| {
            self.members.get(&claim.holder).filter(|member| member.life == claim.life && !is_away(member))?;
            let holder = Holder { instance_id: claim.holder.clone(), incarnation: claim.incarnation };
            Some((resource.clone(), Claim { holder, epoch: *epoch }))
        };
        Arc::new(ClaimTable(self.claims.iter().filter_map(claim).collect()))
    }

    pub(crate) fn notes(&self) -> Arc<ReadNotes> {
        Arc::clone(&self.notes)
    }

    /// Markers that are not needed any more: at most so many. The newest record or marker of a member stays, so that revisions never fall.
    pub(crate) fn old_markers(&self, most: usize) -> Vec<OldMarker> {
        let lasts = u64::try_from(MARKERS_LAST.as_nanos()).unwrap_or(u64::MAX);
        let is_old = |at: u64| self.newest.saturating_sub(at) > lasts;
        let left = self.left.iter().filter(|(_, (_, at))| is_old(*at)).flat_map(|(id, (sequence, _))| {
            let record = (*sequence != self.revision).then(|| OldMarker { subject: self.subjects.member(id), sequence: *sequence });
            // The tombstone was written before the marker.
            [Some(OldMarker { subject: self.subjects.beat(id), sequence: *sequence }), record]
        });
        let released = self.released.iter().filter(|(_, (_, at))| is_old(*at));
        let released = released.map(|(resource, (sequence, _))| OldMarker { subject: self.subjects.claim(resource), sequence: *sequence });
        left.flatten().chain(released).take(most).collect()
    }

    /// A marker was forgotten by the server.
    pub(crate) fn forget_marker(&mut self, marker: &OldMarker) {
        match self.subjects.part(&marker.subject) {
            Some(SubjectPart::Member(id)) => {
                self.left.remove(&id);
            }
            Some(SubjectPart::Claim(resource)) => {
                self.released.remove(&resource);
            }
            Some(SubjectPart::Beat(id)) if self.beats.get(&id).is_some_and(|beat| beat.sequence() <= marker.sequence) => {
                self.beats.remove(&id);
            }
            _ => {}
        }
    }
}

fn is_away(member: &StoredMember) -> bool {
    member.member.state == shardwise_core::MemberState::Away
}

#[cfg(test)]
mod tests;
