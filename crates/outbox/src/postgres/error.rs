//! Errors for PostgreSQL's answers: what they mean to the operator, and what to do.

use shardwise::discovery::postgres::{ConnectFault, connect_fault};
use sqlx::error::DatabaseError;

use super::PostgresStore;
use crate::store::sql::SqlStore;
use crate::{Error, ErrorKind};

/// The rights on each table that a publisher needs; writers need only `INSERT ON outbox`.
const GRANTS: [(&str, &str); 11] = [
    ("outbox", "SELECT, UPDATE, DELETE"),
    ("outbox_aggregate", "SELECT, UPDATE, DELETE"),
    ("outbox_asleep", "SELECT, UPDATE"),
    ("outbox_audit", "SELECT, INSERT, DELETE"),
    ("outbox_floor", "SELECT, UPDATE"),
    ("outbox_head", "SELECT, INSERT, UPDATE, DELETE"),
    ("outbox_meta", "SELECT, UPDATE"),
    ("outbox_order", "SELECT"),
    ("outbox_publisher", "SELECT, INSERT, UPDATE, DELETE"),
    ("outbox_slot", "SELECT, INSERT, UPDATE, DELETE"),
    ("outbox_woken", "SELECT, UPDATE"),
];

impl SqlStore for PostgresStore {
    fn classify(error: &sqlx::Error) -> Error {
        classify(error)
    }

    fn locate(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Event | ErrorKind::Settings => error,
            kind => {
                let text = error.to_string().replace("<role>", self.config.options.get_username());
                Error::new(kind, format!("outbox {}: {text}", self.place()))
            }
        }
    }
}

/// Whether the statement waited for a lock until its own limit.
pub(super) fn gave_way(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("55P03")
}

pub(super) fn classify(error: &sqlx::Error) -> Error {
    match error {
        sqlx::Error::Database(error) => answered(&**error),
        sqlx::Error::PoolTimedOut => {
            Error::new(ErrorKind::Unavailable, "the server has not answered in time, or no connection came free: try again")
        }
        other => match connect_fault(other) {
            Some(ConnectFault::Tls(why)) => Error::new(
                ErrorKind::Denied,
                format!("TLS fails: check sslmode, sslrootcert, sslcert and the server's certificate ({why})"),
            ),
            Some(ConnectFault::Files) => unusable_files(),
            Some(ConnectFault::Unreachable(why)) => {
                Error::new(ErrorKind::Unavailable, format!("the server cannot be reached: check that it runs and listens there ({why})"))
            }
            None => Error::new(ErrorKind::Internal, other.to_string()),
        },
    }
}

fn unusable_files() -> Error {
    let text = "its address names a file that cannot be used: sslcert, sslkey and sslrootcert must be PEM files, with their line breaks, and sslcert and \
                sslkey belong together";
    Error::new(ErrorKind::Settings, text)
}

fn answered(error: &dyn DatabaseError) -> Error {
    let message = error.message();
    let code = error.code().unwrap_or_default();
    let of = |kind, text: String| Error::new(kind, text);
    match &*code {
        "42501" => of(ErrorKind::Denied, missing_grant(message)),
        "28P01" | "28000" => {
            of(ErrorKind::Denied, format!("the server refuses this user: check the user, the password and pg_hba.conf ({message})"))
        }
        "3D000" => of(ErrorKind::Missing, format!("{message}: create the database, or check its name")),
        "42P01" | "42703" | "42883" | "3F000" => of(
            ErrorKind::Schema,
            format!("its tables are not what this version expects ({message}): check search_path, run `shardwise outbox init`, or upgrade"),
        ),
        "25006" => of(ErrorKind::Unavailable, format!("the server takes no writes at present; it may be a standby ({message})")),
        "53100" => of(ErrorKind::Unavailable, "the server's disk is full: free some space, then try again".into()),
        "53300" => of(ErrorKind::Unavailable, format!("the server has no connection left: raise max_connections or use fewer ({message})")),
        "55P03" => of(ErrorKind::Unavailable, "another session holds a lock: look for a long transaction on the outbox's tables".into()),
        "40001" | "40P01" | "57014" => of(ErrorKind::Unavailable, format!("{message}: try again")),
        // By the outbox's own functions: the numbers fell back or are unset, or a program is older than the outbox.
        "55000" if message.starts_with("outbox: ") => of(ErrorKind::Schema, not_as_it_was(message)),
        "23505" if error.constraint() == Some("outbox_id_key") => {
            of(ErrorKind::Event, "an event with this id is in the outbox already".into())
        }
        "23502" | "23505" | "23514" => of(ErrorKind::Event, constraint(error)),
        // Broken connections, and a server that starts, stops or fails over.
        _ if code.starts_with("08") || code.starts_with("57P") => of(ErrorKind::Unavailable, format!("{message}: try again")),
        // Data that its column does not accept: text that is not JSON, a NUL.
        _ if code.starts_with("22") => of(ErrorKind::Event, message.to_owned()),
        _ => of(ErrorKind::Internal, format!("{message} ({code})")),
    }
}

/// What a function of the outbox found out of step, and what to do.
fn not_as_it_was(message: &str) -> String {
    let message = message.strip_prefix("outbox: ").unwrap_or(message);
    if message.ends_with("run `shardwise outbox restored`") {
        return format!("{message} with --epoch-above 0 and, for --sequence-above, the highest sequence that the outbox has ever given");
    }
    message.to_owned()
}

/// A refused insert, in the words of the constraint.
fn constraint(error: &dyn DatabaseError) -> String {
    let message = error.message();
    match error.constraint() {
        Some(name) if name.contains(' ') => name.to_owned(),
        _ => message.strip_prefix("outbox: ").unwrap_or(message).to_owned(),
    }
}

/// The error of the server for a missing right on a sequence object, where a statement looks for the right itself.
pub(super) fn denied_sequence(name: &str) -> Error {
    Error::new(ErrorKind::Denied, missing_grant(&format!("permission denied for sequence {name}")))
}

/// The statement that the owner of the tables must run; `<role>` is filled in if the name is known.
fn missing_grant(message: &str) -> String {
    let what = message.strip_prefix("permission denied for ").and_then(|rest| rest.split_once(' '));
    let statement = match what {
        Some((kind @ ("table" | "relation" | "sequence"), name)) => {
            let name = name.trim_matches('"');
            let (of, usual) = if kind == "sequence" { ("SEQUENCE ", "USAGE") } else { ("", "SELECT") };
            let rights = GRANTS.iter().find(|(known, _)| *known == name).map_or(usual, |(_, rights)| *rights);
            format!("let their owner run GRANT {rights} ON {of}{name} TO <role>")
        }
        Some(("schema", schema)) => {
            format!("let its owner run GRANT USAGE ON SCHEMA {schema} TO <role>, and for `outbox init` GRANT CREATE as well")
        }
        Some(("database", database)) => format!("let its owner run GRANT CONNECT ON DATABASE {database} TO <role>"),
        _ => "let the owner of the outbox's tables grant it to <role>".into(),
    };
    format!("{message}: {statement}")
}
