//! The inbox of a consumer whose database is SQLite.

use std::time::Duration;

use sqlx::SqliteConnection;

/// The table's definition, for the consumer's migrations.
pub const TABLE: &str = include_str!("../../migrations/inbox/sqlite.sql");

const NOTE: &str = "INSERT INTO outbox_inbox (consumer, event) VALUES (?1, ?2) ON CONFLICT (consumer, event) DO NOTHING";

/// ?1 age in seconds, ?2 how many.
const FORGET: &str = "DELETE FROM outbox_inbox WHERE (consumer, event) IN (
        SELECT consumer, event FROM outbox_inbox WHERE seen_at < CAST(strftime('%s', 'now') AS INTEGER) - ?1 ORDER BY seen_at LIMIT ?2
    )";

/// Creates the table if it does not exist.
pub async fn create_table(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(TABLE).execute(conn).await.map(drop)
}

/// Returns whether this consumer has already seen the event with this id; if not, records it, effective with the commit of this
/// transaction.
pub async fn seen(conn: &mut SqliteConnection, consumer: &str, event: &str) -> Result<bool, sqlx::Error> {
    Ok(sqlx::query(NOTE).bind(consumer).bind(event).execute(conn).await?.rows_affected() == 0)
}

/// Forgets at most `limit` events, of all consumers, that were seen longer ago than `older_than`; returns how many. Call it from time to
/// time. An event that arrives again after it was forgotten counts as new.
pub async fn forget(conn: &mut SqliteConnection, older_than: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    Ok(sqlx::query(FORGET).bind(super::seconds(older_than)).bind(i64::from(limit)).execute(conn).await?.rows_affected())
}
