//! The backend in the table of settings: its keys, and how it is opened from them.

use std::sync::Arc;

use futures::future::BoxFuture;
use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, FileTwin};
use shardwise_discovery::{Clock, Discovery};

use crate::backend::PostgresBackend;
use crate::config::{PostgresBackendConfig, SCHEMA_DEFAULT};

/// `discovery.backend = "postgres"`.
pub const BACKEND: BackendKind = BackendKind { name: "postgres", keys: KEYS, claims_share: 1, open, init: Some(init) };

const KEYS: &[BackendKey] = &[
    BackendKey::new("url", BackendShape::Text, "the database, as postgres://user@host:5432/database?sslmode=verify-full").of_server(),
    BackendKey::new("password", BackendShape::Secret, "the user's password").or_file(FileTwin {
        name: "password_file",
        variable: None,
        why: "a file with the user's password, instead of password",
    }),
    BackendKey::new("schema", BackendShape::Text, "the schema with shardwise's tables, which `shardwise backend init` makes")
        .or(SCHEMA_DEFAULT),
];

fn open(settings: &BackendSettings, clock: &Clock) -> shardwise_discovery::Result<Arc<dyn Discovery>> {
    Ok(Arc::new(PostgresBackend::open(&config_of(settings)?, clock.clone())?))
}

fn init(settings: &BackendSettings) -> BoxFuture<'static, shardwise_discovery::Result<String>> {
    let config = config_of(settings);
    Box::pin(async move { PostgresBackend::init(&config?).await })
}

fn config_of(settings: &BackendSettings) -> shardwise_discovery::Result<PostgresBackendConfig> {
    let missing = || {
        let why = "discovery.postgres.url is missing; set it to postgres://user@host:5432/database";
        shardwise_discovery::Error::new(shardwise_discovery::ErrorKind::Misconfigured, "open", why)
    };
    Ok(PostgresBackendConfig {
        url: settings.text("url").ok_or_else(missing)?.into(),
        password: settings.secret("password").cloned(),
        schema: settings.text("schema").unwrap_or(SCHEMA_DEFAULT).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_name_what_is_missing() {
        let error = (BACKEND.open)(&BackendSettings::new(), &Clock::system()).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "open: discovery.postgres.url is missing; set it to postgres://user@host:5432/database");
    }
}
