//! The backend in the table of settings: its keys, and how it is opened from them.

use std::sync::Arc;

use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, FileTwin};
use shardwise_discovery::{Clock, Discovery};

use crate::backend::EtcdBackend;
use crate::config::{ENDPOINT_DEFAULT, EtcdConfig, PREFIX_DEFAULT};

/// `discovery.backend = "etcd"`.
pub const BACKEND: BackendKind = BackendKind { name: "etcd", keys: KEYS, claims_share: 1, open, init: None };

const KEYS: &[BackendKey] = &[
    BackendKey::new("endpoints", BackendShape::Texts, "the etcd servers, each as http://host:port or https://host:port")
        .or(ENDPOINT_DEFAULT)
        .or_variable("ETCDCTL_ENDPOINTS")
        .of_server(),
    BackendKey::new("username", BackendShape::Text, "the user, if etcd asks for one"),
    BackendKey::new("password", BackendShape::Secret, "the user's password").or_file(FileTwin {
        name: "password_file",
        variable: None,
        why: "a file with the user's password, instead of password",
    }),
    BackendKey::new("ca_file", BackendShape::Path, "the CA, in PEM, that must have signed etcd's certificate; without it the system's")
        .or_variable("ETCDCTL_CACERT"),
    BackendKey::new("cert_file", BackendShape::Path, "this client's certificate (PEM), if etcd asks for one").or_variable("ETCDCTL_CERT"),
    BackendKey::new("key_file", BackendShape::Path, "the private key (PEM) of cert_file").or_variable("ETCDCTL_KEY"),
    BackendKey::new("prefix", BackendShape::Text, "the prefix of all of shardwise's keys in etcd").or(PREFIX_DEFAULT),
];

fn open(settings: &BackendSettings, clock: &Clock) -> shardwise_discovery::Result<Arc<dyn Discovery>> {
    let text = |key| settings.text(key).map(str::to_owned);
    let path = |key| settings.path(key).map(Into::into);
    let config = EtcdConfig {
        endpoints: settings.texts("endpoints").to_vec(),
        username: text("username"),
        password: settings.secret("password").cloned(),
        ca_file: path("ca_file"),
        cert_file: path("cert_file"),
        key_file: path("key_file"),
        prefix: text("prefix").unwrap_or_else(|| PREFIX_DEFAULT.into()),
    };
    Ok(Arc::new(EtcdBackend::open(&config, clock.clone())?))
}
