//! Claims over NATS: a subject each, which names the life of its holder and is held for as long as that life lasts. The epoch is the
//! sequence of the message, above the floor.

mod acquire;
mod store;

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use shardwise_core::{ClaimStore, Epoch, GroupName, Resource, SLOTS_MAX};
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsStream, RecordId, Result};

use crate::NatsBackend;
use crate::client::bounded_by;
use crate::error::{Failure, NatsResult};
use crate::handle::BucketHandle;
use crate::jetstream::CasOutcome;
use crate::messages::ClaimMessage;

/// How many requests of one call are under way at a time.
const AT_ONCE: usize = 256;
/// How long a call of up to all slots may take.
const CLAIMS_LIMIT: Duration = Duration::from_secs(30);

#[async_trait]
impl Claims for NatsBackend {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        self.handle.claim_store(group, floor.min(ClaimStore::FLOOR_MAX)).await.map_err(self.handle.during("claim_store"))
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let wanted: BTreeSet<_> = wanted.iter().cloned().collect();
        let acquired = bounded_by(CLAIMS_LIMIT, self.handle.acquire(record_id, store, wanted));
        acquired.await.map_err(self.handle.during("acquire"))
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        let released = bounded_by(CLAIMS_LIMIT, self.handle.release(record_id, held.to_vec()));
        released.await.map_err(self.handle.during("release"))
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        self.claims.watch(group, prove_every)
    }
}

impl BucketHandle {
    pub(crate) async fn release(&self, record_id: &RecordId, held: Vec<(Resource, Epoch)>) -> NatsResult<()> {
        refuse_too_many(held.len())?;
        let releasing = held.into_iter().map(|(resource, epoch)| async move { self.release_one(record_id, &resource, epoch).await });
        stream::iter(releasing).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Writes a marker over the claim, if this incarnation holds it under that epoch.
    async fn release_one(&self, record_id: &RecordId, resource: &Resource, epoch: Epoch) -> NatsResult<()> {
        let subject = self.client.bucket.group(&record_id.group).claim(resource);
        let Some(message) = self.client.last(&subject).await? else { return Ok(()) };
        // What cannot be read is no claim of this member.
        let claim = ClaimMessage::read(&message.payload).ok().flatten();
        let is_mine = claim.is_some_and(|claim| {
            let is_holder = claim.holder == record_id.instance_id && claim.incarnation == record_id.incarnation;
            is_holder && claim.epoch(message.sequence) == Ok(epoch)
        });
        if is_mine {
            // Refused: it has changed meanwhile, and is not held under that epoch any more.
            let (CasOutcome::Written(_) | CasOutcome::Refused) = self.client.write(subject, message.sequence, Vec::new()).await?;
        }
        Ok(())
    }
}

const fn refuse_too_many(count: usize) -> NatsResult<()> {
    if count > SLOTS_MAX as usize { Err(Failure::TooManyClaims { count }) } else { Ok(()) }
}
