//! Who holds what: a key for each resource, locked by the holder's session. Why no two members overlap is in `docs.md`.

mod acquire;
pub(crate) mod keys;
mod session;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{ClaimStore, Epoch, GroupName, Resource, StoreId};
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsStream, RecordId};

pub(crate) use self::acquire::release_all;
use self::acquire::{AcquireCall, release};
pub(crate) use self::session::{LockSession, SHARE, check_ttl};
use crate::ConsulBackend;
use crate::api::READ_KEYS;
use crate::caller::to_the_end;
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::registrar::Registrar;

/// How often one tries when others change the store of claims at the same time.
const ATTEMPTS: usize = 8;

#[async_trait]
impl Claims for ConsulBackend {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> shardwise_discovery::Result<ClaimStore> {
        keep_store(&self.registrar.client, group, floor).await.map_err(|failure| failure.during("claim_store"))
    }

    async fn acquire(
        &self,
        record_id: &RecordId,
        store: &ClaimStore,
        wanted: &[Resource],
    ) -> shardwise_discovery::Result<Vec<(Resource, AcquireOutcome)>> {
        let (registrar, record_id, store, wanted) = (Arc::clone(&self.registrar), record_id.clone(), *store, wanted.to_vec());
        // To the end, so that what was granted is remembered.
        let answer = to_the_end(|caller| async move {
            let session = session_of(&registrar, &record_id).await?;
            let call = AcquireCall { client: &registrar.client, caller: &caller, record_id: &record_id, session: &session, store };
            call.all(&wanted).await
        })
        .await;
        answer.map_err(|failure| failure.during("acquire"))
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> shardwise_discovery::Result<()> {
        let (registrar, record_id, held) = (Arc::clone(&self.registrar), record_id.clone(), held.to_vec());
        let answer = to_the_end(|_| async move {
            match session_of(&registrar, &record_id).await {
                Ok(session) => release(&registrar.client, &record_id, &session, &held).await,
                // Its session is over, and with it whatever it held.
                Err(Failure::Lost { .. }) => Ok(()),
                Err(failure) => Err(failure),
            }
        })
        .await;
        answer.map_err(|failure| failure.during("release"))
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        self.claims.watch(group, prove_every)
    }
}

/// The group's store of claims as it is now, and the index of its key: one key, made once and never deleted.
async fn read_store(client: &Client, group: &GroupName) -> Result<Option<(ClaimStore, u64)>> {
    let stored = client.key("reading the store of claims", &keys::store_key(group), READ_KEYS).await?;
    stored.map(|stored| Ok((keys::store(&stored)?, stored.modify_index))).transpose()
}

/// The store as it is, made if there is none, and raised to a floor above its own.
async fn keep_store(client: &Client, group: &GroupName, floor: u64) -> Result<ClaimStore> {
    let floor = floor.min(ClaimStore::FLOOR_MAX);
    for _ in 0..ATTEMPTS {
        let (wanted, index) = match read_store(client, group).await? {
            Some((store, _)) if store.floor >= floor => return Ok(store),
            Some((store, index)) => (ClaimStore { floor, ..store }, index),
            None => (ClaimStore { id: StoreId::new(rand::random()), floor }, 0),
        };
        let (key, value) = (keys::store_key(group), keys::store_value(&wanted));
        if client.compare_and_set("writing the store of claims", &key, &value, 0, index).await?.is_some() {
            return Ok(wanted);
        }
    }
    Err(Failure::Overtaken)
}

/// The session by which a record claims: that of the registration which this process has made, or of another process' one, as the servers
/// show it.
async fn session_of(registrar: &Registrar, record_id: &RecordId) -> Result<Arc<LockSession>> {
    let instance_id = || record_id.instance_id.clone();
    if let Some(life) = registrar.registrations.get(record_id) {
        return life.session.clone().ok_or_else(|| Failure::DoesNotClaim { instance_id: instance_id() });
    }
    let lost = || Failure::Lost { instance_id: instance_id(), why: "the servers show none" };
    let shown = registrar.shown(record_id).await?;
    let (node, check) = shown.first().and_then(|entry| Some((&entry.node.name, entry.service.check()?))).ok_or_else(lost)?;
    let session = registrar.client.session_of(node, check).await?.ok_or_else(lost)?;
    Ok(Arc::new(LockSession::new(session)))
}
