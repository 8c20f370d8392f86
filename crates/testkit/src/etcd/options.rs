//! What an etcd member is started with.

use std::path::Path;

use crate::certs::CertIdentity;
use crate::error::Result;
use crate::ports::Port;

#[derive(Debug)]
pub(super) struct EtcdPorts {
    pub(super) client: Port,
    pub(super) peer: Port,
    /// For ourselves: clients too, but never with TLS.
    pub(super) plain: Port,
    /// Health and metrics, which need neither TLS nor a password.
    pub(super) metrics: Port,
}

impl EtcdPorts {
    pub(super) fn reserve() -> Result<Self> {
        Ok(Self { client: Port::reserve()?, peer: Port::reserve()?, plain: Port::reserve()?, metrics: Port::reserve()? })
    }

    pub(super) fn peer_url(&self) -> String {
        format!("http://{}", self.peer.address())
    }
}

/// How a member is started. The default: everybody may do everything, no TLS.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    pub(super) auth: bool,
    pub(super) tls: Option<CertIdentity>,
    pub(super) client_certificates: bool,
    pub(super) fsync: bool,
}

/// What a member has to know of the others.
#[derive(Clone, Debug)]
pub(super) struct ClusterMembership {
    pub(super) name: String,
    pub(super) initial_cluster: String,
    /// Joins a cluster that is there, without a vote, instead of beginning one with the others.
    pub(super) learner: bool,
}

impl EtcdOptions {
    /// Users and passwords: without one nothing is allowed. See [`Etcd::add_user`](super::Etcd::add_user).
    #[must_use]
    pub fn with_auth(mut self) -> Self {
        self.auth = true;
        self
    }

    /// TLS for clients, with this certificate.
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(identity.clone());
        self
    }

    /// Only clients with a certificate of the same authority; after [`EtcdOptions::with_tls`].
    #[must_use]
    pub fn with_client_certificates(mut self) -> Self {
        self.client_certificates = true;
        self
    }

    /// Syncs each write to disk, as etcd does by default: for measuring how long things take.
    #[must_use]
    pub fn with_fsync(mut self) -> Self {
        self.fsync = true;
        self
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    pub(super) fn arguments(&self, place: &ClusterMembership, folder: &Path, ports: &EtcdPorts) -> Vec<String> {
        let client = format!("{}://{}", self.scheme(), ports.client.address());
        let mut set = vec![
            ("name", place.name.clone()),
            ("data-dir", folder.join("data").display().to_string()),
            ("listen-client-urls", format!("{client},http://{}", ports.plain.address())),
            ("advertise-client-urls", client),
            ("listen-peer-urls", ports.peer_url()),
            ("initial-advertise-peer-urls", ports.peer_url()),
            ("initial-cluster", place.initial_cluster.clone()),
            ("initial-cluster-state", if place.learner { "existing" } else { "new" }.into()),
            ("listen-metrics-urls", format!("http://{}", ports.metrics.address())),
            // A killed process loses nothing that it gave to the kernel; only a machine that loses power would.
            ("unsafe-no-fsync", (!self.fsync).to_string()),
            // Passwords of tests need no protection that takes a tenth of a second of processor.
            ("bcrypt-cost", "4".into()),
        ];
        if let Some(identity) = &self.tls {
            set.push(("cert-file", identity.certificate().display().to_string()));
            set.push(("key-file", identity.key().display().to_string()));
            if self.client_certificates {
                set.push(("client-cert-auth", "true".into()));
                set.push(("trusted-ca-file", identity.authority().display().to_string()));
            }
        }
        set.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
    }
}
