//! Several servers that form a cluster.

use std::time::{Duration, Instant};

use futures::future::try_join_all;

use super::{Consul, ConsulOptions, ConsulPorts};
use crate::error::{Error, Result};
use crate::process::{LOOK_EVERY, PATIENCE};
use crate::server::{Startable, started};

/// How long a server may take to say who leads, before it counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Servers of one cluster; killed when dropped.
#[derive(Debug)]
pub struct ConsulCluster {
    servers: Vec<Consul>,
}

impl Startable for ConsulCluster {
    fn lacks_port(&self) -> bool {
        self.servers.iter().any(Startable::lacks_port)
    }

    async fn ready(&self) -> Result<()> {
        try_join_all(self.servers.iter().map(Startable::ready)).await.map(drop)
    }
}

impl ConsulCluster {
    /// Servers with these options, ready for reads and writes; again on other ports where another process was quicker.
    pub async fn start(count: usize, options: ConsulOptions) -> Result<Self> {
        started(async || Ok(Self { servers: launch(count, &options).await? })).await
    }

    /// All servers, dead or alive.
    pub fn servers(&self) -> &[Consul] {
        &self.servers
    }

    /// A client agent of all servers, with the same options and its own name; ready when the servers answer through it.
    pub async fn agent(&self, node: &str) -> Result<Consul> {
        let join = self.servers.iter().map(Consul::gossip_address).collect();
        let server = self.servers.first().ok_or_else(|| Error::new("a cluster without servers"))?;
        Consul::start(server.options.agent(node, join)).await
    }

    /// Waits until one server leads, and gives back its place in [`ConsulCluster::servers`]. One that is dead or paused does not.
    pub async fn leader(&self) -> Result<usize> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for (index, server) in self.servers.iter().enumerate() {
                if leads(server).await {
                    return Ok(index);
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(Error::new(format!("no Consul server led within {} s", PATIENCE.as_secs())))
    }

    /// Kills all servers and starts them again, with what they had stored or as if new; gives back when they are ready.
    pub async fn restart(&self, keep_data: bool) -> Result<()> {
        self.servers.iter().try_for_each(|server| server.kill())?;
        self.servers.iter().try_for_each(|server| server.relaunch(keep_data))?;
        self.ready().await
    }
}

/// Whether the server says of itself that it leads.
async fn leads(server: &Consul) -> bool {
    let answer = tokio::time::timeout(SILENT_AFTER, server.api("GET", "/v1/status/leader", None)).await;
    answer.is_ok_and(|answer| answer.is_ok_and(|leader| leader == server.options.server_address(&server.ports)))
}

async fn launch(count: usize, options: &ConsulOptions) -> Result<Vec<Consul>> {
    let ports = (0..count).map(|_| ConsulPorts::reserve()).collect::<Result<Vec<_>>>()?;
    let join: Vec<_> = ports.iter().map(|ports| options.gossip_address(ports)).collect();
    let start = |(index, ports)| Consul::launch(options.member(index, count, join.clone()), ports);
    try_join_all(ports.into_iter().enumerate().map(start)).await
}
