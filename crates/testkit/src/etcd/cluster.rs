//! Several members that form a cluster.

use std::time::Instant;

use futures::future::try_join_all;

use super::{ClusterMembership, Etcd, EtcdOptions, EtcdPorts};
use crate::error::{Error, Result};
use crate::process::{ATTEMPTS, LOOK_EVERY, PATIENCE, TAKEN};

/// Members of one cluster; killed when dropped.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Etcd>,
}

impl EtcdCluster {
    /// Members with these options, ready for reads and writes.
    pub async fn start(count: usize, options: EtcdOptions) -> Result<Self> {
        Ok(Self { members: start(&options, count).await? })
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
        self.members.iter().try_for_each(Etcd::kill)?;
        self.members.iter().try_for_each(|member| member.relaunch(keep_data))?;
        set_up(&self.members, !keep_data).await
    }
}

/// Starts members that form a cluster, and again on other ports where somebody else was quicker.
pub(super) async fn start(options: &EtcdOptions, count: usize) -> Result<Vec<Etcd>> {
    let mut attempt = 1;
    loop {
        let members = launch(options, count)?;
        match set_up(&members, true).await {
            Err(_) if attempt < ATTEMPTS && members.iter().any(|member| member.process.said(TAKEN)) => attempt += 1,
            ready => return ready.map(|()| members),
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

/// Waits until all are ready, and makes the users of a new cluster.
async fn set_up(members: &[Etcd], new: bool) -> Result<()> {
    try_join_all(members.iter().map(Etcd::ready)).await?;
    match members.first() {
        Some(member) if new && member.options.auth => member.enable_auth().await,
        _ => Ok(()),
    }
}
