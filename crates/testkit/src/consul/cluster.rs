//! Several servers that form a cluster.

use futures::future::try_join_all;

use super::{Consul, ConsulOptions, ConsulPorts};
use crate::error::{Error, Result};
use crate::server::{self, Leads, Startable as _, started};

/// Servers of one cluster; killed when dropped.
#[derive(Debug)]
pub struct ConsulCluster {
    servers: Vec<Consul>,
}

impl Leads for Consul {
    async fn leads(&self) -> bool {
        let leader = self.api("GET", "/v1/status/leader", None).await;
        leader.is_ok_and(|leader| leader == self.options.server_address(&self.ports))
    }
}

impl ConsulCluster {
    /// Servers with these options, ready for reads and writes; again on other ports where another process was quicker.
    pub async fn start(count: usize, options: ConsulOptions) -> Result<Self> {
        Ok(Self { servers: started(async || launch(count, &options).await).await? })
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
        server::leader(&self.servers).await
    }

    /// Kills all servers and starts them again, with what they had stored or as if new; gives back when they are ready.
    pub async fn restart(&self, keep_data: bool) -> Result<()> {
        server::relaunch(&self.servers, keep_data)?;
        self.servers.ready().await
    }
}

async fn launch(count: usize, options: &ConsulOptions) -> Result<Vec<Consul>> {
    let ports = (0..count).map(|_| ConsulPorts::reserve()).collect::<Result<Vec<_>>>()?;
    let join: Vec<_> = ports.iter().map(|ports| options.gossip_address(ports)).collect();
    let start = |(number, ports)| {
        let node = format!("server-{number}");
        Consul::launch(ConsulOptions { node, servers: count, join: join.clone(), ..options.clone() }, ports)
    };
    try_join_all((1..).zip(ports).map(start)).await
}
