//! What all handles of a backend and its tasks share, and where a member's life stands.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, InstanceId, Moment};
use shardwise_discovery::feeds::{ObservedGroup, ObservedGroups};
use shardwise_discovery::{Error, RecordId, UsedStores};

use crate::client::Client;
use crate::error::{Failure, NatsResult};
use crate::messages::{LifeBeat, StoredBeat};
use crate::writes::GroupWrites;

/// How often a write is tried again where another one came first.
pub(crate) const TRIES: usize = 16;

/// What all handles of a backend share.
pub(crate) struct BucketHandle {
    pub(crate) client: Client,
    pub(crate) groups: ObservedGroups<Self>,
    pub(crate) stores: UsedStores,
    own: Mutex<HashMap<RecordId, OwnBeat>>,
}

/// A group that this process reads.
pub(crate) type BucketGroup = ObservedGroup<BucketHandle>;

/// A life whose end is waited for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AwaitedLife {
    pub(crate) record: RecordId,
    pub(crate) life: u64,
    pub(crate) ttl: Duration,
}

/// The last beat that this process wrote for a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnBeat {
    pub(crate) era: u64,
    pub(crate) life: u64,
    pub(crate) sequence: u64,
}

impl BucketHandle {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, groups: ObservedGroups::default(), stores: UsedStores::default(), own: Mutex::default() }
    }

    pub(crate) fn during(&self, operation: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| failure.during(self.client.place(), operation)
    }

    pub(crate) fn own(&self) -> MutexGuard<'_, HashMap<RecordId, OwnBeat>> {
        // Nothing under this lock can panic halfway through a change.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How this process's writes to the group go; `None`: it does not read the group.
    pub(crate) fn writes(&self, group: &GroupName) -> Option<Arc<GroupWrites>> {
        self.groups.find(group).map(|group| Arc::clone(&group.extra))
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
}

/// A write that began then was answered with that sequence. The group is proven as of its beginning once it comes back.
pub(crate) fn wrote(group: &BucketGroup, started: Moment, sequence: u64) {
    group.extra.answer(started, sequence);
    group.wake();
}

pub(crate) fn is_own(beat: &LifeBeat, record_id: &RecordId) -> bool {
    beat.incarnation == record_id.incarnation
}

pub(crate) fn lost(record_id: &RecordId) -> Failure {
    Failure::Lost { instance_id: record_id.instance_id.clone() }
}
