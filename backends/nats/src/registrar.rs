//! The calls of members. A member has two subjects: its beats, whose last sequence is what observers judge, and its record, which others
//! see. Each write names the sequence that it replaces, so one that arrives late, after its caller gave it up, changes nothing.
//!
//! A life begins with its first beat and ends with a tombstone over it, or with the first beat of another life. The record comes after the
//! beat and goes after the tombstone. A process that is stopped in between leaves a record without a life, which an observer
//! deletes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, InstanceId, Member, Moment};
use shardwise_discovery::{Error, Grant, Record, RecordId, Registration, UsedStores, ViewSnapshot};

use crate::backend::{RECORD_BYTES_MAX, TTL_LEAST};
use crate::client::{Client, bounded};
use crate::error::{Failure, NatsResult};
use crate::feeds;
use crate::groups::{AwaitedLife, BucketGroup, BucketGroups, ReadingInterest};
use crate::jetstream::CasOutcome;
use crate::messages::{self, LifeBeat, StoredBeat};
use crate::observer;
use crate::writes::WriteUnderWay;

/// How often a write is tried again where another one came first.
pub(crate) const TRIES: usize = 16;

/// What all handles of a backend share.
pub(crate) struct BucketHandle {
    pub(crate) client: Client,
    pub(crate) groups: BucketGroups,
    pub(crate) stores: UsedStores,
    own: Mutex<HashMap<RecordId, OwnBeat>>,
}

/// The last beat that this process wrote for a member.
#[derive(Debug, Clone, Copy)]
struct OwnBeat {
    era: u64,
    life: u64,
    sequence: u64,
}

impl BucketHandle {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, groups: BucketGroups::default(), stores: UsedStores::default(), own: Mutex::default() }
    }

    pub(crate) fn during(&self, operation: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| failure.during(self.client.place(), operation)
    }

    fn own(&self) -> MutexGuard<'_, HashMap<RecordId, OwnBeat>> {
        // Nothing under this lock can panic halfway through a change.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, group: Arc<BucketGroup>) {
        observer::start(self, group);
    }

    /// A watch reads the group for as long as it keeps the answer.
    pub(crate) fn interest(self: &Arc<Self>, group: &GroupName, claims: bool) -> ReadingInterest {
        self.groups.read(group, claims, |group| self.start(group))
    }

    /// The last message of the member's beats.
    pub(crate) async fn stored_beat(&self, group: &GroupName, id: &InstanceId) -> NatsResult<Option<StoredBeat>> {
        let subject = self.client.bucket.group(group).beat(id);
        let Some(message) = self.client.last(&subject).await? else { return Ok(None) };
        StoredBeat::read(message.sequence, &message.payload).map(Some).map_err(|why| Failure::Unreadable { subject, why })
    }

    /// The beat of this very life of the member, while it renews; with the sequence.
    pub(crate) async fn living(&self, record_id: &RecordId) -> NatsResult<(u64, LifeBeat)> {
        match self.stored_beat(&record_id.group, &record_id.instance_id).await? {
            Some(StoredBeat::Living { sequence, beat }) if is_own(&beat, record_id) && !beat.is_away => Ok((sequence, beat)),
            _ => Err(lost(record_id)),
        }
    }

    pub(crate) async fn register(self: &Arc<Self>, registration: &Registration) -> NatsResult<Grant> {
        let (record, record_id) = (encode(&registration.member)?, registration.record_id());
        let ttl = registration.ttl.max(TTL_LEAST);
        let registered = bounded(async {
            let under_way = WriteUnderWay::of(self.groups.find(&record_id.group));
            self.client.warn_of_short_ttl(ttl).await;
            let begun = self.begin_life(&record_id, ttl).await;
            // Refused is answered too.
            if !matches!(&begun, Err(failure) if failure.is_passing()) {
                under_way.answered();
            }
            let Some((started, life)) = begun? else { return Ok(None) };
            self.write_record(&record_id, life, ttl, &record).await?;
            Ok(Some(started))
        });
        match registered.await? {
            Some(started) => Ok(Grant { started, ttl }),
            None => Err(self.in_use(&record_id).await?),
        }
    }

    /// Writes the first beat of a life, or the next one of the life that this incarnation has. Answers when that began, and the life;
    /// `None` if another incarnation is alive.
    async fn begin_life(self: &Arc<Self>, record_id: &RecordId, ttl: Duration) -> NatsResult<Option<(Moment, u64)>> {
        let RecordId { group, instance_id, incarnation } = record_id;
        for _ in 0..TRIES {
            let there = self.stored_beat(group, instance_id).await?;
            let kept = there.as_ref().and_then(StoredBeat::renewing).filter(|beat| is_own(beat, record_id)).map(|beat| beat.life);
            if kept.is_none() && there.as_ref().is_some_and(|there| there.renewing().is_some()) {
                return Ok(None);
            }
            let payload = match kept {
                Some(life) => messages::beat(&LifeBeat { incarnation: *incarnation, life, ttl, is_away: false }),
                None => messages::first_beat(*incarnation, ttl),
            };
            let (started, era) = (self.client.clock.now(), self.client.history.now().era);
            let subject = self.client.bucket.group(group).beat(instance_id);
            let expected = there.as_ref().map_or(0, StoredBeat::sequence);
            if let CasOutcome::Written(sequence) = self.client.write(subject, expected, payload).await? {
                let life = kept.unwrap_or(sequence);
                self.own().insert(record_id.clone(), OwnBeat { era, life, sequence });
                self.groups.joined(record_id, |group| self.start(group)).wrote(started, sequence);
                return Ok(Some((started, life)));
            }
        }
        Err(Failure::Contended)
    }

    /// Who has the id, for the message; its end is waited for from now on.
    async fn in_use(self: &Arc<Self>, wanted: &RecordId) -> NatsResult<Failure> {
        let RecordId { group, instance_id, .. } = wanted;
        let found = bounded(async {
            let beat = self.stored_beat(group, instance_id).await?;
            // Even a record that this version cannot read keeps others from the id.
            let member = self.stored_member(group, instance_id).await.ok().flatten();
            Ok((beat, member))
        });
        let (beat, member) = found.await?;
        let Some(StoredBeat::Living { sequence, beat }) = beat.filter(|beat| beat.renewing().is_some()) else {
            // It has just ended.
            return Ok(Failure::Contended);
        };
        let record = RecordId { incarnation: beat.incarnation, ..wanted.clone() };
        self.groups.refused(wanted, AwaitedLife { record, life: beat.life, ttl: beat.ttl }, |group| self.start(group));
        let address = member.and_then(|stored| stored.member.address);
        Ok(Failure::InUse { instance_id: instance_id.clone(), address, stamp: sequence })
    }

    pub(crate) async fn renew(self: &Arc<Self>, record_id: &RecordId, ttl: Duration) -> NatsResult<Grant> {
        let under_way = WriteUnderWay::of(self.groups.find(&record_id.group));
        let renewed = bounded(self.try_renew(record_id, ttl.max(TTL_LEAST))).await;
        if !matches!(&renewed, Err(failure) if failure.is_passing()) {
            under_way.answered();
        }
        if matches!(renewed, Err(Failure::Lost { .. })) {
            self.forget(record_id);
        }
        renewed
    }

    async fn try_renew(self: &Arc<Self>, record_id: &RecordId, ttl: Duration) -> NatsResult<Grant> {
        let RecordId { group, instance_id, incarnation } = record_id;
        let era = self.client.history.now().era;
        let known = self.own().get(record_id).copied().filter(|own| own.era == era);
        let mut last = known.map(|own| (own.sequence, own.life));
        for _ in 0..TRIES {
            let (expected, life) = if let Some(last) = last {
                last
            } else {
                let (sequence, beat) = self.living(record_id).await?;
                if known.is_some_and(|own| own.sequence > sequence) {
                    return Err(Failure::Behind);
                }
                (sequence, beat.life)
            };
            let (started, era) = (self.client.clock.now(), self.client.history.now().era);
            let payload = messages::beat(&LifeBeat { incarnation: *incarnation, life, ttl, is_away: false });
            let subject = self.client.bucket.group(group).beat(instance_id);
            if let CasOutcome::Written(sequence) = self.client.write(subject, expected, payload).await? {
                self.own().insert(record_id.clone(), OwnBeat { era, life, sequence });
                self.groups.renewed(record_id, |group| self.start(group)).wrote(started, sequence);
                return Ok(Grant { started, ttl });
            }
            // Another handle has renewed, an answer was lost, or the life is over: what stands there says which.
            last = None;
        }
        Err(Failure::Contended)
    }

    /// Whether what stands at the subject of a member's beats shows that its life in this process is over. One that registers just now has
    /// a newer beat than what was read.
    pub(crate) fn is_over(&self, record_id: &RecordId, there: &StoredBeat) -> bool {
        let is_alive = there.renewing().is_some_and(|beat| is_own(beat, record_id));
        !is_alive && self.own().get(record_id).is_none_or(|own| own.sequence < there.sequence())
    }

    pub(crate) fn forget(&self, record_id: &RecordId) {
        self.own().remove(record_id);
        self.groups.left(record_id);
    }

    pub(crate) async fn update(&self, registration: &Registration) -> NatsResult<()> {
        let (record, record_id) = (encode(&registration.member)?, registration.record_id());
        bounded(async {
            let (_, beat) = self.living(&record_id).await?;
            self.change_record(&record_id, &beat, &record).await
        })
        .await
    }

    /// The record first, which others see; then the beat, which ends the life's claims and lasts for the grace. A member that is
    /// stopped in between is buried after its TTL.
    pub(crate) async fn step_away(&self, registration: &Registration, grace: Duration) -> NatsResult<()> {
        let (record, record_id) = (encode(&registration.away_member())?, registration.record_id());
        let RecordId { group, instance_id, .. } = &record_id;
        let stepping = async {
            for _ in 0..TRIES {
                let (sequence, beat) = match self.stored_beat(group, instance_id).await? {
                    Some(StoredBeat::Living { beat, .. }) if is_own(&beat, &record_id) && beat.is_away => return Ok(()),
                    Some(StoredBeat::Living { sequence, beat }) if is_own(&beat, &record_id) => (sequence, beat),
                    _ => return Err(lost(&record_id)),
                };
                self.change_record(&record_id, &beat, &record).await?;
                let away = LifeBeat { is_away: true, ttl: grace, ..beat };
                let subject = self.client.bucket.group(group).beat(instance_id);
                if let CasOutcome::Written(_) = self.client.write(subject, sequence, messages::beat(&away)).await? {
                    return Ok(());
                }
            }
            Err(Failure::Contended)
        };
        bounded(stepping).await?;
        self.forget(&record_id);
        Ok(())
    }

    pub(crate) async fn deregister(&self, record_id: &RecordId) -> NatsResult<()> {
        let RecordId { group, instance_id, .. } = record_id;
        let leaving = async {
            for _ in 0..TRIES {
                let there = self.stored_beat(group, instance_id).await?;
                match &there {
                    Some(StoredBeat::Living { beat, .. }) if !is_own(beat, record_id) => return Ok(()),
                    Some(_) => {}
                    None => {
                        // What stands there without a beat belongs to the life that wrote it.
                        let member = self.stored_member(group, instance_id).await?;
                        if member.is_some_and(|stored| stored.member.incarnation != record_id.incarnation) {
                            return Ok(());
                        }
                    }
                }
                // Also where nothing stands, or another tombstone: a first beat that was given up, and goes on now, is refused.
                let (subject, expected) =
                    (self.client.bucket.group(group).beat(instance_id), there.as_ref().map_or(0, StoredBeat::sequence));
                if let CasOutcome::Written(tombstone) = self.client.write(subject, expected, Vec::new()).await? {
                    return self.end_record(group, instance_id, tombstone).await;
                }
            }
            Err(Failure::Contended)
        };
        bounded(leaving).await?;
        self.forget(record_id);
        Ok(())
    }

    pub(crate) async fn members(self: &Arc<Self>, group: &GroupName) -> NatsResult<ViewSnapshot> {
        let interest = self.interest(group, false);
        let read = feeds::read_as_of(&interest, self.client.clock.now()).await?;
        let view = read.view.ok_or(Failure::Missed)?;
        Ok(ViewSnapshot { view, proven: read.proven })
    }
}

fn encode(member: &Member) -> NatsResult<String> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(Failure::Unwritable)
}

fn is_own(beat: &LifeBeat, record_id: &RecordId) -> bool {
    beat.incarnation == record_id.incarnation
}

pub(crate) fn lost(record_id: &RecordId) -> Failure {
    Failure::Lost { instance_id: record_id.instance_id.clone() }
}
