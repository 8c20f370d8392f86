//! Who holds what: a key for each resource, locked by the holder's session (DESIGN §4).
//!
//! The session ends with the member's TTL check, which has half of the TTL; what it had locked is held back for its lock delay, the other half.
//! A member's deadline is counted from a read that showed the session alive, so nobody else is given anything before that deadline.

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
use shardwise_discovery::{Acquired, Claims, ClaimsStream, Seat};

pub(crate) use self::acquire::release_all;
use self::acquire::{Asking, release};
pub(crate) use self::session::{SHARE, Session, check_ttl};
pub(crate) use self::table::ClaimFollowers;
use crate::ConsulBackend;
use crate::caller::{Caller, to_the_end};
use crate::error::{Failure, Result};
use crate::health::Whom;
use crate::names;
use crate::registrar::Registrar;
use crate::seats::Life;

#[async_trait]
impl Claims for ConsulBackend {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> shardwise_discovery::Result<ClaimStore> {
        store::keep(&self.registrar.client, group, floor).await.map_err(|failure| failure.during("claim_store"))
    }

    async fn acquire(
        &self,
        seat: &Seat,
        store: &ClaimStore,
        wanted: &[Resource],
    ) -> shardwise_discovery::Result<Vec<(Resource, Acquired)>> {
        let (registrar, seat, store, wanted) = (Arc::clone(&self.registrar), seat.clone(), *store, wanted.to_vec());
        // To the end, so that what was granted is remembered.
        let answer = to_the_end(|caller| async move { acquire(&registrar, &caller, &seat, store, &wanted).await }).await;
        answer.map_err(|failure| failure.during("acquire"))
    }

    async fn release(&self, seat: &Seat, held: &[(Resource, Epoch)]) -> shardwise_discovery::Result<()> {
        let (registrar, seat, held) = (Arc::clone(&self.registrar), seat.clone(), held.to_vec());
        let answer = to_the_end(|_| async move {
            match Means::of(&registrar, &seat).await {
                Ok(means) => release(&registrar.client, &seat, means.session()?, &held).await,
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
    seat: &Seat,
    store: ClaimStore,
    wanted: &[Resource],
) -> Result<Vec<(Resource, Acquired)>> {
    let means = Means::of(registrar, seat).await?;
    Asking { client: &registrar.client, caller, seat, session: means.session()?, store }.all(wanted).await
}

/// By what a seat claims.
enum Means {
    /// The registration that this process has made.
    Own(Seat, Arc<Life>),
    /// Another process' one, as the servers show it.
    Found(Session),
}

impl Means {
    async fn of(registrar: &Registrar, seat: &Seat) -> Result<Self> {
        match registrar.seats.get(seat) {
            Some(life) => Ok(Self::Own(seat.clone(), life)),
            None => found(registrar, seat).await.map(Self::Found),
        }
    }

    fn session(&self) -> Result<&Session> {
        match self {
            Self::Own(seat, life) => life.session.as_ref().ok_or_else(|| Failure::DoesNotClaim { instance_id: seat.instance_id.clone() }),
            Self::Found(session) => Ok(session),
        }
    }
}

/// The session that this seat has by another process' registration.
async fn found(registrar: &Registrar, seat: &Seat) -> Result<Session> {
    let lost = || Failure::Lost { instance_id: seat.instance_id.clone(), why: "the servers show none" };
    let (client, prefix) = (&registrar.client, names::check_prefix(seat));
    let list = client.passing(&names::service_name(&seat.group), Whom::Instance(seat.instance_id.as_str()), None).await?;
    let own =
        list.entries.iter().find_map(|entry| Some((&entry.node.name, entry.service.check().filter(|check| check.starts_with(&prefix))?)));
    let (node, check) = own.ok_or_else(lost)?;
    client.session_of(node, check).await?.map(Session::new).ok_or_else(lost)
}
