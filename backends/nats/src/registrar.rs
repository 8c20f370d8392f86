//! The calls of members. A member has two subjects: its beats, whose last sequence is what observers judge, and its record, which others
//! see. Each write names the sequence that it replaces, so one that arrives late, after its caller gave it up, changes nothing.
//!
//! A life begins with its first beat and ends with a tombstone over it, or with the first beat of another life. The record comes after the
//! beat and goes after the tombstone. A process that is stopped in between leaves a record without a life, which an observer
//! deletes.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, Member, Moment};
use shardwise_discovery::{Grant, Record, RecordId, Registration, ViewSnapshot};

use crate::client::bounded;
use crate::error::{Failure, NatsResult};
use crate::handle::{AwaitedLife, BucketHandle, OwnBeat, TRIES, is_own, lost, wrote};
use crate::jetstream::CasOutcome;
use crate::messages::{self, LifeBeat, StoredBeat};
use crate::writes::WriteUnderWay;

/// The most bytes one record may have as JSON.
pub const RECORD_BYTES_MAX: usize = 65_536;
/// The shortest TTL; shorter requests get this one.
pub const TTL_MIN: Duration = Duration::from_secs(1);

impl BucketHandle {
    pub(crate) async fn register(self: &Arc<Self>, registration: &Registration) -> NatsResult<Grant> {
        let (record, record_id) = (encode(&registration.member)?, registration.record_id());
        let ttl = registration.ttl.max(TTL_MIN);
        let registered = bounded(async {
            let under_way = WriteUnderWay::of(self.writes(&record_id.group));
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
                wrote(&self.groups.joined(self, record_id), started, sequence);
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
        self.groups.refused(self, wanted, AwaitedLife { record, life: beat.life, ttl: beat.ttl });
        let address = member.and_then(|stored| stored.member.address);
        Ok(Failure::InUse { instance_id: instance_id.clone(), address, stamp: sequence })
    }

    pub(crate) async fn renew(self: &Arc<Self>, record_id: &RecordId, ttl: Duration) -> NatsResult<Grant> {
        let under_way = WriteUnderWay::of(self.writes(&record_id.group));
        let renewed = bounded(self.try_renew(record_id, ttl.max(TTL_MIN))).await;
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
                let group = self.groups.of_member(record_id).unwrap_or_else(|| self.groups.joined(self, record_id));
                wrote(&group, started, sequence);
                return Ok(Grant { started, ttl });
            }
            // Another handle has renewed, an answer was lost, or the life is over: what stands there says which.
            last = None;
        }
        Err(Failure::Contended)
    }

    pub(crate) async fn update(&self, registration: &Registration) -> NatsResult<()> {
        let (record, record_id) = (encode(&registration.member)?, registration.record_id());
        bounded(async {
            let (_, beat) = self.living(&record_id).await?;
            self.change_record(&record_id, &beat, &record).await
        })
        .await
    }

    /// The record first, which others see; then the beat, which ends the life's claims and lasts for the rejoin grace. A member that is
    /// stopped in between is evicted after its TTL.
    pub(crate) async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> NatsResult<()> {
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
                let away = LifeBeat { is_away: true, ttl: rejoin_grace, ..beat };
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
        let interest = self.groups.read(self, group, false);
        let read = interest.read_as_of(self.client.clock.now()).await?;
        let view = read.view.ok_or(Failure::Missed)?;
        Ok(ViewSnapshot { view, proven: read.proven })
    }
}

fn encode(member: &Member) -> NatsResult<String> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(Failure::Unwritable)
}
