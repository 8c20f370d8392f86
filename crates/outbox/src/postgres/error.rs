//! Errors for PostgreSQL's answers: what they mean to the operator, and what to do.

use sqlx::error::DatabaseError;

use super::{PostgresConfig, PostgresStore};
use crate::{Error, ErrorKind, Result};

/// The rights on each table that a publisher needs; writers need only `INSERT ON outbox`.
const GRANTS: [(&str, &str); 8] = [
    ("outbox", "SELECT, UPDATE, DELETE"),
    ("outbox_aggregate", "SELECT, UPDATE, DELETE"),
    ("outbox_audit", "SELECT, INSERT, DELETE"),
    ("outbox_floor", "SELECT, UPDATE"),
    ("outbox_head", "SELECT, UPDATE, DELETE"),
    ("outbox_meta", "SELECT, UPDATE"),
    ("outbox_publisher", "SELECT, INSERT, UPDATE, DELETE"),
    ("outbox_slot", "SELECT, INSERT, UPDATE, DELETE"),
];

/// Converts errors of sqlx into errors of this crate, with the address of the database.
pub(super) trait PgErrorContext<T> {
    fn at(self, store: &PostgresStore) -> Result<T>;
}

impl<T> PgErrorContext<T> for Result<T, sqlx::Error> {
    fn at(self, store: &PostgresStore) -> Result<T> {
        self.map_err(|error| store_error(&store.config, &error))
    }
}

impl<T> PgErrorContext<T> for Result<T> {
    fn at(self, store: &PostgresStore) -> Result<T> {
        self.map_err(|error| locate(error, &store.config))
    }
}

/// Why a statement failed: the database's error, or one of this crate.
#[derive(Debug)]
pub(super) enum StatementError {
    Sql(sqlx::Error),
    Ours(Error),
}

impl StatementError {
    pub(super) fn gave_way(&self) -> bool {
        let Self::Sql(sqlx::Error::Database(error)) = self else { return false };
        error.code().as_deref() == Some("55P03")
    }
}

impl From<sqlx::Error> for StatementError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for StatementError {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl From<StatementError> for Error {
    fn from(fault: StatementError) -> Self {
        match fault {
            StatementError::Sql(error) => classify(&error),
            StatementError::Ours(error) => error,
        }
    }
}

impl<T> PgErrorContext<T> for Result<T, StatementError> {
    fn at(self, store: &PostgresStore) -> Result<T> {
        self.map_err(Error::from).at(store)
    }
}

/// Puts the database's address before a message that has none.
fn locate(error: Error, config: &PostgresConfig) -> Error {
    match error.kind() {
        ErrorKind::Event | ErrorKind::Settings => error,
        kind => {
            let text = error.to_string().replace("<role>", config.options.get_username());
            Error::new(kind, format!("outbox {}: {text}", config.place()))
        }
    }
}

fn store_error(config: &PostgresConfig, error: &sqlx::Error) -> Error {
    locate(classify(error), config)
}

fn classify(error: &sqlx::Error) -> Error {
    match error {
        sqlx::Error::Database(error) => answered(&**error),
        sqlx::Error::PoolTimedOut => {
            Error::new(ErrorKind::Unavailable, "the server has not answered in time, or no connection came free: try again")
        }
        // A rejection by rustls arrives as a connection error, and a retry does not help.
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => tls(error),
        sqlx::Error::Io(error) => {
            Error::new(ErrorKind::Unavailable, format!("the server cannot be reached: check that it runs and listens there ({error})"))
        }
        // A PEM parser's message quotes the line that it failed at, which may be part of a private key.
        sqlx::Error::Tls(error) if error.is::<rustls::pki_types::pem::Error>() => unusable_files(),
        sqlx::Error::Tls(error) => tls(error),
        // The URL's text was checked before, so this concerns the files that it names; the message may quote them as well.
        sqlx::Error::Configuration(_) => unusable_files(),
        other => Error::new(ErrorKind::Internal, other.to_string()),
    }
}

fn unusable_files() -> Error {
    let text = "its address names a file that cannot be used: sslcert, sslkey and sslrootcert must be PEM files, with their line breaks, and sslcert and \
                sslkey belong together";
    Error::new(ErrorKind::Settings, text)
}

fn tls(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Denied, format!("TLS fails: check sslmode, sslrootcert and the server's certificate ({error})"))
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

/// A refused insert, in the words of the constraint.
fn constraint(error: &dyn DatabaseError) -> String {
    let message = error.message();
    match error.constraint() {
        Some(name) if name.contains(' ') => name.to_owned(),
        _ => message.strip_prefix("outbox: ").unwrap_or(message).to_owned(),
    }
}

/// The statement that the owner of the tables must run; `<role>` is filled in if the name is known.
fn missing_grant(message: &str) -> String {
    let what = message.strip_prefix("permission denied for ").and_then(|rest| rest.split_once(' '));
    let statement = match what {
        Some(("table" | "relation", table)) => {
            let table = table.trim_matches('"');
            let rights = GRANTS.iter().find(|(name, _)| *name == table).map_or("SELECT", |(_, rights)| *rights);
            format!("let their owner run GRANT {rights} ON {table} TO <role>")
        }
        Some(("sequence", sequence)) => {
            let sequence = sequence.trim_matches('"');
            let rights = GRANTS.iter().find(|(name, _)| *name == sequence).map_or("USAGE", |(_, rights)| *rights);
            format!("let their owner run GRANT {rights} ON SEQUENCE {sequence} TO <role>")
        }
        Some(("schema", schema)) => {
            format!("let its owner run GRANT USAGE ON SCHEMA {schema} TO <role>, and for `outbox init` GRANT CREATE as well")
        }
        Some(("database", database)) => format!("let its owner run GRANT CONNECT ON DATABASE {database} TO <role>"),
        _ => "let the owner of the outbox's tables grant it to <role>".into(),
    };
    format!("{message}: {statement}")
}
