//! The backend in the table of settings: its keys, and how it is opened from them.

use std::sync::Arc;

use futures::future::BoxFuture;
use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, FileTwin};
use shardwise_discovery::{Clock, Discovery};

use crate::backend::NatsBackend;
use crate::config::{BUCKET_DEFAULT, NatsBackendConfig, STATUS_KEYS_DEFAULT, SyncInterval, URL_DEFAULT};
use crate::error::Failure;

/// `discovery.backend = "nats"`.
pub const BACKEND: BackendKind = BackendKind { name: "nats", keys: KEYS, claims_share: 1, open, init: Some(init) };

const KEYS: &[BackendKey] = &[
    BackendKey::new("urls", BackendShape::Texts, "the NATS servers of one cluster, each as nats://host:port or tls://host:port")
        .or(URL_DEFAULT)
        .or_variable("NATS_URL")
        .of_server(),
    BackendKey::new("username", BackendShape::Text, "the user, if NATS asks for one"),
    BackendKey::new("password", BackendShape::Secret, "the user's password").or_file(FileTwin {
        name: "password_file",
        variable: None,
        why: "a file with the user's password, instead of password",
    }),
    BackendKey::new("token", BackendShape::Secret, "the token, if NATS asks for one instead of a user").or_file(FileTwin {
        name: "token_file",
        variable: None,
        why: "a file with the token, instead of token",
    }),
    BackendKey::new(
        "creds_file",
        BackendShape::Path,
        "a credentials file with the user's JWT and NKey (.creds), instead of a user or a token",
    )
    .or_variable("NATS_CREDS"),
    BackendKey::new(
        "ca_file",
        BackendShape::Path,
        "the CA, in PEM, that must have signed the servers' certificates; without it the system's",
    )
    .or_variable("NATS_CA"),
    BackendKey::new("cert_file", BackendShape::Path, "this client's certificate (PEM), if NATS asks for one").or_variable("NATS_CERT"),
    BackendKey::new("key_file", BackendShape::Path, "the private key (PEM) of cert_file").or_variable("NATS_KEY"),
    BackendKey::new("bucket", BackendShape::Text, "the key-value bucket with everything of shardwise").or(BUCKET_DEFAULT),
    BackendKey::new(
        "replicas",
        BackendShape::Text,
        "the replicas of a bucket that is made: 1, 3 or 5; without it 3 in a cluster, and 1 on one server",
    ),
    BackendKey::new(
        "sync_interval",
        BackendShape::Text,
        "\"always\" is your word that every server has this sync_interval for JetStream; exclusive ownership needs it",
    ),
    BackendKey::new(
        "status_bucket",
        BackendShape::Text,
        "a bucket in which another fleet keeps one key for each of its workers: they are followed as foreign instances",
    ),
    BackendKey::new("status_keys", BackendShape::Text, "which keys of status_bucket are workers; the last part of each is the worker's id")
        .or(STATUS_KEYS_DEFAULT),
];

fn open(settings: &BackendSettings, clock: &Clock) -> shardwise_discovery::Result<Arc<dyn Discovery>> {
    Ok(Arc::new(NatsBackend::open(&config_of(settings)?, clock.clone())?))
}

fn init(settings: &BackendSettings) -> BoxFuture<'static, shardwise_discovery::Result<String>> {
    let config = config_of(settings);
    Box::pin(async move { NatsBackend::init(&config?).await })
}

fn config_of(settings: &BackendSettings) -> shardwise_discovery::Result<NatsBackendConfig> {
    let text = |key| settings.text(key).map(str::to_owned);
    let path = |key| settings.path(key).map(Into::into);
    let wrong = |setting, why: String| Failure::Setting { setting, why }.during("", "open");
    let replicas = match settings.text("replicas") {
        None => None,
        Some("1") => Some(1),
        Some("3") => Some(3),
        Some("5") => Some(5),
        Some(other) => return Err(wrong("replicas", format!("is {other:?}; use 1, 3 or 5"))),
    };
    let sync_interval = match settings.text("sync_interval") {
        None => SyncInterval::Unknown,
        Some("always") => SyncInterval::Always,
        Some(other) => {
            let why = format!("is {other:?}; set the servers' jetstream.sync_interval to always, and this to \"always\", or remove this");
            return Err(wrong("sync_interval", why));
        }
    };
    Ok(NatsBackendConfig {
        urls: settings.texts("urls").to_vec(),
        username: text("username"),
        password: settings.secret("password").cloned(),
        token: settings.secret("token").cloned(),
        creds_file: path("creds_file"),
        ca_file: path("ca_file"),
        cert_file: path("cert_file"),
        key_file: path("key_file"),
        bucket: text("bucket").unwrap_or_else(|| BUCKET_DEFAULT.into()),
        replicas,
        sync_interval,
        status_bucket: text("status_bucket"),
        status_keys: text("status_keys").unwrap_or_else(|| STATUS_KEYS_DEFAULT.into()),
    })
}

#[cfg(test)]
mod tests {
    use shardwise_discovery::settings::BackendValue;

    use super::*;

    #[test]
    fn a_value_that_is_none_of_those_possible_is_refused_by_name() {
        for (key, value) in [("replicas", "2"), ("sync_interval", "2m")] {
            let settings =
                BackendSettings::new().with("urls", BackendValue::Texts(vec!["h".into()])).with(key, BackendValue::Text(value.into()));
            let error = (BACKEND.open)(&settings, &Clock::system()).map(drop).unwrap_err();
            assert!(error.to_string().starts_with(&format!("open: discovery.nats.{key} is \"{value}\"")), "{error}");
        }
    }
}
