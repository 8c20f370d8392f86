//! All SQL, and how its answers are read.
//!
//! Statements are sent as text, without parameters. Several together are one transaction and one round trip: the server commits or rolls
//! back without waiting for the client, so a process that is stopped in the middle of a call holds no lock. It also works through a pooler
//! that gives each transaction another connection. Everything that comes from outside is a [`literal::Literal`] or a number.

pub(crate) mod claims;
pub(crate) mod literal;
pub(crate) mod members;
pub(crate) mod notes;
pub(crate) mod position;
#[cfg(test)]
mod race_tests;
pub(crate) mod reads;
pub(crate) mod schema;

use std::fmt;

use shardwise_core::GroupName;
use sqlx::Row;
use sqlx::postgres::PgRow;

use self::literal::{Literal, text};
use crate::error::{Failure, PgResult};

/// The beginning of each transaction that writes. A weaker `synchronous_commit` would confirm what a crash of the server undoes. Statistics
/// may be missing, and no plan that reads a whole table is a good one here.
pub(crate) const BEGIN: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT set_config('statement_timeout', '4000', true), set_config('lock_timeout', '2000', true), set_config('enable_seqscan', 'off', true),
    set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
        ELSE current_setting('synchronous_commit') END, true);";

/// Whether the server is a replica, its timeline, and how far its write-ahead log is on the disk.
pub(crate) const POSITION: &str = "pg_is_in_recovery() AS is_replica,
    CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline,
    CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END AS lsn";

/// The schema with the tables, which writes itself as an identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schema(String);

impl Schema {
    /// Letters, digits and underscores: one spelling everywhere, and room for the channel of notifications.
    pub(crate) const BYTES_MAX: usize = 40;

    pub(crate) fn new(name: &str) -> PgResult<Self> {
        let is_first = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        let fits = name.len() <= Self::BYTES_MAX
            && name.bytes().next().is_some_and(is_first)
            && name.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit());
        if fits {
            return Ok(Self(name.to_owned()));
        }
        let why = format!(
            "is {name:?}; it must have 1 to {} lower-case letters, digits and underscores, and not begin with a digit",
            Self::BYTES_MAX
        );
        Err(Failure::Setting { setting: "schema", why })
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The channel of its notifications.
    pub(crate) fn channel(&self) -> String {
        format!("shardwise_{}", self.0)
    }

    /// Notifies listeners that the group has changed.
    fn notify(&self, group: &GroupName) -> String {
        format!("pg_notify({}, {})", text(&self.channel()), group_payload(group))
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// What a notification says of a group.
const GROUP_CHANGED: char = 'g';

fn group_payload(group: &GroupName) -> Literal {
    text(&format!("{GROUP_CHANGED}{}", group.as_str()))
}

/// The group of a notification.
pub(crate) fn notified_group(payload: &str) -> Option<GroupName> {
    GroupName::new(payload.strip_prefix(GROUP_CHANGED)?).ok()
}

/// Locks the group's row for the rest of the transaction.
fn lock(schema: &Schema, group: &Literal) -> String {
    format!("SELECT 1 FROM {schema}.member_group AS g WHERE g.name = {group} FOR NO KEY UPDATE;")
}

/// The group's id, as an expression. A join by name would let the planner begin at the other table.
fn id_of(schema: &Schema, group: &Literal) -> String {
    format!("(SELECT g.id FROM {schema}.member_group AS g WHERE g.name = {group})")
}

/// Makes the group's row if there is none.
fn make_group(schema: &Schema, group: &Literal) -> String {
    format!(
        "INSERT INTO {schema}.member_group (name)
        SELECT {group} WHERE NOT EXISTS (SELECT 1 FROM {schema}.member_group AS g WHERE g.name = {group})
        ON CONFLICT (name) DO NOTHING;"
    )
}

/// A column that is never negative.
pub(crate) fn unsigned(row: &PgRow, column: &str) -> sqlx::Result<u64> {
    row.try_get::<i64, _>(column).map(i64::unsigned_abs)
}

/// A number as PostgreSQL keeps it; what is beyond its range stays at the end.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_a_name_that_needs_no_thought() {
        for name in ["shardwise", "_a1", "user", &"x".repeat(40)] {
            let schema = Schema::new(name).unwrap();
            assert_eq!(schema.to_string(), format!("\"{name}\""));
            assert!(schema.channel().len() < 64);
        }
        for name in ["", "1a", "A", "a b", "a\"; DROP", "ä", "a-b", &"x".repeat(41)] {
            let said = Schema::new(name).unwrap_err().to_string();
            assert!(said.starts_with("discovery.postgres.schema is ") && said.contains("lower-case letters"), "{said}");
        }
    }

    #[test]
    fn a_notification_names_its_group() {
        let group = GroupName::new("g'\\ 🦀").unwrap();
        assert_eq!(notified_group("gg'\\ 🦀"), Some(group));
        assert_eq!(["", "g", "pabc"].map(notified_group), [None, None, None]);
    }
}
