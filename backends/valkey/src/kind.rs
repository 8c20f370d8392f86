//! The backend in the table of settings: its keys, and how it is opened from them.

use std::sync::Arc;

use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, FileTwin};
use shardwise_discovery::{Clock, Discovery};

use crate::backend::ValkeyBackend;
use crate::config::{PREFIX_DEFAULT, ValkeyConfig};
use crate::error::Failure;

/// `discovery.backend = "valkey"`.
pub const BACKEND: BackendKind = BackendKind { name: "valkey", keys: KEYS, claims_share: 1, open, init: None };

const KEYS: &[BackendKey] = &[
    BackendKey::new("url", BackendShape::Text, "the primary server, as redis://host:6379, or rediss://host:6379 with TLS").of_server(),
    BackendKey::new("sentinels", BackendShape::Texts, "instead of url: the Sentinels that name the primary, each as redis://host:26379")
        .of_server(),
    BackendKey::new("master_name", BackendShape::Text, "the primary's name in the Sentinels' configuration"),
    BackendKey::new("username", BackendShape::Text, "the user, if it is not the default one"),
    BackendKey::new("password", BackendShape::Secret, "the user's password").or_file(FileTwin {
        name: "password_file",
        variable: None,
        why: "a file with the user's password, instead of password",
    }),
    BackendKey::new("sentinel_username", BackendShape::Text, "the user at the Sentinels, if it is not the default one"),
    BackendKey::new("sentinel_password", BackendShape::Secret, "the password at the Sentinels").or_file(FileTwin {
        name: "sentinel_password_file",
        variable: None,
        why: "a file with the password at the Sentinels, instead of sentinel_password",
    }),
    BackendKey::new(
        "ca_file",
        BackendShape::Path,
        "the CA, in PEM, that must have signed the servers' certificates; without it the system's",
    ),
    BackendKey::new("cert_file", BackendShape::Path, "this client's certificate (PEM), if the servers ask for one"),
    BackendKey::new("key_file", BackendShape::Path, "the private key (PEM) of cert_file"),
    BackendKey::new("database", BackendShape::Text, "the number of the database").or("0"),
    BackendKey::new("prefix", BackendShape::Text, "the beginning of all of shardwise's keys and channels").or(PREFIX_DEFAULT),
    BackendKey::new(
        "member_keys",
        BackendShape::Text,
        "what the keys of another fleet's workers begin with, before the id: they are followed as foreign instances",
    ),
];

fn open(settings: &BackendSettings, clock: &Clock) -> shardwise_discovery::Result<Arc<dyn Discovery>> {
    let text = |key| settings.text(key).map(str::to_owned);
    let path = |key| settings.path(key).map(Into::into);
    let database = settings.text("database").unwrap_or("0");
    let database = database.parse().map_err(|_| {
        let why = format!("is {database:?}: it must be a number from 0 to {}", u16::MAX);
        Failure::Setting { setting: "database", why }.during("open")
    })?;
    let config = ValkeyConfig {
        url: text("url"),
        sentinels: settings.texts("sentinels").to_vec(),
        master_name: text("master_name"),
        username: text("username"),
        password: settings.secret("password").cloned(),
        sentinel_username: text("sentinel_username"),
        sentinel_password: settings.secret("sentinel_password").cloned(),
        ca_file: path("ca_file"),
        cert_file: path("cert_file"),
        key_file: path("key_file"),
        database,
        prefix: text("prefix").unwrap_or_else(|| PREFIX_DEFAULT.into()),
        member_keys: text("member_keys"),
    };
    Ok(Arc::new(ValkeyBackend::open(&config, clock.clone())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_read_by_their_names() {
        let settings = BackendSettings::new()
            .with("url", shardwise_discovery::settings::BackendValue::Text("redis://h".into()))
            .with("database", shardwise_discovery::settings::BackendValue::Text("x".into()));
        let error = (BACKEND.open)(&settings, &Clock::system()).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "open: discovery.valkey.database is \"x\": it must be a number from 0 to 65535");
    }
}
