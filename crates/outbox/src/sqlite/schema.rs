//! Migrations: plain SQL files, one transaction each.

use sqlx::{Connection, SqliteConnection, SqlitePool};

use super::error::classify;
use crate::store::sql::{Migration, StatementError, migration, refuse_newer, require_schema};
use crate::{Error, ErrorKind};

/// The schema version that this version of the crate reads and writes.
pub const SCHEMA_VERSION: i64 = 3;

/// All migrations, in order.
pub const MIGRATIONS: [Migration; 3] =
    [migration!(1, "sqlite/0001_outbox"), migration!(2, "sqlite/0002_dead_letters"), migration!(3, "sqlite/0003_identity")];

/// Brings the schema up to date; several processes may do so at once.
pub(super) async fn migrate(pool: &SqlitePool) -> Result<(), StatementError> {
    let mut conn = pool.acquire().await?;
    // Keys are hashed as their stored bytes.
    let encoding: String = sqlx::query_scalar("PRAGMA encoding").fetch_one(&mut *conn).await?;
    if encoding != "UTF-8" {
        let text = format!("the database's encoding is {encoding}: an outbox needs UTF-8");
        return Err(Error::new(ErrorKind::Schema, text).into());
    }
    for migration in &MIGRATIONS {
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        let found = version(&mut tx).await?;
        refuse_newer(found, SCHEMA_VERSION)?;
        if found < migration.version {
            sqlx::raw_sql(migration.up).execute(&mut *tx).await.map_err(|error| occupied(&error))?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// Fails unless the schema is exactly this version's.
pub(super) async fn check(pool: &SqlitePool) -> Result<(), StatementError> {
    let found = version(&mut *pool.acquire().await?).await?;
    Ok(require_schema(found, SCHEMA_VERSION, "it has no outbox")?)
}

/// The schema version; 0 if there is no outbox.
async fn version(conn: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let there = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'outbox_meta'";
    let there: i64 = sqlx::query_scalar(there).fetch_one(&mut *conn).await?;
    if there == 0 {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT schema_version FROM outbox_meta").fetch_one(conn).await
}

/// A table with one of our names, without `outbox_meta`, belongs to another program.
fn occupied(error: &sqlx::Error) -> Error {
    let ours = classify(error);
    if ours.to_string().contains("already exists") {
        return Error::new(ErrorKind::Schema, format!("{ours}, and it is not ours: rename it, or use another database"));
    }
    ours
}
