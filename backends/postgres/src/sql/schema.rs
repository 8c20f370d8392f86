//! Making the tables, and finding out whether they are those that this version knows.

use sqlx::Row;

use super::Schema;
use super::literal::text;
use crate::answers::Answers;
use crate::error::{Failure, PgResult};

/// The version of the tables that this version of the crate reads and writes.
pub const SCHEMA_VERSION: i64 = 1;

/// The oldest supported server, in the format of `server_version_num`.
pub(crate) const SERVER_MIN: u32 = 130_000;

/// A migration: the script that makes a version of the tables from the one before, and the script that undoes that. Run each in
/// one transaction, with a `search_path` that leads to the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SchemaMigration {
    /// The version that it makes.
    pub version: i64,
    /// The script.
    pub up: &'static str,
    /// The script that undoes it.
    pub down: &'static str,
}

/// All migrations, in order.
pub const MIGRATIONS: [SchemaMigration; 1] = [SchemaMigration {
    version: 1,
    up: include_str!("../../migrations/0001_backend.up.sql"),
    down: include_str!("../../migrations/0001_backend.down.sql"),
}];

/// Two processes that make the same tables disturb each other. The number is arbitrary.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(7738157320411812469);";

/// The version of the tables. A schema without them is an error.
pub(crate) fn version(schema: &Schema) -> String {
    format!("SELECT s.schema_version FROM {schema}.store AS s")
}

pub(crate) fn read_version(answers: &Answers) -> PgResult<i64> {
    let row = answers.last().first().ok_or(Failure::Emptied)?;
    row.try_get("schema_version").map_err(Failure::of_row)
}

/// Whether the tables are there, and what the server is.
pub(crate) fn survey(schema: &Schema) -> String {
    let (store, name) = (text(&format!("{schema}.store")), text(schema.name()));
    format!(
        "SELECT to_regclass({store}) IS NOT NULL AS is_there, to_regnamespace({name}) IS NOT NULL AS has_schema,
            current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS is_replica"
    )
}

/// The answer to [`survey`].
pub(crate) struct Survey {
    pub(crate) is_there: bool,
    pub(crate) has_schema: bool,
}

impl Survey {
    pub(crate) fn read(answers: &Answers) -> PgResult<Self> {
        let row = answers.last().first().ok_or(Failure::Emptied)?;
        let read = || -> sqlx::Result<(Self, String, bool)> {
            let survey = Self { is_there: row.try_get("is_there")?, has_schema: row.try_get("has_schema")? };
            Ok((survey, row.try_get("encoding")?, row.try_get("is_replica")?))
        };
        let (survey, encoding, is_replica) = read().map_err(Failure::of_row)?;
        match (is_replica, encoding.as_str()) {
            (true, _) => Err(Failure::Replica),
            (false, "UTF8") => Ok(survey),
            (false, _) => Err(Failure::Encoding { encoding }),
        }
    }
}

/// Makes the tables of one version, in a schema that is made if it is missing.
pub(crate) fn migrate(schema: &Schema, has_schema: bool, migration: &SchemaMigration) -> String {
    let make = if has_schema { String::new() } else { format!("CREATE SCHEMA IF NOT EXISTS {schema};") };
    format!("{ONE_AT_A_TIME} {make} SET LOCAL search_path TO {schema}, pg_temp; {}", migration.up)
}
