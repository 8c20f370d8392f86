//! Transactions with progress, the same for both databases.

use shardwise_fencing::{FenceError, InstanceId, Position, Progress, Resource, postgres, sqlite};
use sqlx::{PgPool, Postgres, Sqlite, SqlitePool, Transaction};

use crate::common::{epoch, group};

#[derive(Clone)]
pub(crate) enum ProgressStore {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

pub(crate) enum ProgressTx {
    Postgres(Transaction<'static, Postgres>),
    Sqlite(Transaction<'static, Sqlite>),
}

/// Does the same with the transaction of either database.
macro_rules! of_either {
    ($tx:expr, $inner:ident => $what:expr) => {
        match $tx {
            ProgressTx::Postgres($inner) => $what,
            ProgressTx::Sqlite($inner) => $what,
        }
    };
}

impl ProgressStore {
    pub(crate) async fn begin(&self) -> Result<ProgressTx, sqlx::Error> {
        Ok(match self {
            Self::Postgres(pool) => ProgressTx::Postgres(pool.begin().await?),
            Self::Sqlite(pool) => ProgressTx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
        })
    }

    /// Statements without parameters.
    pub(crate) async fn run(&self, sql: &'static str) {
        match self {
            Self::Postgres(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop).unwrap(),
            Self::Sqlite(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop).unwrap(),
        }
    }

    /// The rows of a query whose one parameter is a key.
    pub(crate) async fn rows<R>(&self, sql: &'static str, key: &str) -> Vec<R>
    where
        R: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> + for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow> + Send + Unpin,
    {
        match self {
            Self::Postgres(pool) => sqlx::query_as(sql).bind(key).fetch_all(pool).await.unwrap(),
            Self::Sqlite(pool) => sqlx::query_as(sql).bind(key).fetch_all(pool).await.unwrap(),
        }
    }

    /// Resumes in a transaction with nothing else in it.
    pub(crate) async fn resume(&self, progress: &Progress) -> Result<Position, FenceError> {
        let mut tx = self.begin().await?;
        let position = tx.resume(progress).await?;
        tx.commit().await?;
        Ok(position)
    }

    /// Saves in a transaction with nothing else in it.
    pub(crate) async fn save(&self, progress: &Progress, from: &Position, to: &str) -> Result<Position, FenceError> {
        let mut tx = self.begin().await?;
        let position = tx.save(progress, from, to).await?;
        tx.commit().await?;
        Ok(position)
    }
}

impl ProgressTx {
    pub(crate) async fn resume(&mut self, progress: &Progress) -> Result<Position, FenceError> {
        match self {
            Self::Postgres(tx) => postgres::resume(tx, progress).await,
            Self::Sqlite(tx) => sqlite::resume(tx, progress).await,
        }
    }

    pub(crate) async fn save(&mut self, progress: &Progress, from: &Position, to: &str) -> Result<Position, FenceError> {
        match self {
            Self::Postgres(tx) => postgres::save(tx, progress, from, to).await,
            Self::Sqlite(tx) => sqlite::save(tx, progress, from, to).await,
        }
    }

    /// A statement whose parameters are two texts and numbers; returns how many rows changed.
    pub(crate) async fn execute(&mut self, sql: &'static str, texts: [&str; 2], numbers: &[i64]) -> Result<u64, sqlx::Error> {
        of_either!(self, tx => {
            let mut query = sqlx::query(sql).bind(texts[0]).bind(texts[1]);
            for number in numbers {
                query = query.bind(*number);
            }
            query.execute(&mut **tx).await.map(|done| done.rows_affected())
        })
    }

    /// The number and the position of a key, read without a check and without a lock.
    pub(crate) async fn read(&mut self, key: &str) -> Result<Option<(i64, Option<String>)>, sqlx::Error> {
        let sql = "SELECT number, position FROM shardwise_progress WHERE key = $1";
        of_either!(self, tx => sqlx::query_as(sql).bind(key).fetch_optional(&mut **tx).await)
    }

    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        of_either!(self, tx => tx.commit().await)
    }

    pub(crate) async fn rollback(self) -> Result<(), sqlx::Error> {
        of_either!(self, tx => tx.rollback().await)
    }
}

/// The progress of a key for an owner of that resource under an epoch; the owner is called after the epoch.
pub(crate) fn progress(key: &str, resource: Resource, number: u64) -> Progress {
    let instance = InstanceId::new(format!("worker-{number}")).unwrap();
    Progress { group: group(), key: key.to_owned(), resource, epoch: epoch(number), instance }
}
