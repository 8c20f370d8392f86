//! Migrations: plain SQL files, one transaction each.

use sqlx::{Connection, PgConnection};

use super::error::StatementError;
use crate::{Error, ErrorKind};

/// The schema version that this version of the crate reads and writes.
pub const SCHEMA_VERSION: i64 = 4;

/// One migration, for the user's own migration tool: the resulting version, the statements, and their reversal. Each runs in one
/// transaction.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The resulting schema version.
    pub version: i64,
    /// The statements.
    pub up: &'static str,
    /// The statements that revert it, which delete the events too.
    pub down: &'static str,
}

/// All migrations, in order.
pub const MIGRATIONS: [Migration; 4] = [
    Migration {
        version: 1,
        up: include_str!("../../migrations/postgres/0001_outbox.up.sql"),
        down: include_str!("../../migrations/postgres/0001_outbox.down.sql"),
    },
    Migration {
        version: 2,
        up: include_str!("../../migrations/postgres/0002_dead_letters.up.sql"),
        down: include_str!("../../migrations/postgres/0002_dead_letters.down.sql"),
    },
    Migration {
        version: 3,
        up: include_str!("../../migrations/postgres/0003_identity.up.sql"),
        down: include_str!("../../migrations/postgres/0003_identity.down.sql"),
    },
    Migration {
        version: 4,
        up: include_str!("../../migrations/postgres/0004_timeline.up.sql"),
        down: include_str!("../../migrations/postgres/0004_timeline.down.sql"),
    },
];

/// The oldest supported server, in the format of `server_version_num`.
const SERVER_MIN: i32 = 130_000;

/// Prevents concurrent migrations, because two processes that create the same table disturb each other. The lock's number is arbitrary.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(7738157320411812468)";

/// Brings the schema up to date; several processes may do so at once.
pub(super) async fn migrate(conn: &mut PgConnection) -> Result<(), StatementError> {
    require_server(conn).await?;
    for migration in &MIGRATIONS {
        let mut tx = conn.begin().await?;
        sqlx::raw_sql(ONE_AT_A_TIME).execute(&mut *tx).await?;
        let found = version(&mut tx).await?;
        refuse_newer(found)?;
        if found < migration.version {
            sqlx::raw_sql(migration.up).execute(&mut *tx).await.map_err(occupied)?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// Fails unless the schema is exactly this version's.
pub(super) async fn check(conn: &mut PgConnection) -> Result<(), StatementError> {
    let found = version(conn).await?;
    refuse_newer(found)?;
    if found == SCHEMA_VERSION {
        return Ok(());
    }
    let what = if found == 0 {
        "it has no outbox where its search_path leads".to_owned()
    } else {
        format!("its schema is {found}, this version needs {SCHEMA_VERSION}")
    };
    Err(Error::new(ErrorKind::Schema, format!("{what}: run `shardwise outbox init`")).into())
}

/// Removes the outbox from a database, with every event in it. For tests and for a fresh start.
pub async fn revert(conn: &mut PgConnection) -> crate::Result<()> {
    Ok(take_back(conn).await?)
}

async fn take_back(conn: &mut PgConnection) -> Result<(), StatementError> {
    let mut tx = conn.begin().await?;
    let found = version(&mut tx).await?;
    refuse_newer(found)?;
    for migration in MIGRATIONS.iter().rev().filter(|migration| migration.version <= found) {
        sqlx::raw_sql(migration.down).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}

pub(super) async fn id(conn: &mut PgConnection) -> Result<Option<String>, StatementError> {
    Ok(sqlx::query_scalar("SELECT outbox_id FROM outbox_meta").fetch_one(conn).await?)
}

/// The schema version; 0 if there is no outbox.
async fn version(conn: &mut PgConnection) -> Result<i64, StatementError> {
    let there: bool = sqlx::query_scalar("SELECT to_regclass('outbox_meta') IS NOT NULL").fetch_one(&mut *conn).await?;
    if !there {
        return Ok(0);
    }
    Ok(sqlx::query_scalar("SELECT schema_version FROM outbox_meta").fetch_one(conn).await?)
}

fn refuse_newer(found: i64) -> Result<(), StatementError> {
    if found > SCHEMA_VERSION {
        let text = format!("its schema is {found}, newer than this version's {SCHEMA_VERSION}: use a newer shardwise");
        return Err(Error::new(ErrorKind::Schema, text).into());
    }
    Ok(())
}

/// Requires UTF-8, because keys are hashed as UTF-8 bytes, and PostgreSQL 13, because the statements need it.
async fn require_server(conn: &mut PgConnection) -> Result<(), StatementError> {
    let sql = "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding')";
    let (version, encoding): (i32, String) = sqlx::query_as(sql).fetch_one(conn).await?;
    let refuse = |what: String| Err(Error::new(ErrorKind::Schema, what).into());
    if version < SERVER_MIN {
        return refuse(format!("its PostgreSQL is version {}: an outbox needs 13 or newer", version / 10_000));
    }
    if encoding != "UTF8" {
        return refuse(format!("the database's encoding is {encoding}: an outbox needs UTF8"));
    }
    Ok(())
}

/// A table with one of our names, without `outbox_meta`, belongs to another program.
fn occupied(error: sqlx::Error) -> StatementError {
    let code = error.as_database_error().and_then(|error| error.code().map(std::borrow::Cow::into_owned));
    match code.as_deref() {
        Some("42P07" | "42710" | "42723") => {
            let text = format!("{error}, and it is not ours: rename it, or use another schema by options[search_path]");
            Error::new(ErrorKind::Schema, text).into()
        }
        _ => error.into(),
    }
}
