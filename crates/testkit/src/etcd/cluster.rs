//! Several members that form a cluster.

use super::{ClusterMembership, Etcd, EtcdOptions, EtcdPorts};
use crate::error::Result;
use crate::server::{self, Startable as _, started};

/// Members of one cluster; killed when dropped.
#[derive(Debug)]
pub struct EtcdCluster {
    pub(super) members: Vec<Etcd>,
}

impl EtcdCluster {
    /// Members with these options, ready for reads and writes.
    pub async fn start(count: usize, options: EtcdOptions) -> Result<Self> {
        let cluster = Self { members: started(async || launch(&options, count)).await? };
        cluster.set_up().await.map(|()| cluster)
    }

    /// All members, dead or alive.
    pub fn members(&self) -> &[Etcd] {
        &self.members
    }

    /// Where clients connect, for each member.
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(|member| member.address()).collect()
    }

    /// Waits until one member leads, and gives back its place in [`EtcdCluster::members`]. One that is dead or paused does not.
    pub async fn leader(&self) -> Result<usize> {
        server::leader(&self.members).await
    }

    /// Kills all members and starts them again, with what they had stored or as if new; gives back when they are ready.
    pub async fn restart(&self, keep_data: bool) -> Result<()> {
        server::relaunch(&self.members, keep_data)?;
        self.members.ready().await?;
        if keep_data { Ok(()) } else { self.set_up().await }
    }

    /// Makes the users of a new cluster.
    async fn set_up(&self) -> Result<()> {
        match self.members.first() {
            Some(member) if member.options.auth => member.enable_auth().await,
            _ => Ok(()),
        }
    }
}

fn launch(options: &EtcdOptions, count: usize) -> Result<Vec<Etcd>> {
    let ports = (0..count).map(|_| EtcdPorts::reserve()).collect::<Result<Vec<_>>>()?;
    let name = |index: usize| format!("etcd-{}", index + 1);
    let all: Vec<_> = ports.iter().enumerate().map(|(index, ports)| format!("{}={}", name(index), ports.peer_url())).collect();
    let place = |index| ClusterMembership { name: name(index), initial_cluster: all.join(","), learner: false };
    ports.into_iter().enumerate().map(|(index, ports)| Etcd::launch(options, place(index), ports)).collect()
}
