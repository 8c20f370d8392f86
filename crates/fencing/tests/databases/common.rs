//! Separate databases for each test, and waiting for conditions in them.

use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use shardwise_fencing::{ClaimName, Epoch, GroupName, Resource, postgres, sqlite};
use shardwise_testkit::{Database, Postgres};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{PgPool, SqlitePool};
use tempfile::TempDir;

/// How long anything may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

pub(crate) fn group() -> GroupName {
    GroupName::new("büro 1").unwrap()
}

pub(crate) fn name(name: &str) -> ClaimName {
    ClaimName::new(name).unwrap()
}

pub(crate) fn slot(slot: u32) -> Resource {
    Resource::Slot(slot)
}

pub(crate) fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

/// A database with our tables in the server that all tests share, and a pool for it.
pub(crate) async fn postgres() -> (Database, PgPool) {
    postgres_in(&Postgres::shared().await.unwrap()).await
}

pub(crate) async fn postgres_in(server: &std::sync::Arc<Postgres>) -> (Database, PgPool) {
    let database = server.database().await.unwrap();
    let pool = PgPoolOptions::new().max_connections(40).acquire_timeout(PATIENCE).connect(&database.url()).await.unwrap();
    postgres::create_tables(&mut pool.acquire().await.unwrap()).await.unwrap();
    (database, pool)
}

/// A file with our tables, and a pool for it.
pub(crate) async fn sqlite() -> (TempDir, SqlitePool) {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("test.db")).create_if_missing(true);
    // Nothing here loses power.
    let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Off).busy_timeout(PATIENCE);
    let pool = SqlitePoolOptions::new().max_connections(8).acquire_timeout(PATIENCE).connect_with(options).await.unwrap();
    sqlite::create_tables(&mut pool.acquire().await.unwrap()).await.unwrap();
    (folder, pool)
}

/// Waits until `count` statements in this database wait for a lock.
pub(crate) async fn waiting(database: &Database, count: usize) {
    let sql = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let begun = Instant::now();
    loop {
        let seen = database.execute(sql).await.unwrap();
        if seen.len() == count {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{count} statements were to wait for a lock, but these do: {seen:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails if `work` has to wait.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("{what} waits"))
}

/// A random generator whose seed is printed: `FENCING_SEED` repeats a run.
pub(crate) fn chance() -> (u64, StdRng) {
    let seed = std::env::var("FENCING_SEED").ok().map_or_else(rand::random, |seed| seed.parse().unwrap());
    eprintln!("repeat with FENCING_SEED={seed}");
    (seed, StdRng::seed_from_u64(seed))
}
