//! Migrations: plain SQL files, one transaction each.

use sqlx::{Connection, Sqlite, SqliteConnection, SqlitePool};

use super::error::classify;
use crate::{Error, ErrorKind, Result};

/// The schema version that this version of the crate reads and writes.
pub const SCHEMA_VERSION: i64 = 3;

/// One migration: the resulting version, the statements, and their reversal.
struct SqliteMigration {
    version: i64,
    up: &'static str,
    down: &'static str,
}

const MIGRATIONS: [SqliteMigration; 3] = [
    SqliteMigration {
        version: 1,
        up: include_str!("../../migrations/sqlite/0001_outbox.up.sql"),
        down: include_str!("../../migrations/sqlite/0001_outbox.down.sql"),
    },
    SqliteMigration {
        version: 2,
        up: include_str!("../../migrations/sqlite/0002_dead_letters.up.sql"),
        down: include_str!("../../migrations/sqlite/0002_dead_letters.down.sql"),
    },
    SqliteMigration {
        version: 3,
        up: include_str!("../../migrations/sqlite/0003_identity.up.sql"),
        down: include_str!("../../migrations/sqlite/0003_identity.down.sql"),
    },
];

/// Brings the schema up to date; several processes may do so at once.
pub(super) async fn migrate(pool: &SqlitePool) -> Result<()> {
    let mut conn = pool.acquire().await.map_err(|e| classify(&e))?;
    require_utf8(&mut conn).await?;
    for migration in &MIGRATIONS {
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.map_err(|e| classify(&e))?;
        let found = version(&mut tx).await?;
        refuse_newer(found)?;
        if found < migration.version {
            sqlx::raw_sql(migration.up).execute(&mut *tx).await.map_err(|e| occupied(&e))?;
        }
        tx.commit().await.map_err(|e| classify(&e))?;
    }
    Ok(())
}

/// Fails unless the schema is exactly this version's.
pub(super) async fn check(pool: &SqlitePool) -> Result<()> {
    let mut conn = pool.acquire().await.map_err(|e| classify(&e))?;
    let found = version(&mut conn).await?;
    refuse_newer(found)?;
    if found == SCHEMA_VERSION {
        return Ok(());
    }
    let what =
        if found == 0 { "it has no outbox".to_owned() } else { format!("its schema is {found}, this version needs {SCHEMA_VERSION}") };
    Err(Error::new(ErrorKind::Schema, format!("{what}: run `shardwise outbox init`")))
}

/// Removes the outbox from a database, with every event in it. For tests and for a fresh start.
pub async fn revert(conn: &mut SqliteConnection) -> Result<()> {
    let mut tx = conn.begin().await.map_err(|e| classify(&e))?;
    let found = version(&mut tx).await?;
    refuse_newer(found)?;
    for migration in MIGRATIONS.iter().rev().filter(|migration| migration.version <= found) {
        sqlx::raw_sql(migration.down).execute(&mut *tx).await.map_err(|e| classify(&e))?;
    }
    tx.commit().await.map_err(|e| classify(&e))
}

/// The schema version; 0 if there is no outbox.
async fn version(conn: &mut SqliteConnection) -> Result<i64> {
    let there: i64 = scalar(conn, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'outbox_meta'").await?;
    if there == 0 {
        return Ok(0);
    }
    scalar(conn, "SELECT schema_version FROM outbox_meta").await
}

fn refuse_newer(found: i64) -> Result<()> {
    if found > SCHEMA_VERSION {
        let text = format!("its schema is {found}, newer than this version's {SCHEMA_VERSION}: use a newer shardwise");
        return Err(Error::new(ErrorKind::Schema, text));
    }
    Ok(())
}

/// Keys are hashed as their stored bytes, so the bytes must be UTF-8.
async fn require_utf8(conn: &mut SqliteConnection) -> Result<()> {
    let encoding: String = scalar(conn, "PRAGMA encoding").await?;
    if encoding != "UTF-8" {
        let text = format!("the database's encoding is {encoding}: an outbox needs UTF-8");
        return Err(Error::new(ErrorKind::Schema, text));
    }
    Ok(())
}

/// A table with one of our names, without `outbox_meta`, belongs to another program.
fn occupied(error: &sqlx::Error) -> Error {
    let ours = classify(error);
    if ours.to_string().contains("already exists") {
        return Error::new(ErrorKind::Schema, format!("{ours}, and it is not ours: rename it, or use another database"));
    }
    ours
}

async fn scalar<T>(conn: &mut SqliteConnection, sql: &'static str) -> Result<T>
where
    T: for<'r> sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite> + Send + Unpin,
{
    sqlx::query_scalar(sql).fetch_one(conn).await.map_err(|e| classify(&e))
}
