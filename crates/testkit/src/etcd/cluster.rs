//! Several members that form a cluster.

use std::time::Instant;

use futures::future::try_join_all;

use super::{ClusterMembership, Etcd, EtcdOptions, EtcdPorts};
use crate::error::{Error, Result};
use crate::process::{LOOK_EVERY, PATIENCE};
use crate::server::{Startable, started};

/// Members of one cluster; killed when dropped.
#[derive(Debug)]
pub struct EtcdCluster {
    pub(super) members: Vec<Etcd>,
}

impl Startable for EtcdCluster {
    fn lacks_port(&self) -> bool {
        self.members.iter().any(Startable::lacks_port)
    }

    async fn ready(&self) -> Result<()> {
        set_up(&self.members, true).await
    }
}

impl EtcdCluster {
    /// Members with these options, ready for reads and writes.
    pub async fn start(count: usize, options: EtcdOptions) -> Result<Self> {
        started(async || Ok(Self { members: launch(&options, count)? })).await
    }

    /// All members, dead or alive.
    pub fn members(&self) -> &[Etcd] {
        &self.members
    }

    /// Where clients connect, for each member.
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(Etcd::address).collect()
    }

    /// Waits until one member leads, and gives back its place in [`EtcdCluster::members`].
    pub async fn leader(&self) -> Result<usize> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for (index, member) in self.members.iter().enumerate() {
                if member.is_leader().await {
                    return Ok(index);
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(Error::new(format!("no etcd member led within {} s", PATIENCE.as_secs())))
    }

    /// Kills all members and starts them again, with what they had stored or as if new; gives back when they are ready.
    pub async fn restart(&self, keep_data: bool) -> Result<()> {
        self.members.iter().try_for_each(|member| member.kill())?;
        self.members.iter().try_for_each(|member| member.relaunch(keep_data))?;
        set_up(&self.members, !keep_data).await
    }
}

fn launch(options: &EtcdOptions, count: usize) -> Result<Vec<Etcd>> {
    let ports = (0..count).map(|_| EtcdPorts::reserve()).collect::<Result<Vec<_>>>()?;
    let name = |index: usize| format!("etcd-{}", index + 1);
    let all: Vec<_> = ports.iter().enumerate().map(|(index, ports)| format!("{}={}", name(index), ports.peer_url())).collect();
    let place = |index| ClusterMembership { name: name(index), initial_cluster: all.join(","), learner: false };
    ports.into_iter().enumerate().map(|(index, ports)| Etcd::launch(options, place(index), ports)).collect()
}

/// Waits until all are ready, and makes the users of a new cluster.
async fn set_up(members: &[Etcd], new: bool) -> Result<()> {
    try_join_all(members.iter().map(Startable::ready)).await?;
    match members.first() {
        Some(member) if new && member.options.auth => member.enable_auth().await,
        _ => Ok(()),
    }
}
