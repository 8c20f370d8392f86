//! Which database to use, and how to set up a session.

use std::fmt;
use std::path::Path;

use shardwise::discovery::postgres;
use sqlx::postgres::PgConnectOptions;

use crate::{Error, ErrorKind, Result, secret};

/// The settings of a store's session. The statements are written for nested loops over indexes. All other plans are switched off, so that
/// no statistics, old or missing, can change the plans. No statement waits without a limit.
pub const SESSION: &str = "SET default_transaction_isolation = 'read committed'; SET jit = off; SET max_parallel_workers_per_gather = 0;
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET plan_cache_mode = force_generic_plan; SET client_encoding = 'UTF8';
    SET statement_timeout = '12s'; SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '60s'";

/// The supported parameters behind the `?` of an address.
const PARAMETERS: [&str; 7] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "application_name", "host", "options[search_path]"];

/// The database and its user. `Debug` shows no password.
#[derive(Clone)]
pub struct PostgresConfig {
    pub(super) options: PgConnectOptions,
    pub(super) listen: bool,
}

impl PostgresConfig {
    /// An address such as `postgres://user@host:5432/database?sslmode=verify-full`. Missing parts come from the variables `PGHOST`,
    /// `PGUSER`, `PGPASSWORD` and so on, and from `~/.pgpass`. The default `sslmode` is `prefer`: encrypted if the server supports it, but
    /// the server's identity is not verified; only `verify-full` verifies it. `options[search_path]=NAME` selects the schema.
    pub fn from_url(url: &str) -> Result<Self> {
        let wrong = |what: String| Error::new(ErrorKind::Settings, format!("the address of the outbox's database {what}"));
        Ok(Self { options: postgres::connect_options(url, &PARAMETERS).map_err(wrong)?, listen: false })
    }

    /// The same configuration with this password.
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        Self { options: self.options.password(password), ..self }
    }

    /// Whether publishers that sleep are notified of commits with LISTEN and NOTIFY, instead of finding them at their next check; off by
    /// default. Writers notify only while a publisher sleeps, because NOTIFY serializes the commits of all writers on the server: `cargo
    /// xtask bench writers` measures the cost. PostgreSQL refuses to prepare a transaction that has notified, so two-phase commit
    /// (`PREPARE TRANSACTION`) does not go with it.
    #[must_use]
    pub fn listen(self, listen: bool) -> Self {
        Self { listen, ..self }
    }

    /// The same configuration with the password from a file, without its last newline.
    pub fn password_file(self, path: &Path) -> Result<Self> {
        let password = &secret::in_file(path, "the file with the outbox's password")?;
        Ok(self.password(password))
    }

    /// Host, port and database, for messages.
    pub fn place(&self) -> String {
        postgres::place(&self.options)
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig").field("place", &self.place()).field("user", &self.options.get_username()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sqlx::ConnectOptions as _;

    use super::*;

    #[test]
    fn nothing_shows_a_password() {
        let config = PostgresConfig::from_url("postgres://me:secret@db.example:6432/app?sslmode=verify-full").unwrap();
        assert_eq!(config.place(), "db.example:6432/app");
        let shown = format!("{config:?}{:?}", config.clone().password("hidden"));
        assert!(!shown.contains("secret") && !shown.contains("hidden") && shown.contains("\"me\""), "{shown}");
    }

    #[test]
    fn a_password_comes_from_a_file_without_its_last_newline() {
        let (folder, config) = (tempfile::tempdir().unwrap(), PostgresConfig::from_url("postgres://me@host/app").unwrap());
        let path = folder.path().join("password");
        std::fs::write(&path, " hush \r\n").unwrap();
        let given = config.clone().password_file(&path).unwrap().options.to_url_lossy();
        assert_eq!(given.password(), Some("%20hush%20"));
        for text in ["", "\n", "two\nlines\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(config.clone().password_file(&path).unwrap_err().to_string().contains("one line and nothing else"));
        }
        let missing = config.password_file(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none, cannot be read: "), "{missing}");
    }

    #[test]
    fn what_cannot_be_read_is_reported_without_repeating_it() {
        for (url, expected) in [
            ("mysql://me:secret@host/app", "must begin with postgres://"),
            ("postgres://me:secret@host:port/app", "cannot be read"),
            ("postgres://me:secret@host/app?sslmode=secret", "cannot be read"),
            ("postgres://me:secret@host/app?sslmod=disable", "has the parameter sslmod, which is not known; known are sslmode,"),
        ] {
            let error = PostgresConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Settings);
            assert!(error.to_string().contains(expected) && !error.to_string().contains("secret"), "{error}");
        }
    }
}
