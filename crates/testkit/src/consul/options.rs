//! What a Consul agent is started with.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use serde_json::{Value, json};

use super::gateway::{GatewayNetwork, INSIDE, OUTSIDE};
use crate::certs::CertIdentity;
use crate::error::Result;
use crate::ports::Port;

#[derive(Debug)]
pub(super) struct ConsulPorts {
    /// Without TLS, always there.
    pub(super) http: Port,
    pub(super) https: Port,
    pub(super) server: Port,
    pub(super) gossip: Port,
}

impl ConsulPorts {
    pub(super) fn reserve() -> Result<Self> {
        Ok(Self { http: Port::reserve()?, https: Port::reserve()?, server: Port::reserve()?, gossip: Port::reserve()? })
    }
}

/// How an agent is started. The default: a server alone, everybody may do everything, no TLS.
#[derive(Clone, Debug)]
pub struct ConsulOptions {
    pub(super) node: String,
    pub(super) acl: bool,
    pub(super) tls: Option<CertIdentity>,
    pub(super) client_certificates: bool,
    pub(super) network: Option<GatewayNetwork>,
    pub(super) http_connections: Option<u32>,
    /// Servers that form a cluster; 0 for a client agent.
    pub(super) servers: usize,
    /// Gossip addresses of agents to join.
    pub(super) join: Vec<String>,
}

impl Default for ConsulOptions {
    fn default() -> Self {
        Self {
            node: "server-1".into(),
            acl: false,
            tls: None,
            client_certificates: false,
            network: None,
            http_connections: None,
            servers: 1,
            join: Vec::new(),
        }
    }
}

impl ConsulOptions {
    /// Access control lists: without a token nothing is allowed.
    #[must_use]
    pub fn with_acl(mut self) -> Self {
        self.acl = true;
        self
    }

    /// HTTPS too, with this certificate.
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(identity.clone());
        self
    }

    /// HTTPS only for clients with a certificate of the same authority; after [`ConsulOptions::with_tls`].
    #[must_use]
    pub fn with_client_certificates(mut self) -> Self {
        self.client_certificates = true;
        self
    }

    /// A network in which agents can be cut off from each other: see [`Consul::cut_off`](super::Consul::cut_off). The agents of one
    /// cluster must share it, as those do that come from one server or cluster.
    #[must_use]
    pub fn with_network(mut self) -> Self {
        self.network = Some(GatewayNetwork::default());
        self
    }

    /// So many connections of one client address over HTTP, instead of Consul's 200.
    #[must_use]
    pub fn with_http_connections(mut self, most: u32) -> Self {
        self.http_connections = Some(most);
        self
    }

    pub(super) fn agent(&self, node: &str, join: Vec<String>) -> Self {
        Self { node: node.to_owned(), servers: 0, join, ..self.clone() }
    }

    /// Where other agents reach this one.
    fn advertised(&self) -> IpAddr {
        if self.network.is_some() { OUTSIDE } else { INSIDE }
    }

    /// Where others join by way of this agent.
    pub(super) fn gossip_address(&self, ports: &ConsulPorts) -> String {
        SocketAddr::new(self.advertised(), ports.gossip.number()).to_string()
    }

    /// Where servers and agents call this server.
    pub(super) fn server_address(&self, ports: &ConsulPorts) -> String {
        SocketAddr::new(self.advertised(), ports.server.number()).to_string()
    }

    pub(super) fn configuration(&self, folder: &Path, ports: &ConsulPorts, token: &str) -> Value {
        let https = self.tls.as_ref().map_or(json!(-1), |_| json!(ports.https.number()));
        let mut all = json!({
            "node_name": self.node,
            "data_dir": folder.join("data"),
            "bind_addr": INSIDE,
            "advertise_addr": self.advertised(),
            "client_addr": "127.0.0.1",
            "addresses": { "http": format!("127.0.0.1 unix://{}", folder.join("http.sock").display()) },
            "ports": {
                "http": ports.http.number(), "https": https, "serf_lan": ports.gossip.number(), "server": ports.server.number(),
                "grpc": -1, "dns": -1, "serf_wan": -1,
            },
            "server": self.servers > 0,
            // Elections in about a second, as in production on good machines.
            "performance": { "raft_multiplier": 1 },
            "retry_join": self.join,
            "retry_interval": "200ms",
            "connect": { "enabled": false },
            "disable_update_check": true,
            // A signal that ends it is a crash, not a farewell.
            "leave_on_terminate": false,
        });
        if self.servers > 0 {
            all["bootstrap_expect"] = json!(self.servers);
        }
        if let Some(most) = self.http_connections {
            all["limits"] = json!({ "http_max_conns_per_client": most });
        }
        if self.acl {
            let tokens = json!({ "master": token, "agent": token });
            all["acl"] = json!({ "enabled": true, "default_policy": "deny", "tokens": tokens });
        }
        if let Some(identity) = &self.tls {
            all["ca_file"] = json!(identity.authority());
            all["cert_file"] = json!(identity.certificate());
            all["key_file"] = json!(identity.key());
            all["verify_incoming_https"] = json!(self.client_certificates);
        }
        all
    }
}
