//! Everything that can fail here, in one enum, converted once into the contract's error.

use std::cmp::Ordering;
use std::time::Duration;

use shardwise_core::{Address, EpochError, InstanceId, MEMBERS_MAX, SLOTS_MAX};
use shardwise_discovery::feeds::{NoReading, READING_LIMIT};
use shardwise_discovery::postgres::{ConnectFault, connect_fault};
use shardwise_discovery::{Error, ErrorKind, RecordWriteError, at_address, one_line};
use sqlx::error::DatabaseError;

pub(crate) type PgResult<T> = Result<T, Failure>;

/// Each message is one line: what is wrong, which setting it concerns, and what to do. [`Context::during`] names the database.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("discovery.postgres.{setting} {why}")]
    Setting { setting: &'static str, why: String },
    #[error("the server cannot be reached: {why}; check discovery.postgres.url, and whether PostgreSQL listens there")]
    Unreachable { why: String },
    #[error("the connection was lost: {why}")]
    Broken { why: String },
    #[error("TLS fails: {why}; check sslmode, sslrootcert and sslcert in discovery.postgres.url, and the server's certificate")]
    Tls { why: String },
    #[error(
        "discovery.postgres.url names a file that cannot be used: sslcert, sslkey and sslrootcert must be PEM files, with their line breaks, and \
         sslcert and sslkey belong together"
    )]
    TlsFiles,
    #[error("the server refuses this user: {why}; check discovery.postgres.url, discovery.postgres.password and pg_hba.conf")]
    Credentials { why: String },
    #[error("{why}; create the database, or check its name in discovery.postgres.url")]
    NoDatabase { why: String },
    #[error("{why}: {grant}")]
    Forbidden { why: String, grant: String },
    #[error(
        "the schema {schema:?} has no tables of shardwise, or not those that this version expects ({why}); run `shardwise backend init`, or check \
         discovery.postgres.schema"
    )]
    NoTables { schema: String, why: String },
    #[error("the tables have version {found}, this program knows version {known}; {}", other_version(.found.cmp(known)))]
    OtherVersion { found: i64, known: i64 },
    #[error("the table `store` is empty; run `shardwise backend init` in another schema, and set discovery.postgres.schema to it")]
    Emptied,
    #[error("the server has version {major}; PostgreSQL 13 or newer is needed: upgrade it, or name another one in discovery.postgres.url")]
    OldServer { major: u32 },
    #[error("the database has the encoding {encoding}; it must be UTF8")]
    Encoding { encoding: String },
    #[error("the server is a replica, or takes no writes; name the primary in discovery.postgres.url")]
    Replica,
    #[error(
        "the server flushes nothing to its disk (fsync = off), so a crash could undo a claim; turn fsync on, or use ownership = \"eventual\""
    )]
    NotDurable,
    #[error("the server is not ready: {why}")]
    NotReady { why: String },
    #[error("the server's disk is full ({why}); free some space")]
    Full { why: String },
    #[error("the server has no connection left ({why}); raise max_connections, or use fewer")]
    NoConnections { why: String },
    #[error("another session holds a lock ({why}); look in pg_stat_activity for a long transaction on shardwise's tables")]
    Locked { why: String },
    #[error("no answer within {} ms; check discovery.postgres.url, the network and the server's load", .after.as_millis())]
    TimedOut { after: Duration },
    #[error("the database has another history than before (a failover, or an older copy was restored); everything is read again")]
    Replaced,
    #[error("{instance_id:?} has no living record here; register again")]
    Lost { instance_id: InstanceId },
    #[error("instance id {instance_id:?} is in use{}; stop the other one, or wait until its record expires", at_address(.address.as_ref()))]
    InUse { instance_id: InstanceId, address: Option<Address>, stamp: u64 },
    #[error("a later call of this process has changed the record of {instance_id:?}")]
    Superseded { instance_id: InstanceId },
    #[error("the group already has {MEMBERS_MAX} members; stop some")]
    TooManyMembers,
    #[error("the group has more than {max} claims; names that are not needed any more can be deleted from the table `claim`")]
    TooManyClaimsThere { max: u32 },
    #[error("{count} resources are too many for one call; {SLOTS_MAX} are allowed")]
    TooManyClaims { count: usize },
    #[error("{slot} is not a slot; slots are the numbers below {SLOTS_MAX}")]
    NoSlot { slot: u32 },
    #[error("the numbers of acquisitions are used up: {0}")]
    NoEpoch(EpochError),
    #[error("{0}")]
    OtherStore(String),
    #[error(
        "the server is {present} (system identifier and timeline), and the group's epochs were counted on {history}: after a failover or a restored \
         copy some may be lost; set epoch_floor above the highest epoch used, and start one worker with it"
    )]
    OtherHistory { present: String, history: String },
    #[error(
        "{count} claims are locked by other transactions, so they are not released yet; look in pg_stat_activity for a long transaction that has \
         locked rows of the table `claim`"
    )]
    HeldOpen { count: i64 },
    #[error("cannot read the record of {instance_id:?}: {why}; if its worker is of another version, bring both to one")]
    Unreadable { instance_id: String, why: String },
    #[error("cannot read a claim: {why}; the table `claim` was edited by hand; delete that row")]
    BadClaim { why: String },
    #[error("cannot read the tables: {why}; they were edited by hand")]
    BadRow { why: String },
    #[error("the note contains a NUL character, which PostgreSQL's text cannot hold; remove it")]
    NulInNote,
    #[error(transparent)]
    Unwritable(RecordWriteError),
    #[error("the process is shutting down")]
    ShuttingDown,
    #[error("the server refuses the request: {why}")]
    Refused { why: String },
}

const fn other_version(found: Ordering) -> &'static str {
    if matches!(found, Ordering::Greater) { "upgrade it" } else { "run `shardwise backend init`" }
}

impl Failure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Credentials { .. } | Self::Forbidden { .. } => ErrorKind::Denied,
            Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::NotReady { .. }
            | Self::Full { .. }
            | Self::NoConnections { .. }
            | Self::Locked { .. }
            | Self::Replaced
            | Self::Superseded { .. }
            | Self::HeldOpen { .. }
            | Self::ShuttingDown => ErrorKind::Unavailable,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Lost { .. } => ErrorKind::Lost,
            Self::InUse { address, stamp, .. } => ErrorKind::InUse { address: address.clone(), stamp: *stamp },
            Self::OtherStore(_) => ErrorKind::OtherStore,
            Self::Unwritable(refused) => refused.kind(),
            Self::TooManyMembers | Self::TooManyClaimsThere { .. } | Self::TooManyClaims { .. } | Self::NoSlot { .. } => {
                ErrorKind::TooLarge
            }
            // The rest lasts until the settings, the server or the stored data are changed.
            _ => ErrorKind::Misconfigured,
        }
    }

    /// Whether the connection may be the cause, so that a new one may do better.
    pub(crate) const fn is_of_connection(&self) -> bool {
        matches!(self, Self::Broken { .. } | Self::Unreachable { .. })
    }

    /// Whether the server has not answered, or takes no writes at present.
    pub(crate) const fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::Broken { .. }
                | Self::Unreachable { .. }
                | Self::TimedOut { .. }
                | Self::NotReady { .. }
                | Self::Full { .. }
                | Self::NoConnections { .. }
                | Self::Replica
                | Self::Replaced
        )
    }

    /// A row that does not have what its statement asks for.
    #[expect(clippy::needless_pass_by_value, reason = "it is passed to `map_err`")]
    pub(crate) fn of_row(error: sqlx::Error) -> Self {
        Self::BadRow { why: one_line(&error.to_string()) }
    }
}

impl From<NoReading> for Failure {
    fn from(none: NoReading) -> Self {
        match none {
            NoReading::Ended => Self::ShuttingDown,
            NoReading::TimedOut => Self::TimedOut { after: READING_LIMIT },
        }
    }
}

/// Whose errors these are.
#[derive(Debug)]
pub(crate) struct Context {
    /// Host, port and database.
    pub(crate) place: String,
    pub(crate) user: String,
    pub(crate) schema: String,
}

impl Context {
    /// The contract's error for a failure of `operation`.
    pub(crate) fn during(&self, failure: &Failure, operation: &'static str) -> Error {
        let text = match failure {
            // Of a member, or of a call: the database is not the point.
            Failure::Setting { .. }
            | Failure::Lost { .. }
            | Failure::InUse { .. }
            | Failure::Superseded { .. }
            | Failure::Unwritable(_) => failure.to_string(),
            _ => format!("PostgreSQL at {}: {failure}", self.place),
        };
        Error::new(failure.kind(), operation, text)
    }

    /// The meaning of an error while a connection is made.
    pub(crate) fn of_connecting(&self, error: &sqlx::Error) -> Failure {
        match self.meaning(error) {
            Failure::Broken { why } => Failure::Unreachable { why },
            other => other,
        }
    }

    /// The meaning of an error on a connection that was there.
    pub(crate) fn meaning(&self, error: &sqlx::Error) -> Failure {
        if let sqlx::Error::Database(answer) = error {
            return self.answered(&**answer);
        }
        match connect_fault(error) {
            Some(ConnectFault::Tls(why)) => Failure::Tls { why: one_line(&why) },
            Some(ConnectFault::Files) => Failure::TlsFiles,
            Some(ConnectFault::Unreachable(why)) => Failure::Broken { why: one_line(&why) },
            None => match error {
                sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) | sqlx::Error::Decode(_) => {
                    Failure::BadRow { why: one_line(&error.to_string()) }
                }
                // Whatever else it is, nothing is known of the connection's state.
                _ => Failure::Broken { why: one_line(&error.to_string()) },
            },
        }
    }

    fn answered(&self, answer: &dyn DatabaseError) -> Failure {
        let (why, code) = (one_line(answer.message()), answer.code().unwrap_or_default());
        match &*code {
            "42501" => Failure::Forbidden { grant: self.grant(&why), why },
            "28P01" | "28000" => Failure::Credentials { why },
            "3D000" => Failure::NoDatabase { why },
            "42P01" | "42703" | "42883" | "3F000" => Failure::NoTables { schema: self.schema.clone(), why },
            // A replica, or `default_transaction_read_only`.
            "25006" => Failure::Replica,
            // pg_current_wal_lsn() on a replica.
            "55000" if why.contains("recovery is in progress") => Failure::Replica,
            "53100" => Failure::Full { why },
            "53300" => Failure::NoConnections { why },
            "55P03" | "57014" | "40001" | "40P01" => Failure::Locked { why },
            "57P03" => Failure::NotReady { why },
            // Of a pooler, which says so of databases, users and parameters that it does not know.
            "08P01" => Failure::Refused { why },
            _ if code.starts_with("08") || code.starts_with("57P") => Failure::Broken { why },
            _ if code.starts_with("53") || code.starts_with("58") => Failure::NotReady { why },
            _ => Failure::Refused { why: format!("{why} ({code})") },
        }
    }

    /// The statement that the owner of what the message names must run.
    fn grant(&self, why: &str) -> String {
        let Self { user, schema, .. } = self;
        let what = why.strip_prefix("permission denied for ").and_then(|rest| rest.split_once(' '));
        match what.map(|(kind, name)| (kind, name.trim_matches('"'))) {
            Some(("table" | "relation", name)) => {
                let rights = RIGHTS.iter().find(|(known, _)| *known == name).map_or("SELECT", |(_, rights)| *rights);
                format!("let its owner run GRANT {rights} ON \"{schema}\".{name} TO {user:?}")
            }
            Some(("schema", name)) => {
                format!(
                    "let its owner run GRANT USAGE ON SCHEMA {name:?} TO {user:?}, and GRANT CREATE as well for `shardwise backend init`"
                )
            }
            Some(("database", name)) => {
                format!(
                    "let its owner run GRANT CONNECT ON DATABASE {name:?} TO {user:?}, and GRANT CREATE as well for `shardwise backend init`"
                )
            }
            Some(("function", name)) => {
                let name = name.trim_end_matches("()");
                format!("let a superuser run GRANT EXECUTE ON FUNCTION {name}() TO {user:?}")
            }
            _ => format!("let the owner of the tables in the schema {schema:?} grant it to {user:?}"),
        }
    }
}

/// The rights that a member needs on each table. `docs.md` has the same.
pub(crate) const RIGHTS: [(&str, &str); 7] = [
    ("store", "SELECT"),
    ("member_group", "SELECT, INSERT, UPDATE"),
    ("member", "SELECT, INSERT, UPDATE, DELETE"),
    ("departure", "SELECT, INSERT, DELETE"),
    ("claim", "SELECT, INSERT, UPDATE, DELETE"),
    ("note", "SELECT, INSERT, UPDATE"),
    ("observer", "SELECT, INSERT, UPDATE, DELETE"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context { place: "db:5432/app".into(), user: "worker".into(), schema: "shardwise".into() }
    }

    #[test]
    fn a_missing_right_is_a_statement_for_the_owner() {
        for (why, grant) in [
            (
                "permission denied for table member",
                "let its owner run GRANT SELECT, INSERT, UPDATE, DELETE ON \"shardwise\".member TO \"worker\"",
            ),
            (
                "permission denied for function pg_control_system",
                "let a superuser run GRANT EXECUTE ON FUNCTION pg_control_system() TO \"worker\"",
            ),
            ("must be owner", "let the owner of the tables in the schema \"shardwise\" grant it to \"worker\""),
        ] {
            assert_eq!(context().grant(why), grant);
        }
    }

    #[test]
    fn an_error_names_the_database_where_that_is_the_point() {
        let lost = Failure::Lost { instance_id: InstanceId::new("a b").unwrap() };
        let error = context().during(&lost, "renew");
        assert_eq!(error.to_string(), "renew: \"a b\" has no living record here; register again");
        let late = context().during(&Failure::TimedOut { after: Duration::from_secs(5) }, "register");
        assert_eq!(
            late.to_string(),
            "register: PostgreSQL at db:5432/app: no answer within 5000 ms; check discovery.postgres.url, the network and the server's load"
        );
        assert!(late.is_retryable() && !context().during(&Failure::Replica, "watch").is_retryable());
    }

    #[test]
    fn every_table_of_the_schema_has_its_rights_and_its_row_in_the_documentation() {
        let (up, docs) = (include_str!("../migrations/0001_backend.up.sql"), include_str!("../docs.md"));
        let tables: Vec<_> = up.lines().filter_map(|line| line.strip_prefix("CREATE TABLE ")?.strip_suffix(" (")).collect();
        assert_eq!(tables.len(), RIGHTS.len(), "{tables:?}");
        for (table, rights) in RIGHTS {
            assert!(tables.contains(&table), "{table}");
            assert!(docs.contains(&format!("GRANT {rights} ON shardwise.{table} TO worker;")), "docs.md: {table}");
        }
    }
}
