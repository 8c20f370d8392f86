//! The contract over NATS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::GroupName;
use shardwise_discovery::feeds::Hub;
use shardwise_discovery::{
    Capabilities, ClaimTable, Claims, Clock, Discovery, Grant, Notes, RecordId, Registration, Result, ViewSnapshot, WatchStream,
};

use crate::NatsBackendConfig;
use crate::bucket::BucketOrigin;
use crate::client::Client;
use crate::feeds::LIMITS;
use crate::handle::BucketHandle;

/// How much later than its TTL a silent member may leave the view: a beat and a probe are on their way, on a busy machine.
const MARGIN: Duration = Duration::from_secs(1);

/// Members that name the same servers and bucket. Clones share the connection.
#[derive(Clone)]
pub struct NatsBackend {
    pub(crate) handle: Arc<BucketHandle>,
    hub: Hub,
    pub(crate) claims: Hub<ClaimTable>,
}

impl NatsBackend {
    /// Checks the settings. The servers are contacted by the first call that needs them, and again by the next one if that failed.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`](shardwise_discovery::ErrorKind::Misconfigured), naming the setting and what is wrong with it.
    pub fn open(config: &NatsBackendConfig, clock: Clock) -> Result<Self> {
        let client = Client::new(config, clock).map_err(|failure| failure.during("", "open"))?;
        let handle = Arc::new(BucketHandle::new(client));
        Ok(Self { hub: Hub::observing(&handle, LIMITS), claims: Hub::observing(&handle, LIMITS), handle })
    }

    /// Makes the bucket if there is none, or checks the one that is there. Members do so too, if they may. Answers what was done, in words.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`](shardwise_discovery::ErrorKind::Misconfigured) if the settings are wrong, the servers are too old, or
    /// the bucket is not what it must be; [`ErrorKind::Denied`](shardwise_discovery::ErrorKind::Denied) without the rights; and retryable
    /// ones if no server answers.
    pub async fn init(config: &NatsBackendConfig) -> Result<String> {
        let client = Client::new(config, Clock::system()).map_err(|failure| failure.during("", "init"))?;
        let origin = client.init().await.map_err(|failure| failure.during(client.place(), "init"))?;
        let (name, place) = (client.bucket.name(), client.place());
        Ok(match origin {
            BucketOrigin::Made => format!("made the bucket {name} of {place}"),
            BucketOrigin::Found => format!("the bucket {name} of {place} exists and has the required configuration"),
        })
    }
}

impl fmt::Debug for NatsBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = &self.handle.client;
        f.debug_struct("NatsBackend").field("place", &client.place()).field("bucket", &client.bucket.name()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Discovery for NatsBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("nats", MARGIN).with_places()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.handle.register(registration).await.map_err(self.handle.during("register"))
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.handle.renew(record_id, ttl).await.map_err(self.handle.during("renew"))
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.handle.update(registration).await.map_err(self.handle.during("update"))
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.handle.deregister(record_id).await.map_err(self.handle.during("deregister"))
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        self.handle.step_away(registration, rejoin_grace).await.map_err(self.handle.during("step_away"))
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.handle.members(group).await.map_err(self.handle.during("members"))
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
