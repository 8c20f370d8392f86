//! Who holds what: a key for each resource, locked by the holder's session (`docs/internals/backend-contract.md`).
//!
//! The session ends with the member's TTL check, which has half of the TTL; what it had locked
//! is held back for its lock delay, the other half. A member's deadline is counted from a read
//! that showed the session alive, so no other member is granted anything before that deadline.

mod acquire;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod keys;
mod session;
mod store;
mod table;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{ClaimStore, Epoch, GroupName, Resource};
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsStream, RecordId};

pub(crate) use self::acquire::release_all;
use self::acquire::{AcquireCall, release};
pub(crate) use self::session::{LockSession, SHARE, check_ttl};
pub(crate) use self::table::ClaimsQuery;
use crate::ConsulBackend;
use crate::caller::{Caller, to_the_end};
use crate::error::{Failure, Result};
use crate::health::InstanceFilter;
use crate::names;
use crate::registrar::Registrar;
use crate::registrations::LiveRegistration;

#[async_trait]
impl Claims for ConsulBackend {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> shardwise_discovery::Result<ClaimStore> {
        store::keep(&self.registrar.client, group, floor).await.map_err(|failure| failure.during("claim_store"))
    }

    async fn acquire(
        &self,
        record_id: &RecordId,
        store: &ClaimStore,
        wanted: &[Resource],
    ) -> shardwise_discovery::Result<Vec<(Resource, AcquireOutcome)>> {
        let (registrar, record_id, store, wanted) = (Arc::clone(&self.registrar), record_id.clone(), *store, wanted.to_vec());
        // To the end, so that what was granted is remembered.
        let answer = to_the_end(|caller| async move { acquire(&registrar, &caller, &record_id, store, &wanted).await }).await;
        answer.map_err(|failure| failure.during("acquire"))
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> shardwise_discovery::Result<()> {
        let (registrar, record_id, held) = (Arc::clone(&self.registrar), record_id.clone(), held.to_vec());
        let answer = to_the_end(|_| async move {
            match ClaimantSession::of(&registrar, &record_id).await {
                Ok(means) => release(&registrar.client, &record_id, means.session()?, &held).await,
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

async fn acquire(
    registrar: &Registrar,
    caller: &Caller,
    record_id: &RecordId,
    store: ClaimStore,
    wanted: &[Resource],
) -> Result<Vec<(Resource, AcquireOutcome)>> {
    let means = ClaimantSession::of(registrar, record_id).await?;
    AcquireCall { client: &registrar.client, caller, record_id, session: means.session()?, store }.all(wanted).await
}

/// By what a record claims.
enum ClaimantSession {
    /// The registration that this process has made.
    Own(RecordId, Arc<LiveRegistration>),
    /// Another process' one, as the servers show it.
    Found(LockSession),
}

impl ClaimantSession {
    async fn of(registrar: &Registrar, record_id: &RecordId) -> Result<Self> {
        match registrar.registrations.get(record_id) {
            Some(life) => Ok(Self::Own(record_id.clone(), life)),
            None => found(registrar, record_id).await.map(Self::Found),
        }
    }

    fn session(&self) -> Result<&LockSession> {
        match self {
            Self::Own(record_id, life) => {
                life.session.as_ref().ok_or_else(|| Failure::DoesNotClaim { instance_id: record_id.instance_id.clone() })
            }
            Self::Found(session) => Ok(session),
        }
    }
}

/// The session that this record has by another process' registration.
async fn found(registrar: &Registrar, record_id: &RecordId) -> Result<LockSession> {
    let lost = || Failure::Lost { instance_id: record_id.instance_id.clone(), why: "the servers show none" };
    let (client, prefix) = (&registrar.client, names::check_prefix(record_id));
    let list =
        client.passing(&names::service_name(&record_id.group), InstanceFilter::Instance(record_id.instance_id.as_str()), None).await?;
    let own =
        list.entries.iter().find_map(|entry| Some((&entry.node.name, entry.service.check().filter(|check| check.starts_with(&prefix))?)));
    let (node, check) = own.ok_or_else(lost)?;
    client.session_of(node, check).await?.map(LockSession::new).ok_or_else(lost)
}
