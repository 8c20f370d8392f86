//! The contract over Consul.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{ClaimStore, Epoch, GroupName, Resource};
use shardwise_discovery::feeds::{Hub, follow};
use shardwise_discovery::{
    AcquireOutcome, Capabilities, ClaimTable, Claims, ClaimsStream, Clock, Discovery, Grant, Notes, RecordId, Registration, Result,
    ViewSnapshot, WatchStream,
};

use crate::ConsulConfig;
use crate::caller::to_the_end;
use crate::claims::{AcquireCall, LockSession, keep_store, release};
use crate::client::Client;
use crate::error::{self, Failure};
use crate::follower::{ClaimsQuery, IndexReader, LIMITS, MembersQuery};
use crate::reader;
use crate::registrar::{MARGIN, Registrar};
use crate::registration_lock::VOID_AFTER;

/// Members that register with agents of one Consul datacenter see each other. Clones share connections and watches.
#[derive(Clone)]
pub struct ConsulBackend {
    pub(crate) registrar: Arc<Registrar>,
    hub: Hub,
    claims: Hub<ClaimTable>,
}

impl ConsulBackend {
    /// Checks the settings and reads the certificates. Nothing is contacted.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`](shardwise_discovery::ErrorKind::Misconfigured), naming the setting and the cause.
    pub fn open(config: &ConsulConfig, clock: Clock) -> Result<Self> {
        let client = Client::new(config, clock.clone()).map_err(|failure| failure.during("open"))?;
        if config.token.is_some() && client.endpoint.is_open() {
            tracing::warn!(address = %client.endpoint, "Consul's token is sent without TLS, so anyone on the network can read it: write https://, or use this machine's agent");
        }
        let registrar = Arc::new(Registrar::new(client));
        let shared = Arc::clone(&registrar);
        let hub = Hub::new(clock.clone(), LIMITS, move |feed| follow(IndexReader::new(MembersQuery::new(Arc::clone(&shared))), feed));
        let shared = Arc::clone(&registrar);
        let claims = Hub::new(clock, LIMITS, move |feed| follow(IndexReader::new(ClaimsQuery::new(Arc::clone(&shared))), feed));
        Ok(Self { registrar, hub, claims })
    }
}

impl fmt::Debug for ConsulBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulBackend").field("address", &self.registrar.client.endpoint.to_string()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Discovery for ConsulBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("consul", MARGIN).with_places().with_leftovers(VOID_AFTER)
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let (registrar, registration) = (Arc::clone(&self.registrar), registration.clone());
        let answer = to_the_end(|caller| async move { registrar.register(&registration, &caller).await }).await;
        answer.map_err(|failure| failure.during("register"))
    }

    async fn renew(&self, record_id: &RecordId, _ttl: Duration) -> Result<Grant> {
        renew(&self.registrar, record_id).await.map_err(|failure| failure.during("renew"))
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        let (registrar, registration) = (Arc::clone(&self.registrar), registration.clone());
        let answer = to_the_end(|caller| async move { registrar.update(&registration, &caller).await }).await;
        answer.map_err(|failure| failure.during("update"))
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        let (registrar, record_id) = (Arc::clone(&self.registrar), record_id.clone());
        let answer = to_the_end(|caller| async move { registrar.deregister(&record_id, &caller).await }).await;
        answer.map_err(|failure| failure.during("deregister"))
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        let (registrar, registration) = (Arc::clone(&self.registrar), registration.clone());
        let answer = to_the_end(|caller| async move { registrar.step_away(&registration, rejoin_grace, &caller).await }).await;
        answer.map_err(|failure| failure.during("step_away"))
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        if let Some(read) = self.hub.read(group).await {
            return Ok(read);
        }
        let read = async { reader::read(&self.registrar, &self.registrar.indexes.of(group)?, group).await };
        let read = read.await.map_err(|failure| failure.during("members"))?;
        Ok(ViewSnapshot { view: read.shown, proven: read.proven })
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.hub.watch(group, prove_every)
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        Some(self)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        Some(self)
    }
}

#[async_trait]
impl Claims for ConsulBackend {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        keep_store(&self.registrar.client, group, floor).await.map_err(|failure| failure.during("claim_store"))
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
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

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
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

/// Renews at the agent, then has the servers confirm the registration. The renewal alone is not enough: an agent accepts it even when
/// it has lost its servers. What counts is the start of the renewal, the earlier of the two, since the agent's timer begins there. Of a
/// member that claims the servers are asked for its session, and what counts is when they were asked, since the session's lock delay begins
/// later.
async fn renew(registrar: &Registrar, record_id: &RecordId) -> error::Result<Grant> {
    let client = &registrar.client;
    let lost = |why| Failure::Lost { instance_id: record_id.instance_id.clone(), why };
    let Some(life) = registrar.registrations.get(record_id) else { return Err(lost("this process has not made one")) };
    let (ends, started) = (life.ends(), client.clock.now());
    if started >= ends {
        registrar.registrations.forget(record_id, &life);
        return Err(lost("its TTL has expired"));
    }
    if !client.check_pass(&life.service, &life.check, &format!("renewed {}", registrar.next_change())).await? {
        registrar.registrations.forget(record_id, &life);
        return Err(lost("the agent does not know it"));
    }
    // The agent may have let it expire before the sign arrived, and then the sign has brought it back: it is ended again.
    let why = if client.clock.now() >= ends {
        "its renewal came too late"
    } else {
        life.renewed(started);
        life.stand(client).await?;
        match &life.session {
            None if registrar.is_shown(&life).await? => return Ok(Grant { started, ttl: life.ttl }),
            None => "the servers do not show it as passing",
            // The session ends with the check. Alive when this was asked, it cannot have been over for a lock delay before the deadline.
            Some(session) => match client.session_lives(&session.id).await? {
                (true, asked) => return Ok(Grant { started: asked, ttl: life.ttl }),
                (false, _) => "its session has ended",
            },
        }
    };
    registrar.registrations.forget(record_id, &life);
    if let Err(failure) = client.check_fail(&life.service, &life.check).await {
        tracing::debug!(%failure, "a lost record could not be removed; it expires with its TTL");
    }
    Err(lost(why))
}

/// The session by which a record claims: that of the registration which this process has made, or of another process' one, as the servers
/// show it.
async fn session_of(registrar: &Registrar, record_id: &RecordId) -> error::Result<Arc<LockSession>> {
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
