//! Claims over the file: a claim is a row that goes with its holder's record, and the file's counter numbers the acquisitions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{ClaimStore, Epoch, GroupName, Resource, SLOTS_MAX};
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsStream, RecordId, Result};

use crate::LocalBackend;
use crate::claim_statements::{encode, encode_held};
use crate::client::Client;
use crate::error::Failure;
use crate::open_store::OpenStore;

#[async_trait]
impl Claims for LocalBackend {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        self.client.call("claim_store", |store| async move { claim_store(&store, group, floor).await }).await
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let wanted: BTreeSet<_> = wanted.iter().cloned().collect();
        let acquire = |file: Arc<OpenStore>| async move { acquire(&self.client, &file, record_id, store, wanted).await };
        self.change("acquire", acquire).await
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        self.change("release", |file| async move { release(&file, record_id, held).await }).await
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        self.claims_hub.watch(group, prove_every)
    }
}

async fn claim_store(store: &OpenStore, group: &GroupName, floor: u64) -> std::result::Result<ClaimStore, Failure> {
    let known = store.claim_store(group).await?;
    if floor.min(ClaimStore::FLOOR_MAX) <= known.floor {
        return Ok(known);
    }
    store.raise_floor(group, floor).await?;
    store.claim_store(group).await
}

async fn acquire(
    client: &Client,
    file: &OpenStore,
    record_id: &RecordId,
    known: &ClaimStore,
    wanted: BTreeSet<Resource>,
) -> std::result::Result<Vec<(Resource, AcquireOutcome)>, Failure> {
    refuse_too_many(wanted.len())?;
    if let Some(Resource::Slot(slot)) = wanted.iter().find(|resource| matches!(resource, Resource::Slot(slot) if *slot >= SLOTS_MAX)) {
        return Err(Failure::NoSlot { slot: *slot });
    }
    let text = encode(&wanted);
    file.acquire(record_id, known, &text, client.clock.now()).await?;
    // The answer is what is held afterwards, by a clock that is read afterwards: a record that expired while the write waited for its
    // turn blocks no other member, and its own member gets an error.
    let highest = client.known();
    let answered = file.answer(record_id, &text, client.clock.now()).await?;
    client.check(file, &answered.at, highest)?;
    if !answered.alive {
        return Err(Failure::Lost { instance_id: record_id.instance_id.clone() });
    }
    if answered.store != *known {
        return Err(Failure::OtherStore { now: answered.store, was: *known });
    }
    // At the end of the range nothing more is granted, even if the counter was set by hand.
    known.epoch(answered.at.counter.saturating_add(1)).map_err(Failure::NoEpoch)?;
    let answer = |resource: Resource| {
        let acquired = answered.held.get(&resource).map_or(AcquireOutcome::Held, |epoch| AcquireOutcome::Granted(*epoch));
        (resource, acquired)
    };
    Ok(wanted.into_iter().map(answer).collect())
}

async fn release(file: &OpenStore, record_id: &RecordId, held: &[(Resource, Epoch)]) -> std::result::Result<(), Failure> {
    refuse_too_many(held.len())?;
    Ok(file.release(record_id, &encode_held(held)).await?)
}

const fn refuse_too_many(count: usize) -> std::result::Result<(), Failure> {
    if count > SLOTS_MAX as usize { Err(Failure::TooManyClaims { count }) } else { Ok(()) }
}
