//! The backend's settings, checked before any server is contacted.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use secrecy::SecretString;
use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, FileTwin, without_secrets};
use shardwise_discovery::{Clock, Discovery};

use crate::NatsBackend;
use crate::error::{Failure, NatsResult};
use crate::names::Bucket;
use crate::status::StatusKeys;

/// The server unless others are set.
pub const URL_DEFAULT: &str = "nats://127.0.0.1:4222";
/// The bucket unless another one is set.
pub const BUCKET_DEFAULT: &str = "shardwise";
/// Which keys of `status_bucket` are workers, unless others are named.
pub const STATUS_KEYS_DEFAULT: &str = ">";
/// The most servers that may be named.
pub const URLS_MAX: usize = 16;

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

/// What the operator says about the servers' setting `sync_interval` of `jetstream`, which no client can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncInterval {
    /// Nothing. NATS flushes every two minutes by default, so a power failure may undo what it has acknowledged.
    #[default]
    Unknown,
    /// Every server flushes before it acknowledges.
    Always,
}

/// Which servers, who asks, and which bucket. Its `Debug` shows neither the secrets nor what may be one in a URL.
#[derive(Clone)]
pub struct NatsBackendConfig {
    /// The servers of one cluster, such as `tls://nats-1:4222`. While one is down, another is used. With `tls` nothing is sent without TLS.
    pub urls: Vec<String>,
    /// The user, if NATS asks for one.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<SecretString>,
    /// The token, if NATS asks for one instead of a user.
    pub token: Option<SecretString>,
    /// A credentials file with the user's JWT and `NKey` (`.creds`), instead of a user or a token. It is read for each connection.
    pub creds_file: Option<PathBuf>,
    /// The certificates that the servers' own may be signed with, as PEM; else those that this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// This client's certificate with its chain, as PEM, if NATS asks for one.
    pub cert_file: Option<PathBuf>,
    /// The private key of `cert_file`, as PEM.
    pub key_file: Option<PathBuf>,
    /// The key-value bucket with everything: 1 to 64 letters, digits, `-` and `_`. Members that name the same servers and bucket meet.
    pub bucket: String,
    /// The replicas of a bucket that has to be made; `None`: three in a cluster, one on a server that is in none.
    pub replicas: Option<usize>,
    /// What the operator says about the servers' flushes. Exclusive ownership needs [`SyncInterval::Always`].
    pub sync_interval: SyncInterval,
    /// The bucket in which another fleet keeps one key for each of its workers. Views show them as foreign instances, for placements that
    /// count these.
    pub status_bucket: Option<String>,
    /// Which keys of `status_bucket` are workers: parts separated by dots, where `*` is any part and `>` all further ones. The last part of
    /// a key is the worker's id.
    pub status_keys: String,
}

impl Default for NatsBackendConfig {
    /// A server on this machine, without TLS and user.
    fn default() -> Self {
        Self {
            urls: vec![URL_DEFAULT.into()],
            username: None,
            password: None,
            token: None,
            creds_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            bucket: BUCKET_DEFAULT.into(),
            replicas: None,
            sync_interval: SyncInterval::Unknown,
            status_bucket: None,
            status_keys: STATUS_KEYS_DEFAULT.into(),
        }
    }
}

impl fmt::Debug for NatsBackendConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.urls.iter().map(|url| without_secrets(url)).collect();
        let mut shown = f.debug_struct("NatsBackendConfig");
        shown.field("urls", &urls).field("username", &self.username).field("password", &self.password).field("token", &self.token);
        shown.field("creds_file", &self.creds_file);
        shown.field("ca_file", &self.ca_file).field("cert_file", &self.cert_file).field("key_file", &self.key_file);
        shown.field("bucket", &self.bucket).field("replicas", &self.replicas).field("sync_interval", &self.sync_interval);
        shown.field("status_bucket", &self.status_bucket).field("status_keys", &self.status_keys).finish()
    }
}

impl NatsBackendConfig {
    pub(crate) fn bucket(&self) -> NatsResult<Bucket> {
        Bucket::new(&self.bucket)
    }

    /// The keys of another fleet, if some are to be followed.
    pub(crate) fn status(&self) -> NatsResult<Option<StatusKeys>> {
        let keys = self.status_bucket.as_ref().map(|bucket| StatusKeys::new(bucket, &self.status_keys)).transpose()?;
        if keys.as_ref().is_some_and(|keys| keys.bucket().name() == self.bucket) {
            let why = format!("is {:?}, as discovery.nats.bucket: it is not for keys of another fleet", self.bucket);
            return Err(Failure::Setting { setting: "status_bucket", why });
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use shardwise_discovery::settings::BackendValue;

    use super::*;

    fn of(urls: &[&str]) -> NatsBackendConfig {
        NatsBackendConfig { urls: urls.iter().map(|&url| url.to_owned()).collect(), ..NatsBackendConfig::default() }
    }

    #[test]
    fn settings_that_do_not_belong_together_are_refused() {
        let said = |config: NatsBackendConfig| config.dial().unwrap_err().to_string();
        let base = NatsBackendConfig::default;
        assert!(said(NatsBackendConfig { password: Some("x".into()), ..base() }).contains("without discovery.nats.username"));
        let both = NatsBackendConfig { token: Some("x".into()), username: Some("me".into()), ..base() };
        assert!(said(both).starts_with("discovery.nats.token is set"));
        let same = NatsBackendConfig { status_bucket: Some(BUCKET_DEFAULT.into()), ..base() };
        assert!(same.status().unwrap_err().to_string().starts_with("discovery.nats.status_bucket is \"shardwise\", as"));
        let twice = NatsBackendConfig { token: Some("x".into()), creds_file: Some("a.creds".into()), ..base() };
        assert!(said(twice).starts_with("discovery.nats.creds_file is set, and"));
        let nowhere = NatsBackendConfig { creds_file: Some("not there.creds".into()), ..base() }.dial().unwrap();
        let missing = nowhere.credentials().unwrap_err().to_string();
        assert!(missing.starts_with("discovery.nats.creds_file names not there.creds, which cannot be read"), "{missing}");
        assert!(said(NatsBackendConfig { cert_file: Some("c".into()), ..base() }).starts_with("discovery.nats.key_file is missing"));
        for (key, value) in [("replicas", "2"), ("sync_interval", "2m")] {
            let settings =
                BackendSettings::new().with("urls", BackendValue::Texts(vec!["h".into()])).with(key, BackendValue::Text(value.into()));
            let error = (BACKEND.open)(&settings, &Clock::system()).map(drop).unwrap_err();
            assert!(error.to_string().starts_with(&format!("open: discovery.nats.{key} is \"{value}\"")), "{error}");
        }
    }

    #[test]
    fn nothing_shows_a_secret() {
        let config = NatsBackendConfig {
            username: Some("me".into()),
            password: Some("hush".into()),
            token: Some("hush".into()),
            ..of(&["nats://u:hush@h"])
        };
        assert!(!format!("{config:?}").contains("hush"), "{config:?}");
    }
}
