//! Follows a group's claims for an observer.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use shardwise_core::{Holders, Policy, Timing};
use shardwise_discovery::{Clock, Discovery};
use tokio::task::AbortHandle;

use crate::error::Result;
use crate::membership::{HolderTable, PROOFS_PER_TTL, follow_claims};

/// The claims of a group under exclusive ownership, followed until dropped.
pub(super) struct ObservedClaims {
    table: Arc<HolderTable>,
    following: AbortHandle,
}

impl ObservedClaims {
    pub(super) fn follow(policy: &Policy, timing: Timing, backend: &Arc<dyn Discovery>, clock: Clock) -> Self {
        let mut watch = follow_claims(backend, &policy.group, timing.ttl / PROOFS_PER_TTL);
        let table = Arc::<HolderTable>::default();
        let seen = Arc::clone(&table);
        let following = tokio::spawn(async move {
            while let Some(event) = watch.next().await {
                // Logged once until the watch succeeds again.
                if let Err(error) = &event
                    && !seen.is_failing()
                {
                    tracing::warn!(error = %error.context(), "the claims of the group cannot be seen just now");
                }
                seen.update(clock.now(), &event);
            }
        });
        Self { table, following: following.abort_handle() }
    }

    /// Waits until they were read once, or failed to be, for at most `limit`.
    pub(super) async fn first(&self, limit: Duration) {
        // A question for the holders gets the reason.
        let _ = tokio::time::timeout(limit, self.table.first()).await;
    }

    pub(super) fn seen(&self) -> u64 {
        self.table.changes()
    }

    /// Reads the holders; an error while they cannot be read.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Holders) -> T) -> Result<T> {
        self.table.read(read)
    }
}

impl Drop for ObservedClaims {
    fn drop(&mut self) {
        self.following.abort();
    }
}
