//! The backend's settings, checked before any server is contacted.

use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;
use shardwise_discovery::settings::without_secrets;

use crate::error::{Failure, NatsResult};
use crate::names::Bucket;
use crate::status_keys::StatusKeys;

/// The server unless others are set.
pub const URL_DEFAULT: &str = "nats://127.0.0.1:4222";
/// The bucket unless another one is set.
pub const BUCKET_DEFAULT: &str = "shardwise";
/// Which keys of `status_bucket` are workers, unless others are named.
pub const STATUS_KEYS_DEFAULT: &str = ">";
/// The most servers that may be named.
pub const URLS_MAX: usize = 16;

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

    /// The keys of another fleet, if one is followed.
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
