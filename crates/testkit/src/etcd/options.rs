//! What an etcd member is started with.

use std::path::Path;

use crate::error::Result;
use crate::ports::Port;

/// The ports of one member; it keeps them over restarts.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) client: Port,
    pub(super) peer: Port,
    /// Health and metrics, always without TLS and passwords.
    pub(super) metrics: Port,
}

impl Ports {
    pub(super) fn reserve() -> Result<Self> {
        Ok(Self { client: Port::reserve()?, peer: Port::reserve()?, metrics: Port::reserve()? })
    }

    pub(super) fn peer_url(&self) -> String {
        format!("http://{}", self.peer.address())
    }
}

/// How a member is started. The default: alone, everybody may do everything, no TLS.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    pub(super) name: String,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self { name: "etcd-1".into() }
    }
}

impl EtcdOptions {
    pub(super) fn arguments(&self, folder: &Path, ports: &Ports) -> Vec<String> {
        let client = format!("http://{}", ports.client.address());
        let set = [
            ("name", self.name.clone()),
            ("data-dir", folder.join("data").display().to_string()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", ports.peer_url()),
            ("initial-advertise-peer-urls", ports.peer_url()),
            ("initial-cluster", format!("{}={}", self.name, ports.peer_url())),
            ("listen-metrics-urls", format!("http://{}", ports.metrics.address())),
            // A killed process loses nothing that it gave to the kernel; only a machine that loses power would.
            ("unsafe-no-fsync", "true".into()),
        ];
        set.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
    }
}
