//! Following a group's claims: a cheap look waits until something has changed, and then they are all read.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, Moment};
use shardwise_discovery::{ClaimTable, LogThrottle};
use tokio::time::{Instant, sleep_until};

use super::keys;
use crate::api::Listed;
use crate::error::{Failure, Result};
use crate::follower::{BlockingQuery, GroupRead};
use crate::keys::KvPair;
use crate::registrar::Registrar;

pub(crate) struct ClaimsQuery {
    registrar: Arc<Registrar>,
    /// The pause after a read is as long as the read: while thousands of slots move, each change would cause a read of all of them.
    rested: Instant,
    /// Keys that could not be read.
    damaged: LogThrottle<String>,
}

impl ClaimsQuery {
    pub(crate) fn new(registrar: Arc<Registrar>) -> Self {
        Self { registrar, rested: Instant::now(), damaged: LogThrottle::default() }
    }
}

impl BlockingQuery for ClaimsQuery {
    type Shown = ClaimTable;

    async fn wait(&self, group: &GroupName, index: u64, wait: Duration) -> Result<(u64, Moment)> {
        let listed = self.registrar.client.keys(&keys::prefix(group), Some((index, wait))).await?;
        Ok((listed.index, listed.started))
    }

    async fn read(&mut self, group: &GroupName) -> Result<GroupRead<ClaimTable>> {
        sleep_until(self.rested).await;
        let begun = Instant::now();
        let prefix = keys::prefix(group);
        let client = &self.registrar.client;
        let mut listed = client.keys(&prefix, None).await?;
        if listed.found.is_none() {
            client.may_see_keys(&prefix).await?;
            listed = client.keys(&prefix, None).await?;
        }
        let Listed { started, index, found } = listed;
        let (table, damaged) = match found {
            None => (ClaimTable::default(), Vec::new()),
            Some(answer) => {
                // A megabyte for 4,096 slots: other tasks need not wait for it.
                let registrar = Arc::clone(&self.registrar);
                let parsing = tokio::task::spawn_blocking(move || Ok(table(&prefix, &registrar.client.parsed::<Vec<KvPair>>(&answer)?)));
                parsing.await.unwrap_or(Err(Failure::ShuttingDown))?
            }
        };
        self.rested = Instant::now() + begun.elapsed();
        for (key, failure) in damaged {
            if let Some(seen) = self.damaged.another(key) {
                tracing::warn!(%failure, seen, "a claim cannot be read: it is reported without a holder until its holder locks it again");
            }
        }
        Ok(GroupRead { shown: Arc::new(table), proven: started, index })
    }
}

/// The claims, and the keys that are locked but cannot be read. Such a key counts as free in this table, but is still locked in Consul.
/// Its holder sees the claim as lost and locks the key again; no other member can.
fn table(prefix: &str, stored: &[KvPair]) -> (ClaimTable, Vec<(String, Failure)>) {
    let (mut table, mut damaged) = (ClaimTable::default(), Vec::new());
    for stored in stored {
        match keys::claim(prefix, stored) {
            Ok(claim) => table.0.extend(claim),
            Err(failure) => damaged.push((stored.key.clone(), failure)),
        }
    }
    (table, damaged)
}
