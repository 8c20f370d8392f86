//! The SQLite store: an outbox inside the application's own database file, for publishers on one machine.

mod clean;
mod config;
mod dead_letters;
mod enqueue;
mod error;
mod fence;
mod fetch;
mod record;
mod restored;
mod schema;
mod status;
mod sweep;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use shardwise::SlotSet;
use sqlx::error::BoxDynError;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Connection, Database, Decode, Sqlite, SqliteConnection, SqlitePool, Transaction, Type};

pub use config::SqliteConfig;
pub use enqueue::enqueue;
pub use fence::SlotHolder;
#[doc(hidden)]
pub use fetch::{DUE, FETCH};
pub use schema::{MIGRATIONS, SCHEMA_VERSION};
#[doc(hidden)]
pub use sweep::DELIVERED;

pub use crate::store::sql::Migration;
use crate::store::sql::{ErrorContext, signed};
use crate::store::{
    Backlog, CleanResult, FetchRequest, FetchResult, Hold, Outcome, PublisherRegistration, RestoreResult, Status, Store, SweepResult,
    TouchReply,
};
use crate::{ErrorKind, NewEvent, Result, private_file};

/// The duration of one attempt to get the write lock inside `SQLite`, which sleeps 1, 2 and 2 ms in it.
const LOCK_TURN: &str = "PRAGMA busy_timeout = 5";
const WAL_RETRY: Duration = Duration::from_millis(5);

/// An outbox in a SQLite file. Cheap to clone; clones share their connections: one that writes, two that read, one that watches.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    config: SqliteConfig,
    writer: SqlitePool,
    readers: SqlitePool,
    /// A separate connection, because `PRAGMA data_version` reports the commits of *other* connections.
    watcher: SqlitePool,
    /// The search for idle aggregates continues behind this one.
    forget_after: Arc<AtomicI64>,
}

impl SqliteStore {
    /// Opens an outbox created by [`SqliteStore::init`]. Fails without creating anything if there is none, or one with another schema.
    pub async fn open(config: impl Into<SqliteConfig>) -> Result<Self> {
        let store = Self::connect(config.into(), false).await?;
        schema::check(&store.readers).await.at(&store)?;
        Ok(store)
    }

    /// Creates the file, for this user only, if it does not exist (its directory must exist), and the outbox's tables that are missing.
    /// Does nothing to an outbox that is up to date; a newer schema is an error.
    pub async fn init(config: impl Into<SqliteConfig>) -> Result<Self> {
        let store = Self::connect(config.into(), true).await?;
        schema::migrate(&store.readers).await.at(&store)?;
        Ok(store)
    }

    async fn connect(config: SqliteConfig, create: bool) -> Result<Self> {
        error::check_path(&config.path, create)?;
        if create {
            // SQLite reports a failure more clearly.
            let _ = private_file::make(&config.path);
        }
        let options = config.connect_options(create);
        // Waiting for a lock happens inside SQLite; waiting for a connection lasts only as long as the calls before.
        let wait = config.busy_timeout * 4 + Duration::from_secs(1);
        let pool = |connections| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(wait)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
                .after_release(|connection, _| Box::pin(is_sound(connection)))
        };
        // The writer tries to get the lock in short attempts, see [`SqliteStore::when_free`].
        let in_turns =
            pool(1).after_connect(|connection, _| Box::pin(async { sqlx::query(LOCK_TURN).execute(connection).await.map(drop) }));
        let store = Self {
            writer: in_turns.connect_lazy_with(options.clone()),
            readers: pool(2).connect_lazy_with(options.clone()),
            watcher: pool(1).connect_lazy_with(options),
            config,
            forget_after: Arc::default(),
        };
        // SQLite does not wait for its turn where several switch a new file to WAL.
        let connect = || async {
            let connected = store.writer.acquire().await;
            if connected.as_ref().is_err_and(error::is_busy) {
                tokio::time::sleep(WAL_RETRY).await;
            }
            connected
        };
        drop(store.when_free(connect).await.at(&store)?);
        for suffix in ["", "-wal", "-shm"] {
            let mut name = store.config.path.clone().into_os_string();
            name.push(suffix);
            private_file::warn_if_public(Path::new(&name));
        }
        Ok(store)
    }

    /// Repeats a write that found the file locked, for at most the busy timeout. `SQLite` itself waits in increasing sleeps, up to 100 ms:
    /// among several publishers that write all the time, a sleeper may find the lock taken again for seconds, which delays a handover or a
    /// takeover. Short attempts give all writers the same chance.
    async fn when_free<T, W>(&self, write: impl Fn() -> W) -> Result<T, sqlx::Error>
    where
        W: Future<Output = Result<T, sqlx::Error>>,
    {
        let waiting = Instant::now();
        loop {
            match write().await {
                Err(error) if error::is_busy(&error) && waiting.elapsed() < self.config.busy_timeout => {}
                result => return result,
            }
        }
    }

    /// Begins a write transaction for [`enqueue`], for programs without a pool. After a failed statement drop it and begin
    /// another one: SQLite may have rolled back by itself, and later statements would then be committed immediately.
    pub async fn begin(&self) -> Result<Transaction<'static, Sqlite>> {
        self.when_free(|| self.writer.begin_with("BEGIN IMMEDIATE")).await.at(self)
    }

    /// Commits what [`SqliteStore::begin`] began.
    pub async fn commit(&self, tx: Transaction<'static, Sqlite>) -> Result<()> {
        tx.commit().await.at(self)
    }

    /// Writes events in one transaction and returns their ids.
    pub async fn enqueue_all(&self, events: Vec<NewEvent>) -> Result<Vec<String>> {
        let mut tx = self.begin().await?;
        let mut ids = Vec::with_capacity(events.len());
        for event in events {
            ids.push(enqueue(&mut tx, event).await.at(self)?);
        }
        self.commit(tx).await?;
        Ok(ids)
    }

    /// Writes events in one transaction, and returns for each its id or the reason why it was refused (kind `Event`); a refused event does
    /// not prevent the others.
    pub async fn enqueue_each(&self, events: Vec<NewEvent>) -> Result<Vec<Result<String>>> {
        let mut tx = self.begin().await?;
        let mut answers = Vec::with_capacity(events.len());
        for event in events {
            let answer = enqueue(&mut tx, event).await;
            match &answer {
                Err(error) if error.kind() != ErrorKind::Event => return answer.map(|_| answers).at(self),
                _ => answers.push(answer),
            }
        }
        self.commit(tx).await?;
        Ok(answers)
    }

    /// Raises every epoch above `epoch_above` and every key's next sequence above `sequence_above`, the highest numbers that consumers saw
    /// before commits were lost; at most [`ABOVE_MAX`](crate::store::ABOVE_MAX) each. Slots are taken from their holders. `operations.md`
    /// has the procedure. [`ErrorKind::Settings`] if one of the numbers is too high.
    pub async fn restored(&self, epoch_above: u64, sequence_above: u64) -> Result<RestoreResult> {
        restored::restored(self, epoch_above, sequence_above).await
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.config.path
    }

    /// Closes the connections; calls under way finish first.
    pub async fn close(&self) {
        self.watcher.close().await;
        self.readers.close().await;
        self.writer.close().await;
    }

    /// The present time on the fence's clock, in nanoseconds.
    fn boot_nanos(&self) -> i64 {
        i64::try_from(self.config.clock.now().as_nanos()).unwrap_or(i64::MAX)
    }
}

/// Whether a returned connection can be used again. After SQLite has rolled back by itself (the disk is full or reports an error), the
/// driver's own ROLLBACK fails, and it still counts the transaction as open: every BEGIN on that connection would fail.
async fn is_sound(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    // Runs the rollback of a transaction that was dropped.
    connection.ping().await?;
    let sound = !connection.is_in_transaction();
    if !sound {
        tracing::warn!("a transaction of the outbox ended by itself (a full disk, an I/O error): its connection is closed and reopened");
    }
    Ok(sound)
}

/// Milliseconds since 1970: for retries, retention and display, where a changed clock does no harm.
fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Text, which SQLite does not check: bytes that are not UTF-8 become replacement characters instead of an error, which would stop the
/// whole outbox.
struct LossyText(String);

impl From<LossyText> for String {
    fn from(text: LossyText) -> Self {
        text.0
    }
}

impl Type<Sqlite> for LossyText {
    fn type_info() -> <Sqlite as Database>::TypeInfo {
        <[u8] as Type<Sqlite>>::type_info()
    }

    fn compatible(found: &<Sqlite as Database>::TypeInfo) -> bool {
        <[u8] as Type<Sqlite>>::compatible(found)
    }
}

impl<'r> Decode<'r, Sqlite> for LossyText {
    fn decode(value: <Sqlite as Database>::ValueRef<'r>) -> Result<Self, BoxDynError> {
        let bytes = <&[u8] as Decode<Sqlite>>::decode(value)?;
        Ok(Self(String::from_utf8_lossy(bytes).into_owned()))
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn id(&self) -> Result<Option<String>> {
        sqlx::query_scalar("SELECT outbox_id FROM outbox_meta").fetch_one(&self.readers).await.at(self)
    }

    async fn register(&self, me: &PublisherRegistration) -> Result<()> {
        fence::register(self, me).await
    }

    async fn touch(&self, me: &PublisherRegistration) -> Result<TouchReply> {
        fence::touch(self, me).await
    }

    async fn take(&self, me: &PublisherRegistration, slots: &SlotSet) -> Result<Vec<Hold>> {
        fence::take(self, me, slots).await
    }

    async fn release(&self, me: &PublisherRegistration, holds: &[Hold]) -> Result<()> {
        fence::release(self, me, holds).await
    }

    async fn leave(&self, me: &PublisherRegistration) -> Result<()> {
        fence::leave(self, me).await
    }

    async fn fetch(&self, me: &PublisherRegistration, request: &FetchRequest) -> Result<FetchResult> {
        fetch::fetch(self, me, request).await
    }

    async fn record(&self, me: &PublisherRegistration, outcomes: &[Outcome], delete: bool) -> Result<Vec<Hold>> {
        record::record(self, me, outcomes, delete).await
    }

    async fn place_new(&self, limit: usize) -> Result<usize> {
        clean::place_new(self, limit).await
    }

    async fn sweep(&self, retention: Duration, position: i64, limit: usize) -> Result<SweepResult> {
        sweep::sweep(self, retention, position, limit).await
    }

    async fn change_mark(&self) -> Result<Option<u64>> {
        let version: i64 = sqlx::query_scalar("PRAGMA data_version").fetch_one(&self.watcher).await.at(self)?;
        Ok(Some(version.cast_unsigned()))
    }

    async fn clean(&self, parked_retention: Duration, limit: usize) -> Result<CleanResult> {
        clean::clean(self, parked_retention, limit).await
    }

    async fn status(&self) -> Result<Status> {
        status::status(self).await
    }

    async fn backlog(&self, most: usize) -> Result<Option<Backlog>> {
        status::backlog(self, signed(most)).await.map(Some)
    }

    async fn unblock(&self, key: Option<&str>) -> Result<u64> {
        let update = "UPDATE outbox_aggregate
            SET blocked_at = NULL, retry_at = NULL, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL
            WHERE blocked_at IS NOT NULL AND (?1 IS NULL OR key = ?1)";
        Ok(self.when_free(|| sqlx::query(update).bind(key).execute(&self.writer)).await.at(self)?.rows_affected())
    }
}
