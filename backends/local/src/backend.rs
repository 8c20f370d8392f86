//! The contract over the file.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{GroupName, Member};
use shardwise_discovery::feeds::{Hub, follow};
use shardwise_discovery::{
    Capabilities, ClaimTable, Claims, Clock, Discovery, Error, Grant, Notes, Record, RecordId, Registration, Result, ViewSnapshot,
    WatchStream,
};

use crate::LocalConfig;
use crate::client::Client;
use crate::error::Failure;
use crate::open_store::OpenStore;
use crate::poller::{LIMITS, PolledClaims, PolledGroup, PolledMembers, Poller, PollingReader};
use crate::statements::RECORDS_MAX;

/// The most bytes one record may have as JSON.
pub const RECORD_BYTES_MAX: usize = 65_536;

/// How much later than its TTL a silent member may leave the view: a poll, and a busy machine.
const MARGIN: Duration = Duration::from_millis(100);
/// How often a registration is tried while the record that stands in its way disappears.
const REGISTER_ATTEMPTS: usize = 3;

/// The embedded backend: members that name the same file see each other. Clones share the connections.
#[derive(Clone)]
pub struct LocalBackend {
    pub(crate) client: Arc<Client>,
    poller: Arc<Poller>,
    hub: Hub,
    pub(crate) claims_hub: Hub<ClaimTable>,
}

impl LocalBackend {
    /// Checks the path. The file is opened by the first call that needs it, and again by the next one if that failed.
    ///
    /// `clock` must be [`Clock::system`] wherever several processes share the file: deadlines in it are moments of that clock.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`](shardwise_discovery::ErrorKind::Misconfigured) if the path cannot be one.
    pub fn open(config: LocalConfig, clock: Clock) -> Result<Self> {
        let path = config.absolute().map_err(|failure| failure.during("open", &config.path))?;
        drop(config);
        let client = Arc::new(Client::new(path, clock.clone()));
        let poller = Arc::new(Poller::new(Arc::clone(&client)));
        Ok(Self {
            hub: following::<PolledMembers>(&poller, clock.clone()),
            claims_hub: following::<PolledClaims>(&poller, clock),
            poller,
            client,
        })
    }

    /// A call that changes something. It wakes the watches of this process at once; those of other processes notice the change when they
    /// look at the file.
    pub(crate) async fn change<T, F>(&self, operation: &'static str, work: impl FnOnce(Arc<OpenStore>) -> F + Send) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Failure>> + Send,
    {
        let done = self.client.call(operation, work).await?;
        self.poller.wake();
        Ok(done)
    }
}

/// A hub whose groups are read from the file.
fn following<P: PolledGroup>(poller: &Arc<Poller>, clock: Clock) -> Hub<P::Shown> {
    let poller = Arc::clone(poller);
    Hub::new(clock, LIMITS, move |feed| follow(PollingReader::<P>::new(Arc::clone(&poller)), feed))
}

impl fmt::Debug for LocalBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBackend").field("path", &self.client.path).finish_non_exhaustive()
    }
}

#[async_trait]
impl Discovery for LocalBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("local", MARGIN).with_places()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let record = encode("register", &registration.member)?;
        let (record_id, ttl) = (&registration.record_id(), registration.ttl);
        self.change("register", |store| async move { register(&store, record_id, &record, ttl).await }).await
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        let (client, record_id) = (Arc::clone(&self.client), record_id.clone());
        // It runs in a task, which goes on if the caller gives up or the time limit of the call passes: after the write, `renew` must still
        // check whether the renewal came too late, and undo it. Few such tasks pile up: the pool has one connection for writes, and a task
        // waits for it for a limited time.
        let task = tokio::spawn(async move {
            let store = client.bounded(client.store()).await?;
            let answer = renew(&store, &record_id, ttl).await;
            client.settle(&store, answer)
        });
        let answer = self.client.bounded(async { task.await.unwrap_or(Err(Failure::ShuttingDown)) }).await;
        answer.map_err(|failure| failure.during("renew", &self.client.path))
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        let record = encode("update", &registration.member)?;
        let record_id = &registration.record_id();
        self.change("update", |store| async move { present(record_id, store.update(record_id, &record).await?) }).await
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.change("deregister", |store| async move { Ok(store.delete(record_id).await?) }).await
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        let record = encode("step_away", &registration.away_member())?;
        let record_id = &registration.record_id();
        let step_away = |store: Arc<OpenStore>| async move {
            let now = store.clock.now();
            present(record_id, store.step_away(record_id, &record, now, now.plus(rejoin_grace)).await?)
        };
        self.change("step_away", step_away).await
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        let client = &*self.client;
        if client.is_unmade() {
            let proven = client.clock.now();
            return Ok(ViewSnapshot { view: Arc::default(), proven });
        }
        let members = |store: Arc<OpenStore>| async move {
            let mut connection = store.readers.acquire().await?;
            let proven = client.clock.now();
            let (view, _) = client.read_alive(&store, &mut connection, group, proven).await?;
            Ok(ViewSnapshot { view: Arc::new(view), proven })
        };
        client.call("members", members).await
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

fn present(record_id: &RecordId, was_there: bool) -> std::result::Result<(), Failure> {
    if was_there { Ok(()) } else { Err(Failure::Lost { instance_id: record_id.instance_id.clone() }) }
}

fn encode(operation: &'static str, member: &Member) -> Result<String> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(|refused| Error::new(refused.kind(), operation, refused.to_string()))
}

async fn register(store: &OpenStore, record_id: &RecordId, record: &str, ttl: Duration) -> std::result::Result<Grant, Failure> {
    for _ in 0..REGISTER_ATTEMPTS {
        let started = store.clock.now();
        if store.register(record_id, record, started, started.plus(ttl)).await? {
            return Ok(Grant { started, ttl });
        }
        if let Some((address, stamp)) = store.holder(record_id, store.clock.now()).await? {
            return Err(Failure::InUse { instance_id: record_id.instance_id.clone(), address, stamp });
        }
        // Full, then; perhaps of dead records. Or the holder has just gone.
        store.sweep().await?;
    }
    Err(Failure::TooMany { path: store.path.clone(), records_max: RECORDS_MAX })
}

async fn renew(store: &OpenStore, record_id: &RecordId, ttl: Duration) -> std::result::Result<Grant, Failure> {
    let lost = || Failure::Lost { instance_id: record_id.instance_id.clone() };
    let started = store.clock.now();
    let renewed = store.renew(record_id, started, started.plus(ttl)).await?.ok_or_else(lost)?;
    // The statement compared with a moment read before it. If it had to wait, the record may have expired in between, and others
    // may have seen it dead: it stays dead.
    if store.clock.now() < renewed.previous {
        return Ok(Grant { started, ttl });
    }
    // The member may have given this renewal up long ago and have registered anew.
    if let Err(failure) = store.undo_renewal(record_id, &renewed).await {
        tracing::debug!(%failure, "a record renewed too late stays until its deadline");
    }
    Err(lost())
}
