//! Migrations: plain SQL files, one transaction each.

use sqlx::{Connection, PgConnection};

use crate::store::sql::{Migration, StatementError, migration, refuse_newer, require_schema};
use crate::{Error, ErrorKind};

/// The schema version that this version of the crate reads and writes.
pub const SCHEMA_VERSION: i64 = 8;

/// The first one in which publishers note numbers that were drawn.
pub(super) const NOTES_NUMBERS: i64 = 7;

/// All migrations, in order.
pub const MIGRATIONS: [Migration; 8] = [
    migration!(1, "postgres/0001_outbox"),
    migration!(2, "postgres/0002_dead_letters"),
    migration!(3, "postgres/0003_identity"),
    migration!(4, "postgres/0004_timeline"),
    migration!(5, "postgres/0005_both"),
    migration!(6, "postgres/0006_numbers"),
    migration!(7, "postgres/0007_forget"),
    migration!(8, "postgres/0008_new_first"),
];

/// The oldest supported server, in the format of `server_version_num`.
const SERVER_MIN: i32 = 130_000;

/// Prevents concurrent migrations, because two processes that create the same table disturb each other. The lock's number is arbitrary.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(7738157320411812468)";

/// Brings the schema up to date; several processes may do so at once. Steps 6 and 8 wait for the transactions that use the outbox at that
/// moment, for minutes if need be. Steps 6 and 7 fail while a publisher of an earlier version is alive: then the schema stays half
/// migrated, and all go on.
pub(super) async fn migrate(conn: &mut PgConnection) -> Result<(), StatementError> {
    require_server(conn).await?;
    for migration in &MIGRATIONS {
        let mut tx = conn.begin().await?;
        sqlx::raw_sql(ONE_AT_A_TIME).execute(&mut *tx).await?;
        let found = version(&mut tx).await?;
        refuse_newer(found, SCHEMA_VERSION)?;
        if found < migration.version {
            sqlx::raw_sql(migration.up).execute(&mut *tx).await.map_err(refused)?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// Fails unless the schema is this version's, or half migrated to it, which is logged: 5, 6 and 7 also serve publishers of an earlier
/// version.
pub(super) async fn check(conn: &mut PgConnection) -> Result<(), StatementError> {
    let found = version(conn).await?;
    let price = match found {
        5 => "writers pay more than before",
        6 => "publishers are slower than they could be",
        7 => "writers of new aggregates pay more than they have to",
        _ => return Ok(require_schema(found, SCHEMA_VERSION, "it has no outbox where its search_path leads")?),
    };
    let database: String = sqlx::query_scalar("SELECT current_database()::text").fetch_one(conn).await?;
    tracing::warn!(
        "outbox in {database}: half migrated, at schema {found}. All goes on, but {price}: upgrade the publishers of earlier versions, then run \
         `shardwise outbox init`"
    );
    Ok(())
}

/// The schema version; 0 if there is no outbox.
async fn version(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let there: bool = sqlx::query_scalar("SELECT to_regclass('outbox_meta') IS NOT NULL").fetch_one(&mut *conn).await?;
    if !there {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT schema_version FROM outbox_meta").fetch_one(conn).await
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

/// Why a migration was refused: a table with one of our names, without `outbox_meta`, belongs to another program; or the file itself says
/// what is in its way and what to do.
fn refused(error: sqlx::Error) -> StatementError {
    let Some((code, message)) = error.as_database_error().map(|error| (error.code().unwrap_or_default().into_owned(), error.message()))
    else {
        return error.into();
    };
    let ours = message.strip_prefix("outbox: ").map(str::to_owned);
    match (code.as_str(), ours) {
        ("42P07" | "42710" | "42723", _) => {
            let text = format!("{error}, and it is not ours: rename it, or use another schema by options[search_path]");
            Error::new(ErrorKind::Schema, text).into()
        }
        ("55006", Some(text)) => Error::new(ErrorKind::Schema, text).into(),
        ("55P03", Some(text)) => Error::new(ErrorKind::Unavailable, text).into(),
        _ => error.into(),
    }
}
