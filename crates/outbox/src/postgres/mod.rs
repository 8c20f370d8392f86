//! The PostgreSQL store (13 and newer): an outbox inside the application's own database, for publishers on any number of machines.
//!
//! An aggregate has a row that writers lock. One with trouble, or with more events than one reading takes, has a second row, which
//! publishers lock, so that no publisher waits for a writer (docs/adr/0021 and 0056). All times are the database's.
//!
//! The words of this module's comments:
//!
//! - *head*: the first pending event of an aggregate. Failures and retries are those of the head. Comments on statements also call a row of
//!   `outbox_head` a head.
//! - *writers' row*: the aggregate's row in `outbox_aggregate`. Its key gets its `id` there, and each of its writers locks it.
//! - *writers' list*: the writers' rows with `last_seq <> drained_seq`. A writer puts its aggregate there. Publishers read the list by
//!   number, compute the hashes, and take what is in their slots.
//! - *publishers' row*: the aggregate's row in `outbox_head`: its hash, how far it is delivered (`done_seq`), and the failures of its head.
//!   Only publishers write it. An aggregate gets one by a failure, a backlog or a parked event, and keeps it.
//! - *publishers' list*: the publishers' rows that are `listed`. Publishers read them by hash, in the ranges of their slots.
//! - *handed over*: moved from the writers' list to the publishers' list, because its publisher does not read it or has not caught up.
//! - *struck off*: taken off both lists, because everything is delivered. The next writer puts the aggregate back on the writers' list.
//! - *forgotten*: struck off without a publishers' row, by deleting the writers' row (docs/adr/0057). The next writer inserts it anew.
//!
#![doc = include_str!("../../postgres.md")]

mod clean;
mod config;
mod confirmed;
mod dead_letters;
mod enqueue;
mod error;
mod events;
mod fence;
mod fetch;
mod history;
mod list_cursor;
mod record;
mod restored;
mod schema;
mod status;
mod sweep;
mod wakes;
mod writers_list;

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt as _};
use shardwise::SlotSet;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgPoolOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};

pub use config::PostgresConfig;
#[doc(hidden)]
pub use config::SESSION;
pub use enqueue::enqueue;
#[doc(hidden)]
pub use events::LARGE;
#[doc(hidden)]
pub use fence::RELEASE;
#[doc(hidden)]
pub use fetch::FETCH;
#[doc(hidden)]
pub use record::MARK;
pub use schema::{MIGRATIONS, SCHEMA_VERSION};
#[doc(hidden)]
pub use writers_list::{DIRECT, LISTED};

use self::history::CommitHistory;
use self::list_cursor::ListCursor;
pub use crate::store::sql::Migration;
use crate::store::sql::{ErrorContext, signed};
use crate::store::{
    Backlog, CleanResult, FetchRequest, FetchResult, Hold, Outcome, PublisherRegistration, RestoreResult, SleepTicket, Status, Store,
    SweepResult, TouchReply,
};
use crate::{ErrorKind, NewEvent, Result};

/// The connections of one store: the fence, a reading, a marking and the upkeep can run at the same time.
const CONNECTIONS: u32 = 4;
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between attempts to remove drained aggregates from the list while writers hold their rows.
const STRIKE_EVERY: Duration = Duration::from_secs(1);

macro_rules! call {
    ($store:expr, $conn:ident => $work:expr) => {{
        let mut leased = $store.lease().await?;
        let $conn: &mut PgConnection = &mut leased;
        let answer = $work.await;
        leased.back();
        answer.at($store)
    }};
}
use call;

/// An outbox in a PostgreSQL database. Cheap to clone; clones share their connections, four at most.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    config: Arc<PostgresConfig>,
    pool: PgPool,
    struck_at: Arc<Mutex<Option<Instant>>>,
    /// The search for idle aggregates continues behind this one.
    forget_after: Arc<AtomicI64>,
    writers_list: ListCursor,
    history: CommitHistory,
}

impl PostgresStore {
    /// Opens an outbox created by [`PostgresStore::init`] or by the files in `migrations/postgres`. Fails without creating anything if
    /// there is none, or one with another schema.
    pub async fn open(config: PostgresConfig) -> Result<Self> {
        let store = Self::connect(config).await?;
        call!(&store, conn => schema::check(conn))?;
        if store.config.listen {
            store.set_notify(true).await?;
        }
        Ok(store)
    }

    /// Creates the outbox's tables, or those that are missing, in the first schema of the `search_path`. Does nothing to an outbox that is
    /// up to date; a newer schema is an error. From then on writers notify of their commits if `config` listens, and otherwise no longer.
    pub async fn init(config: PostgresConfig) -> Result<Self> {
        let store = Self::connect(config).await?;
        call!(&store, conn => schema::migrate(conn))?;
        store.set_notify(store.config.listen).await?;
        Ok(store)
    }

    async fn set_notify(&self, listen: bool) -> Result<()> {
        sqlx::query(wakes::SET_NOTIFY).bind(listen).execute(&self.pool).await.at(self).map(drop)
    }

    async fn connect(config: PostgresConfig) -> Result<Self> {
        let connections = CONNECTIONS + u32::from(config.listen);
        let pool = PgPoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE_TIMEOUT).test_before_acquire(false);
        let history = CommitHistory::default();
        let (of_new, of_old) = (history.clone(), history.clone());
        let pool = pool.after_connect(move |conn, _| {
            let history = of_new.clone();
            Box::pin(async move {
                sqlx::raw_sql(SESSION).execute(&mut *conn).await?;
                history.connected(conn).await
            })
        });
        let pool = pool.before_acquire(move |_, connection| {
            let may_use = of_old.may_use(connection.age);
            Box::pin(async move { Ok(may_use) })
        });
        let pool = pool.connect_lazy_with(config.options.clone());
        let store = Self {
            config: Arc::new(config),
            pool,
            struck_at: Arc::default(),
            forget_after: Arc::default(),
            writers_list: ListCursor::default(),
            history,
        };
        // The pool would retry and then report only that it took too long.
        match tokio::time::timeout(ACQUIRE_TIMEOUT, store.config.options.connect()).await {
            Ok(connected) => connected.at(&store)?.close().await.at(&store)?,
            Err(_) => return Err(sqlx::Error::PoolTimedOut).at(&store),
        }
        Ok(store)
    }

    async fn lease(&self) -> Result<LeasedConnection> {
        let mut leased = LeasedConnection(Some(self.pool.acquire().await.at(self)?));
        if self.history.is_suspect() {
            self.history.compare(&mut leased).await.at(self)?;
        }
        Ok(leased)
    }

    /// Begins a transaction for [`enqueue`], for programs that have no pool of their own.
    pub async fn begin(&self) -> Result<Transaction<'static, Postgres>> {
        self.pool.begin().await.at(self)
    }

    /// Commits what [`PostgresStore::begin`] began.
    pub async fn commit(&self, tx: Transaction<'static, Postgres>) -> Result<()> {
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
            let mut savepoint = tx.begin().await.at(self)?;
            let answer = enqueue(&mut savepoint, event).await;
            match &answer {
                Ok(_) => savepoint.commit().await.at(self)?,
                Err(error) if error.kind() == ErrorKind::Event => savepoint.rollback().await.at(self)?,
                Err(_) => return answer.map(|_| answers).at(self),
            }
            answers.push(answer);
        }
        self.commit(tx).await?;
        Ok(answers)
    }

    /// Raises epochs and sequences above numbers that consumers have seen, after commits were lost: see
    /// [`SqliteStore::restored`](crate::SqliteStore::restored), and `postgres.md` for the procedure. Writers may continue; publishers take
    /// their slots again. In a copy by logical replication writers are refused until this has run.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if a number is too high; [`ErrorKind::Schema`] while a subscription brings rows into the outbox; those of
    /// the database.
    pub async fn restored(&self, epoch_above: u64, sequence_above: u64) -> Result<RestoreResult> {
        restored::restored(self, epoch_above, sequence_above).await
    }

    /// Host, port and database.
    pub fn place(&self) -> String {
        self.config.place()
    }

    /// Closes the connections; calls under way finish first.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Whether the next attempt to remove drained aggregates is due.
    fn may_strike(&self) -> bool {
        let mut struck_at = self.struck_at.lock().unwrap_or_else(PoisonError::into_inner);
        let due = struck_at.is_none_or(|at| at.elapsed() >= STRIKE_EVERY);
        if due {
            *struck_at = Some(Instant::now());
        }
        due
    }
}

/// A connection out of the pool. A call that is dropped closes its connection: the answer may still arrive at any time, and the next call
/// must not wait for it.
struct LeasedConnection(Option<PoolConnection<Postgres>>);

impl LeasedConnection {
    /// Returns the connection to the pool.
    fn back(mut self) {
        drop(self.0.take());
    }
}

impl Deref for LeasedConnection {
    type Target = PgConnection;

    #[expect(clippy::expect_used, reason = "it is there until `back`, which takes the whole of it")]
    fn deref(&self) -> &PgConnection {
        self.0.as_ref().expect("the connection is there")
    }
}

impl DerefMut for LeasedConnection {
    #[expect(clippy::expect_used, reason = "it is there until `back`, which takes the whole of it")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("the connection is there")
    }
}

impl Drop for LeasedConnection {
    fn drop(&mut self) {
        // A detached connection is closed when it is dropped.
        drop(self.0.take().map(PoolConnection::detach));
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn id(&self) -> Result<Option<String>> {
        call!(self, conn => sqlx::query_scalar("SELECT outbox_id FROM outbox_meta").fetch_one(conn))
    }

    async fn register(&self, me: &PublisherRegistration) -> Result<()> {
        let begun = Instant::now();
        let seen = call!(self, conn => fence::register(conn, me))?;
        self.history.registered(me, seen, begun);
        call!(self, conn => history::note(conn, &self.history))
    }

    async fn touch(&self, me: &PublisherRegistration) -> Result<TouchReply> {
        let begun = Instant::now();
        let Some((seen, holds)) = call!(self, conn => fence::touch(conn, me))? else { return Ok(TouchReply::Unknown) };
        self.history.registered(me, seen, begun);
        self.history.held(me, &holds);
        Ok(TouchReply::Seen(holds))
    }

    async fn take(&self, me: &PublisherRegistration, slots: &SlotSet) -> Result<Vec<Hold>> {
        let holds = call!(self, conn => fence::take(conn, me, slots))?;
        self.history.held(me, &holds);
        Ok(holds)
    }

    async fn release(&self, me: &PublisherRegistration, holds: &[Hold]) -> Result<()> {
        call!(self, conn => fence::release(conn, me, holds))
    }

    async fn leave(&self, me: &PublisherRegistration) -> Result<()> {
        call!(self, conn => fence::leave(conn, me))?;
        self.history.left(me);
        Ok(())
    }

    async fn fetch(&self, me: &PublisherRegistration, request: &FetchRequest) -> Result<FetchResult> {
        let fetched = fetch::fetch(self, me, request).await?;
        self.history.read(&fetched.runs);
        Ok(fetched)
    }

    async fn record(&self, me: &PublisherRegistration, outcomes: &[Outcome], delete: bool) -> Result<Vec<Hold>> {
        let fenced = call!(self, conn => async {
            self.history.asked(outcomes, delete);
            record::record(conn, me, &self.history, outcomes, delete).await
        })?;
        self.history.recorded(outcomes, &fenced);
        Ok(fenced)
    }

    async fn place_new(&self, limit: usize) -> Result<usize> {
        call!(self, conn => clean::place_new(conn, limit))
    }

    async fn sweep(&self, retention: Duration, position: i64, limit: usize) -> Result<SweepResult> {
        self.history.keeps(retention);
        call!(self, conn => sweep::sweep(conn, retention, position, limit))
    }

    fn wakes(&self) -> BoxStream<'static, Result<()>> {
        if self.config.listen { wakes::wakes(self.clone()) } else { stream::pending().boxed() }
    }

    async fn fall_asleep(&self) -> Result<Option<SleepTicket>> {
        call!(self, conn => wakes::fall_asleep(conn)).map(Some)
    }

    async fn all_ended(&self, ticket: SleepTicket) -> Result<bool> {
        call!(self, conn => wakes::all_ended(conn, ticket))
    }

    async fn withdraw(&self, ticket: SleepTicket) -> Result<()> {
        call!(self, conn => wakes::withdraw(conn, ticket))
    }

    async fn clean(&self, parked_retention: Duration, limit: usize) -> Result<CleanResult> {
        clean::clean(self, parked_retention, limit).await
    }

    async fn status(&self) -> Result<Status> {
        call!(self, conn => status::status(conn))
    }

    async fn backlog(&self, most: usize) -> Result<Option<Backlog>> {
        call!(self, conn => status::backlog(conn, signed(most))).map(Some)
    }

    async fn unblock(&self, key: Option<&str>) -> Result<u64> {
        let update = "UPDATE outbox_head AS h
            SET blocked_at = NULL, retry_at = NULL, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL
            FROM outbox_aggregate AS a
            WHERE h.blocked_at IS NOT NULL AND a.id = h.aggregate AND ($1::text IS NULL OR a.key = $1)";
        call!(self, conn => sqlx::query(update).bind(key).execute(conn)).map(|done| done.rows_affected())
    }
}
