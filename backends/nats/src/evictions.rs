//! Ends lives that were silent, and tidies up after those that have ended. What is decided when is in [`crate::observer`].

use std::sync::Arc;

use shardwise_core::{GroupName, InstanceId};
use shardwise_discovery::silence::Eviction;

use crate::client::bounded;
use crate::error::NatsResult;
use crate::handle::BucketHandle;
use crate::jetstream::CasOutcome;
use crate::messages::StoredBeat;
use crate::mirror::OldMarker;

/// What stands at the subject of a member's beats after an eviction was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictionOutcome {
    pub(crate) is_evicted: bool,
    pub(crate) beat: Option<StoredBeat>,
}

/// Writes a tombstone on the condition of what was seen: the beat's sequence, or that there is none. A renewal writes to the same subject,
/// so one of the two is refused. Then the record goes.
pub(crate) async fn evict(handle: Arc<BucketHandle>, eviction: Eviction) -> NatsResult<EvictionOutcome> {
    let (group, id) = (&eviction.record.group, &eviction.record.instance_id);
    let carried_out = async {
        let subject = handle.client.bucket.group(group).beat(id);
        match handle.client.write(subject, eviction.seen.unwrap_or(0), Vec::new()).await? {
            CasOutcome::Written(sequence) => {
                handle.end_record(group, id, sequence).await?;
                Ok(EvictionOutcome { is_evicted: true, beat: Some(StoredBeat::Evicted { sequence }) })
            }
            CasOutcome::Refused => Ok(EvictionOutcome { is_evicted: false, beat: handle.stored_beat(group, id).await? }),
        }
    };
    bounded(carried_out).await
}

/// Deletes the record of a member that was evicted by a process that did not come to it.
pub(crate) async fn finish(handle: Arc<BucketHandle>, group: GroupName, id: InstanceId, tombstone: u64) -> NatsResult<()> {
    bounded(handle.end_record(&group, &id, tombstone)).await
}

/// Has the server forget old markers; answers those that are gone. A newer message of the same subject stays.
pub(crate) async fn sweep(handle: Arc<BucketHandle>, markers: Vec<OldMarker>) -> NatsResult<Vec<OldMarker>> {
    for marker in &markers {
        bounded(handle.client.purge(&marker.subject, marker.sequence)).await?;
    }
    Ok(markers)
}
