//! etcd members: one alone, or with others.

mod auth;
mod cluster;
mod options;

use serde_json::json;

pub use auth::KeyAccess;
pub use cluster::EtcdCluster;
pub use options::EtcdOptions;
use options::{ClusterMembership, EtcdPorts};

use crate::error::{Error, Result};
use crate::folder;
use crate::http;
use crate::process::{Launch, Process};
use crate::server::{Leads, server};
use crate::servers;

/// One running etcd member; killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    // Dropped first: the ports outlive the process.
    process: Process,
    options: EtcdOptions,
    place: ClusterMembership,
    ports: EtcdPorts,
}

server!(Etcd);

impl Leads for Etcd {
    async fn leads(&self) -> bool {
        let answer = http::get(self.ports.metrics.address(), "/metrics").await;
        answer.is_ok_and(|answer| answer.body.contains("\netcd_server_is_leader 1\n"))
    }
}

impl Etcd {
    /// A member alone, with its own data, ready for reads and writes.
    pub async fn single() -> Result<Self> {
        Self::start(EtcdOptions::default()).await
    }

    /// A member alone with these options, ready for reads and writes.
    pub async fn start(options: EtcdOptions) -> Result<Self> {
        let mut cluster = EtcdCluster::start(1, options).await?;
        cluster.members.pop().ok_or_else(|| Error::new("one member was to be started, and none was"))
    }

    fn launch(options: &EtcdOptions, place: ClusterMembership, ports: EtcdPorts) -> Result<Self> {
        let program = servers::program("etcd")?;
        let folder = folder::temporary("etcd")?;
        let arguments = options.arguments(&place, folder.path(), &ports);
        let clients = (options.scheme(), ports.client.address());
        let process = Launch { clients, ..Launch::new(format!("etcd {}", place.name), program, arguments, folder) }.start()?;
        Ok(Self { process, options: options.clone(), place, ports })
    }

    /// Waits until the member knows a leader and answers consistent reads; a learner, until it answers reads at all.
    async fn wait_ready(&self) -> Result<()> {
        let path = if self.place.learner { "/health?serializable=true" } else { "/health" };
        self.process
            .until("it is healthy", async || {
                let answer = http::get(self.ports.metrics.address(), path).await.map_err(|error| error.to_string())?;
                if answer.status == 200 { Ok(()) } else { Err(answer.body) }
            })
            .await
    }

    /// Adds a learner to the cluster of this member: it takes part, but has no vote and answers no consistent read.
    pub async fn add_learner(&self) -> Result<Self> {
        let ports = EtcdPorts::reserve()?;
        let name = format!("learner-{}", ports.peer.number());
        let body = json!({ "peerURLs": [ports.peer_url()], "isLearner": true });
        let added = self.api("/v3/cluster/member/add", &body).await?;
        let members = added["members"].as_array().ok_or_else(|| Error::new(format!("etcd listed no members: {added}")))?;
        let known = members.iter().filter_map(|member| {
            // Only the new one has no name yet.
            let known = member["name"].as_str().filter(|name| !name.is_empty()).unwrap_or(&name);
            Some(format!("{known}={}", member["peerURLs"][0].as_str()?))
        });
        let initial_cluster = known.collect::<Vec<_>>().join(",");
        let learner = Self::launch(&self.options, ClusterMembership { name, initial_cluster, learner: true }, ports)?;
        learner.wait_ready().await.map(|()| learner)
    }

    /// Kills it if it runs, and starts it on the same ports, with what it had stored or as if new (revisions begin again at 1, users are
    /// gone); gives back when it is ready, which it does not become if the others of its cluster are dead. That it loses its data alone a
    /// cluster never forgives: for that, see [`EtcdCluster::restart`].
    pub async fn restart(&self, keep_data: bool) -> Result<()> {
        if !keep_data && self.place.initial_cluster.contains(',') {
            return Err(Error::new(format!("{} cannot come back to its cluster without its data", self.place.name)));
        }
        self.relaunch(keep_data)?;
        self.wait_ready().await?;
        if self.options.auth && !keep_data { self.enable_auth().await } else { Ok(()) }
    }
}
