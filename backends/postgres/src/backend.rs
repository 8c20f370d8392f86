//! The contract over PostgreSQL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::GroupName;
use shardwise_discovery::feeds::Hub;
use shardwise_discovery::{
    Capabilities, ClaimTable, Claims, Clock, Discovery, Grant, Notes, RecordId, Registration, Result, ViewSnapshot, WatchStream,
};

use crate::PostgresBackendConfig;
use crate::client::Client;
use crate::error::{Context, Failure};
use crate::feeds::LIMITS;
use crate::init;
use crate::shared::Shared;
use crate::sql::Schema;

/// How much later than its TTL a silent member may leave the view: its last renewal is seen within a poll, and a busy machine.
const MARGIN: Duration = Duration::from_secs(1);

/// Members that name the same database and schema. Clones share the connections.
#[derive(Clone)]
pub struct PostgresBackend {
    pub(crate) shared: Arc<Shared>,
    hub: Hub,
    pub(crate) claims: Hub<ClaimTable>,
}

impl PostgresBackend {
    /// Checks the settings. The database is contacted by the first call that needs it, and again by the next one if that failed.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`](shardwise_discovery::ErrorKind::Misconfigured), naming the setting and what is wrong with it.
    pub fn open(config: &PostgresBackendConfig, clock: Clock) -> Result<Self> {
        let shared = Arc::new(Shared::new(client(config, clock, "open")?));
        Ok(Self { hub: Hub::observing(&shared, LIMITS), claims: Hub::observing(&shared, LIMITS), shared })
    }

    /// Makes the schema and its tables, or brings them up to date; does nothing if they are. Several processes may do so at once. The user
    /// needs the right to create them, which members do not need. Answers what was done, in words.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`](shardwise_discovery::ErrorKind::Misconfigured) if the settings are wrong, or the tables are those of a
    /// newer version or of another program; [`ErrorKind::Denied`](shardwise_discovery::ErrorKind::Denied), with the statement that grants
    /// what is missing; and retryable ones if the server does not answer.
    pub async fn init(config: &PostgresBackendConfig) -> Result<String> {
        let client = client(config, Clock::system(), "init")?;
        init::init(&client).await.map_err(|failure| client.context.during(&failure, "init"))
    }
}

fn client(config: &PostgresBackendConfig, clock: Clock, operation: &'static str) -> Result<Client> {
    let made = || -> std::result::Result<_, Failure> { Ok((config.options()?, Schema::new(&config.schema)?)) };
    // No database is known yet, and failures of settings name none.
    let nowhere = Context { place: String::new(), user: String::new(), schema: String::new() };
    let (options, schema) = made().map_err(|failure| nowhere.during(&failure, operation))?;
    Ok(Client::new(options, schema, clock))
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { place, user, schema } = &self.shared.client.context;
        f.debug_struct("PostgresBackend").field("place", place).field("user", user).field("schema", schema).finish_non_exhaustive()
    }
}

#[async_trait]
impl Discovery for PostgresBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("postgres", MARGIN).with_places()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.shared.register(registration).await.map_err(self.shared.during("register"))
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.shared.renew(record_id, ttl).await.map_err(self.shared.during("renew"))
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.shared.update(registration).await.map_err(self.shared.during("update"))
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.shared.deregister(record_id).await.map_err(self.shared.during("deregister"))
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        self.shared.step_away(registration, rejoin_grace).await.map_err(self.shared.during("step_away"))
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.shared.members(group).await.map_err(self.shared.during("members"))
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
