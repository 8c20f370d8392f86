//! The backend's settings, checked before the database is contacted.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use shardwise_discovery::postgres::connect_options;
use shardwise_discovery::settings::without_secrets;
use sqlx::postgres::PgConnectOptions;

use crate::error::{Failure, PgResult};

/// The schema unless another one is set.
pub const SCHEMA_DEFAULT: &str = "shardwise";
/// What the server shows of a connection unless the address says something else.
const APPLICATION_NAME: &str = "shardwise";
/// What may stand behind the `?` of the address.
const PARAMETERS: [&str; 6] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "application_name", "host"];

/// Which database, who asks, and where the tables are. Its `Debug` shows no password.
#[derive(Clone)]
pub struct PostgresBackendConfig {
    /// An address such as `postgres://user@host:5432/database?sslmode=verify-full`. Missing parts come from the variables `PGHOST`,
    /// `PGUSER`, `PGPASSWORD` and so on, and from `~/.pgpass`. The default `sslmode` is `prefer`: encrypted if the server supports it, but
    /// the server's identity is not verified; only `verify-full` verifies it. It names the primary, or a pooler in front of it.
    pub url: SecretString,
    /// The user's password, in place of one in the address.
    pub password: Option<SecretString>,
    /// The schema with the tables: 1 to 40 lower-case letters, digits and underscores. Members that name the same database and schema meet.
    pub schema: String,
}

impl PostgresBackendConfig {
    /// That database, with the default schema and no other password than the address has.
    pub fn new(url: impl Into<SecretString>) -> Self {
        Self { url: url.into(), password: None, schema: SCHEMA_DEFAULT.into() }
    }

    pub(crate) fn options(&self) -> PgResult<PgConnectOptions> {
        let wrong = |why| Failure::Setting { setting: "url", why };
        let options = connect_options(self.url.expose_secret(), &PARAMETERS).map_err(wrong)?;
        // A pooler refuses this parameter, and no number with a fraction is read here.
        let options = options.extra_float_digits(None::<i8>);
        let options = match options.get_application_name() {
            Some(_) => options,
            None => options.application_name(APPLICATION_NAME),
        };
        Ok(match &self.password {
            Some(password) => options.password(password.expose_secret()),
            None => options,
        })
    }
}

impl fmt::Debug for PostgresBackendConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, password, schema } = self;
        let url = without_secrets(url.expose_secret());
        f.debug_struct("PostgresBackendConfig").field("url", &url).field("password", password).field("schema", schema).finish()
    }
}

#[cfg(test)]
mod tests {
    use shardwise_discovery::Clock;

    use super::*;
    use crate::PostgresBackend;

    #[test]
    fn what_is_no_address_is_refused_by_name_without_repeating_it() {
        for (url, expected) in [
            ("mysql://me:hush@host/app", "must begin with postgres://"),
            ("postgres://me:hush@host:port/app", "cannot be read"),
            ("postgres://me:hush@host/app?options[search_path]=x", "has the parameter options[search_path], which is not known"),
            ("", "must begin with postgres://"),
            ("postgres://me:hush@host/app?sslkey=/nowhere/hush.pem", "names a file in sslkey that cannot be read: "),
        ] {
            let said = PostgresBackendConfig::new(url).options().unwrap_err().to_string();
            assert!(said.starts_with("discovery.postgres.url ") && said.contains(expected) && !said.contains("hush"), "{said}");
        }
    }

    #[test]
    fn nothing_shows_a_password() {
        let config = PostgresBackendConfig {
            password: Some("hush".into()),
            ..PostgresBackendConfig::new("postgres://me:hush@db:6432/app?sslmode=require")
        };
        assert!(!format!("{config:?}").contains("hush"), "{config:?}");
        let backend = PostgresBackend::open(&config, Clock::system()).unwrap();
        let shown = format!("{backend:?}");
        assert!(!shown.contains("hush") && shown.contains("db:6432/app"), "{shown}");
    }

    #[test]
    fn a_connection_says_whose_it_is_and_asks_for_nothing_that_a_pooler_refuses() {
        let options = PostgresBackendConfig::new("postgres://me@h:1/app").options().unwrap();
        assert_eq!(options.get_application_name(), Some("shardwise"));
        let named = PostgresBackendConfig::new("postgres://me@h:1/app?application_name=orders").options().unwrap();
        assert_eq!(named.get_application_name(), Some("orders"));
        assert_eq!(named.get_options(), None);
    }
}
