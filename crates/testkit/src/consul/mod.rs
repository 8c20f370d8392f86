//! Consul agents: a server alone or with others, and client agents.

mod acl;
mod cluster;
mod gateway;
mod options;

use std::path::PathBuf;

use serde_json::Value;

pub use acl::ConsulToken;
pub use cluster::ConsulCluster;
use gateway::GatewayNetwork;
pub use options::ConsulOptions;
use options::ConsulPorts;

use crate::error::{Error, Result};
use crate::folder;
use crate::http::{self, HttpAnswer};
use crate::process::{Launch, Process};
use crate::server::{server, started};
use crate::servers;

/// The token that may do everything, where access control is on.
const MANAGEMENT: &str = "5eed0000-0000-4000-8000-000000000001";

/// One running Consul agent; killed when dropped.
#[derive(Debug)]
pub struct Consul {
    // Dropped first: the ports outlive the process.
    process: Process,
    options: ConsulOptions,
    ports: ConsulPorts,
}

server!(Consul);

impl Consul {
    /// A server alone, with its own data, ready for reads and writes.
    pub async fn single() -> Result<Self> {
        Self::start(ConsulOptions::default()).await
    }

    /// A server alone with these options, ready for reads and writes.
    pub async fn start(options: ConsulOptions) -> Result<Self> {
        started(async || Self::launch(options.clone(), ConsulPorts::reserve()?).await).await
    }

    /// A client agent of this server, with the same options and its own name; ready when the server answers through it.
    pub async fn agent(&self, node: &str) -> Result<Self> {
        Self::start(self.options.agent(node, vec![self.gossip_address()])).await
    }

    async fn launch(options: ConsulOptions, ports: ConsulPorts) -> Result<Self> {
        let program = servers::program("consul")?;
        let folder = folder::temporary("consul")?;
        if let Some(network) = &options.network {
            network.open(&ports).await?;
        }
        let file = folder.path().join("agent.json");
        let configuration = options.configuration(folder.path(), &ports, MANAGEMENT);
        std::fs::write(&file, configuration.to_string()).map_err(Error::io(file.display()))?;
        let arguments = vec!["agent".into(), "-config-file".into(), file.display().to_string()];
        let clients = if options.tls.is_some() { ("https", ports.https.address()) } else { ("http", ports.http.address()) };
        let process = Launch { clients, ..Launch::new(format!("consul {}", options.node), program, arguments, folder) }.start()?;
        Ok(Self { process, options, ports })
    }

    /// Waits until a read that the servers answer shows this very agent alive.
    async fn wait_ready(&self) -> Result<()> {
        let path = format!("/v1/health/node/{}?consistent&filter=CheckID==serfHealth", self.options.node);
        self.process
            .until("a consistent read shows it alive", async || {
                let answer = self.send("GET", &path, None).await.map_err(|error| error.to_string())?;
                let alive = answer.status == 200 && answer.body.contains("\"Status\":\"passing\"");
                if alive { Ok(()) } else { Err(format!("{} {}", answer.status, answer.body)) }
            })
            .await
    }

    fn gossip_address(&self) -> String {
        self.options.gossip_address(&self.ports)
    }

    /// The Unix socket with the same API, always without TLS.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder().join("http.sock")
    }

    /// The name of the agent's node.
    pub fn node(&self) -> &str {
        &self.options.node
    }

    /// Kills it if it runs, and starts it on the same ports, with what it had stored or as if new; gives back when it is ready.
    pub async fn restart(&self, keep_data: bool) -> Result<()> {
        self.relaunch(keep_data)?;
        self.wait_ready().await
    }

    /// Cuts the agents of its cluster off from each other, silently and both ways; their HTTP APIs stay where they are. Only with
    /// [`ConsulOptions::with_network`].
    ///
    /// What Consul 1.8.7 does then: a `check/pass` that changes nothing is answered at once, while one that changes the check's
    /// status, a registration and every read of the servers wait for them in silence. The others see the node fail after about 8 s,
    /// and see it again up to 20 s after [`Consul::heal`].
    pub fn cut_off(&self) -> Result<()> {
        self.network().map(GatewayNetwork::cut)
    }

    /// Ends what [`Consul::cut_off`] did.
    pub async fn heal(&self) -> Result<()> {
        self.network()?.heal().await
    }

    fn network(&self) -> Result<&GatewayNetwork> {
        self.options.network.as_ref().ok_or_else(|| Error::new(format!("{} was started without a network", self.node())))
    }

    /// A call of the agent's HTTP API with all rights, such as `("PUT", "/v1/kv/key", Some(&body))`. An answer whose status is not 200 is
    /// an error.
    pub async fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        self.send(method, path, body).await?.success(method, path)
    }

    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<HttpAnswer> {
        let header = self.options.acl.then_some(("X-Consul-Token", MANAGEMENT));
        http::request(self.ports.http.address(), method, path, header, body).await
    }
}
