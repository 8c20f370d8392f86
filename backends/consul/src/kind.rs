//! The backend in the table of settings: its keys, and how it is opened from them.

use std::path::PathBuf;
use std::sync::Arc;

use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, BackendValue, FileTwin};
use shardwise_discovery::{Clock, Discovery};

use crate::backend::ConsulBackend;
use crate::claims::SHARE;
use crate::config::{ConsulConfig, DEFAULT_ADDRESS};
use crate::error::Failure;

/// This backend for the library's table: `discovery.backend = "consul"`.
pub const BACKEND: BackendKind = BackendKind {
    name: "consul",
    keys: &[
        BackendKey::new("address", BackendShape::Text, "the agent on this machine; http://, https:// or unix:///path")
            .or(DEFAULT_ADDRESS)
            .or_variable("CONSUL_HTTP_ADDR")
            .of_server(),
        BackendKey::new("token", BackendShape::Secret, "the ACL token").or_variable("CONSUL_HTTP_TOKEN").or_file(FileTwin {
            name: "token_file",
            variable: Some("CONSUL_HTTP_TOKEN_FILE"),
            why: "a file with the ACL token",
        }),
        BackendKey::new("datacenter", BackendShape::Text, "the agent's datacenter, to be sure that it is the right one"),
        BackendKey::new(
            "ca_file",
            BackendShape::Path,
            "the CA, in PEM, that must have signed the agent's certificate; without it the system's",
        )
        .or_variable("CONSUL_CACERT"),
        BackendKey::new("cert_file", BackendShape::Path, "this client's certificate chain, in PEM").or_variable("CONSUL_CLIENT_CERT"),
        BackendKey::new("key_file", BackendShape::Path, "the key of cert_file, in PEM").or_variable("CONSUL_CLIENT_KEY"),
        BackendKey::new("tls", BackendShape::Flag, "HTTPS where the address does not begin with http:// or https://")
            .or_variable("CONSUL_HTTP_SSL"),
        BackendKey::new("verify", BackendShape::Flag, "certificates are always checked; false is refused")
            .or_variable("CONSUL_HTTP_SSL_VERIFY"),
    ],
    claims_share: SHARE,
    open,
    init: None,
};

fn open(settings: &BackendSettings, clock: &Clock) -> shardwise_discovery::Result<Arc<dyn Discovery>> {
    let path = |key| settings.path(key).map(PathBuf::from);
    if settings.iter().any(|(key, value)| key == "verify" && *value == BackendValue::Flag(false)) {
        let why =
            "is false (CONSUL_HTTP_SSL_VERIFY), but certificates are always checked; remove it, and set discovery.consul.ca_file to the CA";
        return Err(Failure::BadSetting { key: "verify", why: why.to_owned() }.during("open"));
    }
    let config = ConsulConfig {
        address: settings.text("address").unwrap_or(DEFAULT_ADDRESS).to_owned(),
        token: settings.secret("token").cloned(),
        datacenter: settings.text("datacenter").map(str::to_owned),
        ca_file: path("ca_file"),
        cert_file: path("cert_file"),
        key_file: path("key_file"),
        tls: settings.flag("tls"),
    };
    Ok(Arc::new(ConsulBackend::open(&config, clock.clone())?))
}
