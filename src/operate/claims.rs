//! Follows a group's claims for an observer.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use shardwise_core::{Holders, Policy, Timing};
use shardwise_discovery::{Clock, Discovery};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::error::Result;
use crate::membership::{HolderTable, PROOFS_PER_TTL, follow_claims, known};

/// The claims of a group under exclusive ownership, followed until dropped.
pub(super) struct ObservedClaims {
    holders: watch::Receiver<Holders>,
    /// Why they cannot be read at the moment.
    failure: watch::Receiver<Option<shardwise_discovery::Error>>,
    following: AbortHandle,
}

impl ObservedClaims {
    pub(super) fn follow(policy: &Policy, timing: Timing, backend: &Arc<dyn Discovery>, clock: Clock) -> Self {
        let mut watch = follow_claims(backend, &policy.group, timing.ttl / PROOFS_PER_TTL);
        let (table, (failed, failure)) = (HolderTable::default(), watch::channel(None));
        let holders = table.follow();
        let following = tokio::spawn(async move {
            while let Some(event) = watch.next().await {
                match event {
                    Ok(event) => {
                        table.update(clock.now(), &event);
                        failed.send_if_modified(|failure| failure.take().is_some());
                    }
                    Err(error) => {
                        // Logged once until the watch succeeds again.
                        if failed.borrow().is_none() {
                            tracing::warn!(%error, "the claims of the group cannot be seen just now");
                        }
                        failed.send_replace(Some(error));
                    }
                }
            }
        });
        Self { holders, failure, following: following.abort_handle() }
    }

    /// Waits until they were read once, or failed to be, for at most `limit`.
    pub(super) async fn first(&self, limit: Duration) {
        let (mut holders, mut failure) = (self.holders.clone(), self.failure.clone());
        let seen = async {
            tokio::select! {
                _ = holders.wait_for(Holders::is_known) => {}
                _ = failure.wait_for(Option::is_some) => {}
            }
        };
        // Whoever asks for the holders is given the reason.
        let _ = tokio::time::timeout(limit, seen).await;
    }

    pub(super) fn seen(&self) -> u64 {
        self.holders.borrow().changes()
    }

    /// Reads the holders; an error while they cannot be read, because holders that have changed meanwhile would be shown as they were.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Holders) -> T) -> Result<T> {
        if let Some(failure) = self.failure.borrow().clone() {
            return Err(failure.into());
        }
        Ok(read(known(&self.holders.borrow())?))
    }
}

impl Drop for ObservedClaims {
    fn drop(&mut self) {
        self.following.abort();
    }
}
