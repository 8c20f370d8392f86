//! What a Consul agent is started with.

use std::path::Path;

use serde_json::{Value, json};

use crate::ports::Port;

/// The ports of one agent; it keeps them over restarts.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) http: Port,
    pub(super) server: Port,
    pub(super) gossip: Port,
}

/// How an agent is started. The default: a server alone, everybody may do everything, no TLS.
#[derive(Clone, Debug)]
pub struct ConsulOptions {
    pub(super) node: String,
    pub(super) acl: bool,
    /// Servers that form a cluster; 0 for a client agent.
    pub(super) servers: usize,
    /// Gossip addresses of agents to join.
    pub(super) join: Vec<String>,
}

impl Default for ConsulOptions {
    fn default() -> Self {
        Self { node: "server-1".into(), acl: false, servers: 1, join: Vec::new() }
    }
}

impl ConsulOptions {
    /// Access control lists: without a token nothing is allowed.
    #[must_use]
    pub fn with_acl(mut self) -> Self {
        self.acl = true;
        self
    }

    /// The agent's configuration file.
    pub(super) fn configuration(&self, folder: &Path, ports: &Ports, token: &str) -> Value {
        let mut all = json!({
            "node_name": self.node,
            "data_dir": folder.join("data"),
            "bind_addr": "127.0.0.1",
            "addresses": { "http": format!("127.0.0.1 unix://{}", folder.join("http.sock").display()) },
            "ports": {
                "http": ports.http.number(), "serf_lan": ports.gossip.number(), "server": ports.server.number(),
                "https": -1, "grpc": -1, "dns": -1, "serf_wan": -1,
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
        if self.acl {
            let tokens = json!({ "master": token, "agent": token });
            all["acl"] = json!({ "enabled": true, "default_policy": "deny", "tokens": tokens });
        }
        all
    }
}
