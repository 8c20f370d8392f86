//! An open file, and the two ways to write to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use shardwise_discovery::Clock;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqliteRow, SqliteSynchronous};

use crate::error::Failure;
use crate::store_file::FileId;

/// How long SQLite waits for another process's write before it gives up. A healthy write takes well under a millisecond.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Statements kept prepared per connection; there are fewer.
const STATEMENTS_MAX: usize = 32;
/// The WAL file is cut back to this size once it has been copied into the file, in bytes.
const WAL_BYTES_KEPT: u32 = 4 << 20;

pub(crate) type Query = sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

/// One open file.
pub(crate) struct OpenStore {
    pub(crate) path: PathBuf,
    pub(crate) boot: String,
    /// Drawn when the file was made.
    pub(crate) id: String,
    pub(crate) clock: Clock,
    pub(crate) writer: SqlitePool,
    pub(crate) readers: SqlitePool,
    pub(crate) file: FileId,
}

impl OpenStore {
    /// A connection of the caller's own for `PRAGMA data_version`, which compares with what the same connection saw before.
    pub(crate) async fn connect(&self) -> sqlx::Result<SqliteConnection> {
        options(&self.path).pragma("query_only", "ON").connect().await
    }

    /// Runs a write to its end: reading only its first row would hide a failure of the commit, which comes after the rows.
    pub(crate) async fn write(&self, query: Query) -> sqlx::Result<Vec<SqliteRow>> {
        query.fetch_all(&self.writer).await
    }

    /// The same for what outlives members, and a loss of power: it is on the disk before
    /// it is answered, with everything that was written to the file before it.
    pub(crate) async fn write_through(&self, query: Query) -> sqlx::Result<Vec<SqliteRow>> {
        let mut writer = self.writer.acquire().await?;
        // SQLite obeys this when it compiles it: as a prepared statement it would count once. A call that is given up in the middle
        // leaves records to be flushed until the next one.
        sqlx::raw_sql("PRAGMA synchronous = FULL").execute(&mut *writer).await?;
        let rows = query.fetch_all(&mut *writer).await;
        sqlx::raw_sql("PRAGMA synchronous = NORMAL").execute(&mut *writer).await?;
        rows
    }

    pub(crate) fn damaged(&self, why: String) -> Failure {
        Failure::Damaged { path: self.path.clone(), why }
    }
}

pub(crate) fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT)
        // No flush for each record: one that is lost belongs to a machine that lost power, and its member is gone. What outlives members is
        // flushed, see `OpenStore::write_through`. Not OFF either, which could leave a damaged file behind that must be deleted by hand.
        .synchronous(SqliteSynchronous::Normal)
        .pragma("journal_size_limit", WAL_BYTES_KEPT.to_string())
        .foreign_keys(false)
        .statement_cache_capacity(STATEMENTS_MAX)
        .thread_name(|_| "shardwise-local".to_owned())
        .disable_statement_logging()
}
