//! The SQL statements. Both databases share them, except for starting a transaction, locking a row and inserting events.

use shardwise_core::Epoch;
use sqlx::Connection;
#[cfg(feature = "sqlite")]
use sqlx::pool::PoolConnection;

use super::head::{JournalHead, JournalKey};
use super::{JournalEvent, JournalSnapshot};
use crate::stale_epoch::to_sql;

const CREATE: &str = "INSERT INTO shardwise_journal (group_name, name, epoch, version, snapshot, pruned, tail_bytes)
    VALUES ($1, $2, $3, 0, 0, 0, 0) ON CONFLICT (group_name, name) DO NOTHING";
const PUT: &str = "UPDATE shardwise_journal SET epoch = $2, version = $3, snapshot = $4, pruned = $5, tail_bytes = $6 WHERE id = $1";
const SNAPSHOT: &str = "SELECT version, state FROM shardwise_journal_snapshot WHERE journal = $1";
const PUT_SNAPSHOT: &str = "INSERT INTO shardwise_journal_snapshot (journal, version, state) VALUES ($1, $2, $3)
    ON CONFLICT (journal) DO UPDATE SET version = excluded.version, state = excluded.state";
const BYTES_AFTER: &str = "SELECT CAST(coalesce(sum(length(payload)), 0) AS bigint) FROM shardwise_journal_event
    WHERE journal = $1 AND version > $2";
const DELETE: &str = "DELETE FROM shardwise_journal_event WHERE journal = $1 AND version <= $2";
/// `$3` is the most events, `$4` the most bytes; the first event is returned whatever its size. Payloads are read only for those selected.
const EVENTS: &str = "SELECT event.version, event.epoch, event.payload FROM (
        SELECT version, size, sum(size) OVER (ORDER BY version) AS bytes FROM (
            SELECT version, length(payload) AS size FROM shardwise_journal_event WHERE journal = $1 AND version >= $2
            ORDER BY version LIMIT $3
        ) AS page
    ) AS sized JOIN shardwise_journal_event AS event ON event.journal = $1 AND event.version = sized.version
    WHERE bytes <= $4 OR bytes = size ORDER BY event.version";
macro_rules! find {
    ($lock:literal) => {
        concat!("SELECT id, epoch, version, snapshot, pruned, tail_bytes FROM shardwise_journal WHERE group_name = $1 AND name = $2", $lock)
    };
}

type Result<T> = std::result::Result<T, sqlx::Error>;

/// One transaction on one journal; rolled back unless committed.
pub(super) trait Transaction: Send {
    /// The head; a writing transaction locks it until it ends. `None` if nothing was ever written.
    fn find(&mut self, name: &JournalKey) -> impl Future<Output = Result<Option<JournalHead>>> + Send;
    /// The head, created with this epoch if it does not exist.
    fn create(&mut self, name: &JournalKey, epoch: Epoch) -> impl Future<Output = Result<JournalHead>> + Send;
    fn put(&mut self, head: &JournalHead) -> impl Future<Output = Result<()>> + Send;
    /// Events from version `from` on, at most `limit` with at most `bytes` bytes.
    fn events(&mut self, journal: i64, from: i64, limit: i64, bytes: i64) -> impl Future<Output = Result<Vec<JournalEvent>>> + Send;
    /// Writes events, numbered from `first`.
    fn put_events(&mut self, journal: i64, first: i64, epoch: i64, events: &[&[u8]]) -> impl Future<Output = Result<()>> + Send;
    fn snapshot(&mut self, journal: i64) -> impl Future<Output = Result<Option<JournalSnapshot>>> + Send;
    fn put_snapshot(&mut self, journal: i64, version: i64, state: &[u8]) -> impl Future<Output = Result<()>> + Send;
    /// The number of bytes in the events after `version`.
    fn bytes_after(&mut self, journal: i64, version: i64) -> impl Future<Output = Result<i64>> + Send;
    /// Deletes the events up to version `upto` and returns how many.
    fn delete(&mut self, journal: i64, upto: i64) -> impl Future<Output = Result<u64>> + Send;
    fn commit(self) -> impl Future<Output = Result<()>> + Send;
}

/// A macro, because sqlx has a type for each database and none for both.
macro_rules! transaction {
    ($tx:ident, $database:ty, $connection:ty, $writing:literal, $lock:literal, $reading:literal) => {
        pub(super) struct $tx<'c> {
            tx: sqlx::Transaction<'c, $database>,
            find: &'static str,
        }

        impl<'c> $tx<'c> {
            pub(super) async fn writing(connection: &'c mut $connection) -> Result<Self> {
                Ok(Self { tx: connection.begin_with($writing).await?, find: find!($lock) })
            }

            pub(super) async fn reading(connection: &'c mut $connection) -> Result<Self> {
                Ok(Self { tx: connection.begin_with($reading).await?, find: find!("") })
            }
        }

        impl Transaction for $tx<'_> {
            async fn find(&mut self, name: &JournalKey) -> Result<Option<JournalHead>> {
                let query = sqlx::query_as(self.find).bind(name.group.as_str()).bind(name.name.as_str());
                let row: Option<(i64, i64, i64, i64, i64, i64)> = query.fetch_optional(&mut *self.tx).await?;
                Ok(row.map(|(id, epoch, version, snapshot, pruned, tail_bytes)| JournalHead {
                    id,
                    epoch,
                    version,
                    snapshot,
                    pruned,
                    tail_bytes,
                }))
            }

            async fn create(&mut self, name: &JournalKey, epoch: Epoch) -> Result<JournalHead> {
                if let Some(head) = self.find(name).await? {
                    return Ok(head);
                }
                let create = sqlx::query(CREATE).bind(name.group.as_str()).bind(name.name.as_str()).bind(to_sql(epoch));
                create.execute(&mut *self.tx).await?;
                self.find(name).await?.ok_or(sqlx::Error::RowNotFound)
            }

            async fn put(&mut self, head: &JournalHead) -> Result<()> {
                let put = sqlx::query(PUT).bind(head.id).bind(head.epoch).bind(head.version).bind(head.snapshot).bind(head.pruned);
                put.bind(head.tail_bytes).execute(&mut *self.tx).await.map(drop)
            }

            async fn events(&mut self, journal: i64, from: i64, limit: i64, bytes: i64) -> Result<Vec<JournalEvent>> {
                let query = sqlx::query_as(EVENTS).bind(journal).bind(from).bind(limit).bind(bytes);
                let rows: Vec<(i64, i64, Vec<u8>)> = query.fetch_all(&mut *self.tx).await?;
                let event = |(version, epoch, payload): (i64, i64, _)| JournalEvent {
                    version: version.cast_unsigned(),
                    epoch: epoch.cast_unsigned(),
                    payload,
                };
                Ok(rows.into_iter().map(event).collect())
            }

            async fn put_events(&mut self, journal: i64, first: i64, epoch: i64, events: &[&[u8]]) -> Result<()> {
                self.put_all(journal, first, epoch, events).await
            }

            async fn snapshot(&mut self, journal: i64) -> Result<Option<JournalSnapshot>> {
                let row: Option<(i64, Vec<u8>)> = sqlx::query_as(SNAPSHOT).bind(journal).fetch_optional(&mut *self.tx).await?;
                Ok(row.map(|(version, state)| JournalSnapshot { version: version.cast_unsigned(), state }))
            }

            async fn put_snapshot(&mut self, journal: i64, version: i64, state: &[u8]) -> Result<()> {
                let put = sqlx::query(PUT_SNAPSHOT).bind(journal).bind(version).bind(state);
                put.execute(&mut *self.tx).await.map(drop)
            }

            async fn bytes_after(&mut self, journal: i64, version: i64) -> Result<i64> {
                sqlx::query_scalar(BYTES_AFTER).bind(journal).bind(version).fetch_one(&mut *self.tx).await
            }

            async fn delete(&mut self, journal: i64, upto: i64) -> Result<u64> {
                let deleted = sqlx::query(DELETE).bind(journal).bind(upto).execute(&mut *self.tx).await?;
                Ok(deleted.rows_affected())
            }

            async fn commit(self) -> Result<()> {
                self.tx.commit().await
            }
        }
    };
}

// An explicit isolation level, independent of the role's default: the head's lock orders the writers, and each statement sees all earlier
// commits.
#[cfg(feature = "postgres")]
transaction!(
    PostgresTx,
    sqlx::Postgres,
    sqlx::PgConnection,
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
    " FOR UPDATE",
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
);

#[cfg(feature = "postgres")]
impl PostgresTx<'_> {
    async fn put_all(&mut self, journal: i64, first: i64, epoch: i64, events: &[&[u8]]) -> Result<()> {
        let all = "INSERT INTO shardwise_journal_event (journal, version, epoch, payload)
            SELECT $1, $2 + place - 1, $3, payload FROM unnest($4::bytea[]) WITH ORDINALITY AS given (payload, place)";
        sqlx::query(all).bind(journal).bind(first).bind(epoch).bind(events).execute(&mut *self.tx).await.map(drop)
    }
}

#[cfg(feature = "sqlite")]
transaction!(SqliteTx, sqlx::Sqlite, sqlx::SqliteConnection, "BEGIN IMMEDIATE", "", "BEGIN");

#[cfg(feature = "sqlite")]
const PUT_ONE: &str = "INSERT INTO shardwise_journal_event (journal, version, epoch, payload) VALUES ($1, $2, $3, $4)";

#[cfg(feature = "sqlite")]
impl SqliteTx<'_> {
    async fn put_all(&mut self, journal: i64, first: i64, epoch: i64, events: &[&[u8]]) -> Result<()> {
        for (version, event) in (first..).zip(events) {
            sqlx::query(PUT_ONE).bind(journal).bind(version).bind(epoch).bind(*event).execute(&mut *self.tx).await?;
        }
        Ok(())
    }
}

// Where SQLite rolls back by itself (the disk is full or reports an error), the driver's own ROLLBACK fails, and it still counts the
// transaction as open: every later `begin_with` on that connection would fail. Such a connection is closed, and the pool opens another.
// With PostgreSQL the driver knows whether a transaction has ended, so the pool can reuse the connection.

#[cfg(feature = "sqlite")]
pub(super) async fn connection(pool: &sqlx::SqlitePool) -> Result<PoolConnection<sqlx::Sqlite>> {
    loop {
        let connection = pool.acquire().await?;
        // It may have an open transaction of an abandoned call, or of the application.
        if !connection.is_in_transaction() {
            return Ok(connection);
        }
        connection.close().await?;
    }
}

/// Returns the connection of a failed transaction to the pool, or closes it.
#[cfg(feature = "sqlite")]
pub(super) async fn after_failure(mut connection: PoolConnection<sqlx::Sqlite>) {
    // Runs the rollback of the dropped transaction.
    let answers = connection.ping().await.is_ok();
    if !answers || connection.is_in_transaction() {
        // The caller already has the error; that of closing adds nothing.
        let _ = connection.close().await;
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use sqlx::ConnectOptions;
    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;
    use crate::fence::sqlite::progress::FOUND;
    use crate::sqlite::{CHECK, POSITION, RESUME, SAVE, create_tables};

    /// In a file without statistics, SQLite runs each statement by a key, and reads the result completely at most once more.
    #[tokio::test]
    async fn no_statement_reads_from_end_to_end_what_grows() {
        let mut connection = SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
        create_tables(&mut connection).await.unwrap();
        let seen = "SELECT epoch FROM shardwise_fence WHERE group_name = ?1 AND resource = ?2";
        let journal = [CREATE, PUT, SNAPSHOT, PUT_SNAPSHOT, BYTES_AFTER, DELETE, EVENTS, find!(""), PUT_ONE];
        let statements = journal.into_iter().chain([CHECK, seen, RESUME, POSITION, SAVE, FOUND]);
        for statement in statements {
            let query = sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")));
            let plan: Vec<(i64, i64, i64, String)> = query.fetch_all(&mut connection).await.unwrap();
            // The page of `EVENTS`, which has a limit, under its names.
            let is_slow = |step: &str| {
                step.contains("AUTOMATIC") || step.starts_with("SCAN") && !["SCAN page", "SCAN sized", "SCAN (subquery-4)"].contains(&step)
            };
            assert!(!plan.iter().any(|step| is_slow(&step.3)), "{plan:?}\n{statement}");
        }
    }
}
