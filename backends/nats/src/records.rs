//! The records of members, which others see. Each is of one life of its member.

use std::time::Duration;

use shardwise_core::{GroupName, InstanceId};
use shardwise_discovery::RecordId;

use crate::error::{Failure, NatsResult};
use crate::handle::{BucketHandle, TRIES, lost};
use crate::jetstream::{CasOutcome, LastMessage};
use crate::messages::{self, LifeBeat, RecordText, StoredMember};

/// What stands at a member's record.
enum RecordPlace {
    Empty { sequence: u64 },
    Taken { message: LastMessage, life: u64 },
}

impl RecordPlace {
    const fn sequence(&self) -> u64 {
        match self {
            Self::Empty { sequence } => *sequence,
            Self::Taken { message, .. } => message.sequence,
        }
    }
}

impl BucketHandle {
    async fn record_place(&self, group: &GroupName, id: &InstanceId) -> NatsResult<RecordPlace> {
        let subject = self.client.bucket.group(group).member(id);
        match self.client.last(&subject).await? {
            None => Ok(RecordPlace::Empty { sequence: 0 }),
            Some(message) if message.payload.is_empty() => Ok(RecordPlace::Empty { sequence: message.sequence }),
            Some(message) => {
                let life = RecordText::read(&message.payload).map(|text| text.life);
                let life = life.map_err(|why| Failure::Unreadable { subject, why })?;
                Ok(RecordPlace::Taken { message, life })
            }
        }
    }

    /// The member's record; `None` if there is none.
    pub(crate) async fn stored_member(&self, group: &GroupName, id: &InstanceId) -> NatsResult<Option<StoredMember>> {
        let RecordPlace::Taken { message, .. } = self.record_place(group, id).await? else { return Ok(None) };
        let subject = || self.client.bucket.group(group).member(id);
        let member = StoredMember::read(id.clone(), message.sequence, &message.payload);
        member.map(Some).map_err(|why| Failure::Unreadable { subject: subject(), why })
    }

    /// Puts the record of that life in the place of whatever an older one left.
    pub(crate) async fn write_record(&self, record_id: &RecordId, life: u64, ttl: Duration, record: &str) -> NatsResult<()> {
        let RecordId { group, instance_id, .. } = record_id;
        for _ in 0..TRIES {
            let place = self.record_place(group, instance_id).await?;
            let expected = place.sequence();
            match place {
                RecordPlace::Taken { life: newer, .. } if newer > life => return Err(superseded(record_id)),
                RecordPlace::Taken { message, life: same } if same == life && holds(&message, record) => return Ok(()),
                // A marker after the first beat: the life is over already.
                RecordPlace::Empty { sequence } if sequence > life => {
                    let is_over = self.stored_beat(group, instance_id).await?.is_none_or(|beat| beat.has_ended(life));
                    if is_over {
                        return Err(superseded(record_id));
                    }
                }
                _ => {}
            }
            let subject = self.client.bucket.group(group).member(instance_id);
            let payload = messages::member(life, ttl, record).map_err(|why| Failure::Unreadable { subject: subject.clone(), why })?;
            if let CasOutcome::Written(_) = self.client.write(subject, expected, payload).await? {
                return Ok(());
            }
        }
        Err(Failure::Contended)
    }

    /// Replaces the record of a life that has one.
    pub(crate) async fn change_record(&self, record_id: &RecordId, beat: &LifeBeat, record: &str) -> NatsResult<()> {
        let RecordId { group, instance_id, .. } = record_id;
        for _ in 0..TRIES {
            let RecordPlace::Taken { message, life } = self.record_place(group, instance_id).await? else { return Err(lost(record_id)) };
            if life != beat.life {
                return Err(lost(record_id));
            }
            if holds(&message, record) {
                return Ok(());
            }
            let subject = self.client.bucket.group(group).member(instance_id);
            let payload = messages::member(life, beat.ttl, record).map_err(|why| Failure::Unreadable { subject: subject.clone(), why })?;
            if let CasOutcome::Written(_) = self.client.write(subject, message.sequence, payload).await? {
                return Ok(());
            }
        }
        Err(Failure::Contended)
    }

    /// Ends the record of a life that began before that tombstone. A marker is written even where no record stands, so that one whose
    /// writer was stopped, and goes on now, is refused.
    pub(crate) async fn end_record(&self, group: &GroupName, id: &InstanceId, tombstone: u64) -> NatsResult<()> {
        for _ in 0..TRIES {
            let place = self.record_place(group, id).await?;
            match place {
                RecordPlace::Taken { life, .. } if life > tombstone => return Ok(()),
                RecordPlace::Empty { sequence } if sequence > tombstone => return Ok(()),
                _ => {}
            }
            let subject = self.client.bucket.group(group).member(id);
            if let CasOutcome::Written(_) = self.client.write(subject, place.sequence(), Vec::new()).await? {
                return Ok(());
            }
        }
        Err(Failure::Contended)
    }
}

/// Whether a message has this very record.
fn holds(message: &LastMessage, record: &str) -> bool {
    RecordText::read(&message.payload).is_ok_and(|text| text.record == record)
}

fn superseded(record_id: &RecordId) -> Failure {
    Failure::Superseded { instance_id: record_id.instance_id.clone() }
}
