//! Opening the file, once and lazily, and keeping it open until it is found replaced.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::Clock;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions};
use tokio::sync::OnceCell;

use crate::boot;
use crate::error::{Failure, primary_code};
use crate::open_store::{BUSY_TIMEOUT, OpenStore, options};
use crate::statements::RecordsVersion;
use crate::store_file::{self, FileId};

/// How long a call waits for its turn among the calls of this process.
const TURN_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How long one call may take in all, with opening.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// How often WAL mode is asked for while others look at a file that is being made.
const WAL_RETRY: Duration = Duration::from_millis(10);
/// SQLite allows one writer at a time; a queue of our own is fairer than its sleeping retries.
const WRITERS: u32 = 1;
/// Connections for lists. The poller has a separate one.
const READERS: u32 = 2;
/// "shwd", so that `file` and SQLite know whose file it is.
const APPLICATION_ID: i64 = 0x7368_7764;
/// The version of the schema that a program has to know to use the file. Additions that it may leave alone do not raise it, so that
/// programs of both kinds share a file in any order; they are found by their tables.
const SCHEMA_VERSION: i64 = 1;
/// The scripts that make the tables, in order. Which of them a file has had is found by its tables, because those after the first add to
/// version 1 of the schema and do not raise its number.
pub(crate) const SCRIPTS: [&str; 3] = [
    include_str!("../migrations/0001_members.sql"),
    include_str!("../migrations/0002_claims.sql"),
    include_str!("../migrations/0003_notes.sql"),
];

/// One statement, since another process may be making the file right now.
const INSPECT: &str = "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),
    (SELECT count(*) FROM sqlite_schema), EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'claim'),
    EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'note')";
const STORE_ID: &str = "SELECT store_id FROM store";
const LIFT: &str = "UPDATE store SET counter = max(counter, ?1) + 1,
    store_id = iif(store_id = ?2 AND counter < ?1, lower(hex(randomblob(16))), store_id)";
const LIFT_GROUPS: &str = "UPDATE member_group SET revision = (SELECT counter FROM store)";

/// For the test of their plans.
#[cfg(test)]
pub(crate) const STATEMENTS: &[&str] = &[INSPECT, STORE_ID, LIFT, LIFT_GROUPS];

/// The way to the file: opens it on first use, again after a failure, and anew when it was replaced.
pub(crate) struct Client {
    pub(crate) path: PathBuf,
    pub(crate) clock: Clock,
    /// The open store, or the place where one is just being opened.
    current: Mutex<Arc<OnceCell<Arc<OpenStore>>>>,
    /// The highest revision handed out: a file put in place of another must go on above it.
    highest: AtomicU64,
    /// The id of the last store that was opened.
    last_id: Mutex<Option<String>>,
    /// The log says that there is no file.
    missing_logged: AtomicBool,
}

impl Client {
    pub(crate) fn new(path: PathBuf, clock: Clock) -> Self {
        let (highest, missing_logged) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { path, clock, current: Mutex::default(), highest, last_id: Mutex::default(), missing_logged }
    }

    /// Whether the file has not been made yet, as far as this process knows: it has not opened it, and there is none. Reading reports an
    /// empty group then, so that looking at a group makes neither the file nor its folder. Logged once, whichever group is looked at.
    pub(crate) fn is_unmade(&self) -> bool {
        let unopened = self.last_id.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        let missing = || std::fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        let is_unmade = unopened && missing();
        if is_unmade && !self.missing_logged.swap(true, Ordering::Relaxed) {
            tracing::info!(path = ?self.path, "there is no such file yet: no member has joined a group there");
        }
        is_unmade
    }

    /// The open store. Of many callers one opens it and the others wait; after a failure the next one tries.
    pub(crate) async fn store(&self) -> Result<Arc<OpenStore>, Failure> {
        let cell = Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner));
        cell.get_or_try_init(|| self.open()).await.cloned()
    }

    /// The end of every call: an answer counts only if the path still leads to the file that gave it, since a deleted file
    /// answers as well, to us alone.
    pub(crate) fn settle<T>(&self, store: &Arc<OpenStore>, answer: Result<T, impl Into<Failure>>) -> Result<T, Failure> {
        let answer = answer.map_err(|failure| failure.into().located(&self.path));
        let replaced = match FileId::of(&self.path) {
            Ok(file) => file != store.file,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        if !replaced && !matches!(answer, Err(Failure::Replaced { .. })) {
            return answer;
        }
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.get().is_some_and(|opened| Arc::ptr_eq(opened, store)) {
            *current = Arc::default();
        }
        Err(self.replaced())
    }

    fn replaced(&self) -> Failure {
        Failure::Replaced { path: self.path.clone() }
    }

    /// A call of the contract on the open file, which ends within a limited time.
    pub(crate) async fn call<T, F>(
        &self,
        operation: &'static str,
        work: impl FnOnce(Arc<OpenStore>) -> F + Send,
    ) -> shardwise_discovery::Result<T>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let call = async {
            let store = self.store().await?;
            let answer = work(Arc::clone(&store)).await;
            self.settle(&store, answer)
        };
        self.bounded(call).await.map_err(|failure| failure.during(operation, &self.path))
    }

    /// Puts an end to a call that hangs.
    pub(crate) async fn bounded<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let late = || Failure::TimedOut { path: self.path.clone(), after: CALL_TIMEOUT };
        tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| Err(late()))
    }

    /// The highest revision handed out so far, to be asked before a read and passed to [`Self::check`] after it.
    pub(crate) fn known(&self) -> u64 {
        self.highest.load(Ordering::SeqCst)
    }

    /// Notes what is about to be handed out, and refuses a file that is not the one we knew or is behind what we had `known` before
    /// the read: an older copy in its place. What others read meanwhile may be newer and proves nothing.
    pub(crate) fn check(&self, store: &OpenStore, at: &RecordsVersion, known: u64) -> Result<(), Failure> {
        if at.store_id != store.id || at.counter < known {
            return Err(self.replaced());
        }
        self.highest.fetch_max(at.revision, Ordering::SeqCst);
        Ok(())
    }

    /// Reads the group as of `now`, and when to read it again. Dead records are deleted first, so that all readers see them go by a higher
    /// revision; if the file cannot be written just now they are left out.
    pub(crate) async fn read_alive(
        &self,
        store: &OpenStore,
        connection: &mut SqliteConnection,
        group: &GroupName,
        now: Moment,
    ) -> Result<(View, Option<Moment>), Failure> {
        let known = self.known();
        let mut reading = store.read(connection, group).await?;
        if reading.any_dead(&store.boot, now) && store.reap(group, now).await {
            reading = store.read(connection, group).await?;
        }
        self.check(store, &reading.at, known)?;
        reading.judge(store, now)
    }

    async fn open(&self) -> Result<Arc<OpenStore>, Failure> {
        let path = self.path.clone();
        let prepare = move || -> Result<_, Failure> { Ok((store_file::prepare(&path)?, boot::identity()?)) };
        let ((file, is_new), boot) = tokio::task::spawn_blocking(prepare).await.map_err(|_| Failure::ShuttingDown)??;
        if is_new {
            // The command prints this target by default, because nothing else shows that the path is wrong.
            let path = &self.path;
            tracing::info!(target: "shardwise::store", ?path, "created a new store: workers with another path are in another group");
        }
        let writer = pool(WRITERS, options(&self.path));
        let readers = pool(READERS, options(&self.path).pragma("query_only", "ON"));
        let id = self.open_schema(&writer).await?;
        self.last_id.lock().unwrap_or_else(PoisonError::into_inner).replace(id.clone());
        let store = OpenStore { path: self.path.clone(), boot, id, clock: self.clock.clone(), writer, readers, file };
        if FileId::of(&self.path).ok() != Some(file) {
            return Err(self.replaced());
        }
        // Only tidying: a view is filtered anyway, and another process may be stopped inside a write.
        if let Err(failure) = store.sweep().await {
            tracing::debug!(%failure, "expired records stay in the file for now");
        }
        tracing::debug!(path = ?self.path, store_id = store.id, "opened");
        Ok(Arc::new(store))
    }

    /// Brings the schema up to date if the file is new, old, or in the place of one that we knew. Answers the store's id.
    async fn open_schema(&self, writer: &SqlitePool) -> Result<String, Failure> {
        let (highest, last_id) = (self.known(), self.last_id.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let mut connection = writer.acquire().await?;
        let seen = self.inspect(&mut connection).await?;
        self.switch_to_wal(&mut connection).await?;
        if seen < SCRIPTS.len() || highest > 0 {
            // The only transaction of several statements: the first worker that uses a file runs it, and the others wait. If it fails, the
            // caller drops the pool with this connection. It must not be used again: SQLite rolls back by itself on a full disk or an I/O
            // error, and the driver would still believe that it is inside the transaction.
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            self.migrate(&mut transaction).await?;
            if highest > 0 {
                // After a replacement the counter goes on above what was handed out before, so that no view goes back. An older copy of the
                // file that we knew gets another id: it does not know every epoch that was granted.
                let highest = i64::try_from(highest).unwrap_or(i64::MAX);
                sqlx::query(LIFT).bind(highest).bind(last_id).execute(&mut *transaction).await?;
                sqlx::query(LIFT_GROUPS).execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
        }
        Ok(sqlx::query_scalar(STORE_ID).fetch_one(&mut *connection).await?)
    }

    /// How many of [`SCRIPTS`] the file has seen. Read-only: another program's file is left unchanged.
    async fn inspect(&self, connection: &mut SqliteConnection) -> Result<usize, Failure> {
        let (application, version, objects, claims, notes): (i64, i64, i64, bool, bool) =
            sqlx::query_as(INSPECT).fetch_one(connection).await?;
        match (application, version, objects) {
            (0, 0, 0) => Ok(0),
            (APPLICATION_ID, 1..=SCHEMA_VERSION, _) if !claims => Ok(1),
            (APPLICATION_ID, 1..=SCHEMA_VERSION, _) if !notes => Ok(2),
            (APPLICATION_ID, 1..=SCHEMA_VERSION, _) => Ok(SCRIPTS.len()),
            (APPLICATION_ID, ..) => Err(Failure::Newer { path: self.path.clone(), found: version, known: SCHEMA_VERSION }),
            _ => Err(Failure::Foreign { path: self.path.clone(), application }),
        }
    }

    /// WAL lets lists continue while a process writes or is stopped inside a write. The file remembers the mode. SQLite does not wait
    /// for its turn here, so we do.
    async fn switch_to_wal(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *connection).await?;
        if mode == "wal" {
            return Ok(());
        }
        let deadline = tokio::time::Instant::now() + BUSY_TIMEOUT;
        loop {
            let answer = sqlx::query_scalar::<_, String>("PRAGMA journal_mode = wal").fetch_one(&mut *connection).await;
            match answer {
                Ok(mode) if mode == "wal" => return Ok(()),
                Ok(mode) => return Err(Failure::NoWal { path: self.path.clone(), mode }),
                // BUSY, LOCKED
                Err(error) if matches!(primary_code(&error), Some(5 | 6)) && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(WAL_RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs the scripts that the file has not seen. Inside a transaction, so another process may have been faster but never halfway.
    async fn migrate(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let seen = self.inspect(connection).await?;
        for script in SCRIPTS.into_iter().skip(seen) {
            sqlx::raw_sql(script).execute(&mut *connection).await?;
        }
        if seen == 0 {
            sqlx::raw_sql("PRAGMA application_id = 0x73687764; PRAGMA user_version = 1").execute(&mut *connection).await?;
        }
        Ok(())
    }
}

/// Connections stay open: as long as one is, the file's inode cannot be given to another file.
fn pool(connections: u32, options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(TURN_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(options)
}
