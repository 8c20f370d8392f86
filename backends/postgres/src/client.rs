//! Connections to the database: a few for all policies of a process, opened when they are needed.
//!
//! Each call is one message with all its statements (see [`crate::sql`]). A call that is given up closes its connection, because the answer
//! may still come; the server carries out what it has received all the same.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use shardwise_core::Moment;
use shardwise_discovery::{CallNumber, Clock};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Either};
use tokio::sync::{AcquireError, OnceCell, Semaphore};
use tokio::time::{Instant, timeout};

use crate::answers::Answers;
use crate::error::{Context, Failure, PgResult};
use crate::history::ServerHistory;
use crate::sql::schema::{SCHEMA_VERSION, SERVER_MIN, read_version, version};
use crate::sql::{Schema, members};

/// The most connections that carry calls at a time. The one that listens is separate.
pub const CONNECTIONS_MAX: usize = 3;
/// The most of them that may be waiting for the lock of a group, so that renewals and reads always have one.
const WAITING_MAX: usize = CONNECTIONS_MAX - 1;
/// How long a call may wait for its turn. Nothing was sent then.
const TURN_LIMIT: Duration = Duration::from_secs(10);
/// How long one call may take from its turn on, with connecting: longer than the server gives its statements, so that what is sent is
/// answered. A call that is given up leaves its connection to the server until then, and the next one opens another.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// A connection that was not used for so long is closed, but for the one that was used last.
const IDLE_LIMIT: Duration = Duration::from_mins(1);

/// Which calls a call may hold up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallTurn {
    /// It waits for no group's lock.
    Quick,
    /// It may wait for a group's lock.
    MayWait,
}

/// The way to the database.
pub(crate) struct Client {
    pub(crate) options: PgConnectOptions,
    pub(crate) schema: Schema,
    pub(crate) clock: Clock,
    pub(crate) context: Context,
    pub(crate) history: ServerHistory,
    pub(crate) writes: WriteLog,
    turns: Semaphore,
    waiting: Semaphore,
    idle: Mutex<Vec<SpareConnection>>,
    /// The tables are those that this version knows.
    checked: OnceCell<()>,
    has_probed: AtomicBool,
}

struct SpareConnection {
    connection: PgConnection,
    since: Instant,
}

/// What an observer must know of the writes of this process: see [`shardwise_discovery::silence`].
#[derive(Debug, Default)]
pub(crate) struct WriteLog {
    /// When the last answered write began.
    answered: AtomicU64,
    /// How many writes failed or were given up.
    interrupted: AtomicU64,
}

impl WriteLog {
    pub(crate) fn answered(&self) -> Moment {
        Moment::from_nanos(self.answered.load(Ordering::SeqCst))
    }

    pub(crate) fn interrupted(&self) -> u64 {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// A write that began then was answered.
    pub(crate) fn answer(&self, started: Moment) {
        self.answered.fetch_max(started.as_nanos(), Ordering::SeqCst);
    }

    fn interrupt(&self) {
        self.interrupted.fetch_add(1, Ordering::SeqCst);
    }
}

/// A write that is under way. Unless it is answered, it counts as interrupted.
struct PendingWrite<'a>(Option<&'a WriteLog>);

impl PendingWrite<'_> {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        if let Some(log) = self.0 {
            log.interrupt();
        }
    }
}

impl Client {
    pub(crate) fn new(options: PgConnectOptions, schema: Schema, clock: Clock) -> Self {
        let place = shardwise_discovery::postgres::place(&options);
        let context = Context { place, user: options.get_username().to_owned(), schema: schema.name().to_owned() };
        Self {
            options,
            schema,
            clock,
            context,
            history: ServerHistory::default(),
            writes: WriteLog::default(),
            turns: Semaphore::new(CONNECTIONS_MAX),
            waiting: Semaphore::new(WAITING_MAX),
            idle: Mutex::default(),
            checked: OnceCell::new(),
            has_probed: AtomicBool::new(false),
        }
    }

    /// Runs statements in one transaction, once the tables are known to be ours. They may be carried out twice.
    pub(crate) async fn run(&self, turn: CallTurn, sql: String) -> PgResult<Answers> {
        // Others may be looking already, one after the other.
        within(TURN_LIMIT, self.checked.get_or_try_init(|| self.check())).await??;
        self.exchange(turn, sql).await
    }

    /// The same for statements that need no tables.
    pub(crate) async fn run_unchecked(&self, sql: String) -> PgResult<Answers> {
        self.exchange(CallTurn::Quick, sql).await
    }

    /// A write whose failure or success says whether the database takes writes: a renewal, a registration, a probe.
    pub(crate) async fn run_write(&self, turn: CallTurn, sql: String) -> PgResult<Answers> {
        let pending = PendingWrite(Some(&self.writes));
        let answer = self.run(turn, sql).await;
        // A group's lock that others hold is no outage; a renewal waits for none.
        if answer.is_ok() || turn == CallTurn::MayWait && answer.as_ref().is_err_and(|failure| !failure.is_outage()) {
            pending.answered();
        }
        answer
    }

    /// Writes nothing but a row of this process, and answers when that began.
    pub(crate) async fn probe(&self) -> PgResult<()> {
        let started = self.clock.now();
        let is_first = !self.has_probed.swap(true, Ordering::Relaxed);
        self.run_write(CallTurn::Quick, members::probe(&self.schema, CallNumber::writer(), is_first)).await?;
        self.writes.answer(started);
        Ok(())
    }

    async fn check(&self) -> PgResult<()> {
        let found = read_version(&self.exchange(CallTurn::Quick, version(&self.schema)).await?)?;
        if found == SCHEMA_VERSION { Ok(()) } else { Err(Failure::OtherVersion { found, known: SCHEMA_VERSION }) }
    }

    async fn exchange(&self, turn: CallTurn, sql: String) -> PgResult<Answers> {
        let turn = async {
            let waiting = match turn {
                CallTurn::MayWait => Some(self.waiting.acquire().await?),
                CallTurn::Quick => None,
            };
            Ok((waiting, self.turns.acquire().await?))
        };
        let _turn = within(TURN_LIMIT, turn).await?.map_err(|_: AcquireError| Failure::ShuttingDown)?;
        within(CALL_LIMIT, self.send(sql.into())).await?
    }

    async fn send(&self, sql: Arc<str>) -> PgResult<Answers> {
        if let Some(mut connection) = self.take_idle() {
            match answers(&mut connection, Arc::clone(&sql)).await.map_err(|error| self.context.meaning(&error)) {
                // It may have been dead for a while, and the others with it, which says nothing about the server.
                Err(failure) if failure.is_of_connection() => self.idle().clear(),
                other => {
                    self.put_back(connection);
                    return other;
                }
            }
        }
        let mut connection = self.connect().await?;
        let answer = answers(&mut connection, sql).await.map_err(|error| self.context.meaning(&error));
        if !answer.as_ref().is_err_and(Failure::is_of_connection) {
            self.put_back(connection);
        }
        answer
    }

    async fn connect(&self) -> PgResult<PgConnection> {
        let connection = self.options.connect().await.map_err(|error| self.context.of_connecting(&error))?;
        match connection.server_version_num() {
            Some(found) if found < SERVER_MIN => Err(Failure::OldServer { major: found / 10_000 }),
            _ => Ok(connection),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SpareConnection>> {
        // Nothing under this lock can panic halfway through a change.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<PgConnection> {
        self.idle().pop().map(|idle| idle.connection)
    }

    fn put_back(&self, connection: PgConnection) {
        let now = Instant::now();
        let mut idle = self.idle();
        // The oldest are in front: the last one is taken first.
        idle.retain(|idle| now.duration_since(idle.since) < IDLE_LIMIT);
        idle.push(SpareConnection { connection, since: now });
    }
}

async fn within<T>(limit: Duration, step: impl Future<Output = T>) -> PgResult<T> {
    timeout(limit, step).await.map_err(|_| Failure::TimedOut { after: limit })
}

/// Sends the statements and reads all answers: a commit that fails is the last of them.
async fn answers(connection: &mut PgConnection, sql: Arc<str>) -> sqlx::Result<Answers> {
    // Literals are the only values in it: see `sql`.
    let mut results = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(connection);
    let (mut answers, mut rows) = (Answers::default(), Vec::new());
    while let Some(result) = results.try_next().await? {
        match result {
            Either::Left(_) => answers.push(std::mem::take(&mut rows)),
            Either::Right(row) => rows.push(row),
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_was_given_up_is_an_interruption_and_one_that_was_answered_is_none() {
        let log = WriteLog::default();
        PendingWrite(Some(&log)).answered();
        assert_eq!(log.interrupted(), 0);
        drop(PendingWrite(Some(&log)));
        assert_eq!(log.interrupted(), 1);
        log.answer(Moment::from_nanos(7));
        log.answer(Moment::from_nanos(5));
        assert_eq!(log.answered(), Moment::from_nanos(7), "an answer that comes late takes nothing back");
    }
}
