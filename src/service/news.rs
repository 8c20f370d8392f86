//! Subscriptions to changes of a service: snapshots, rebalances, members.

use std::sync::Arc;

use shardwise_core::{Ownership, Rebalance};
use tokio::sync::watch;

use super::ShardingService;
use crate::membership::{Rebalances, Snapshots, WatchMembers};

impl ShardingService {
    /// The latest snapshot, now and whenever it changes: slots, state, view or deadline.
    pub fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.membership().changes()
    }

    /// The group's members, now and whenever they change.
    pub fn watch_members(&self) -> WatchMembers {
        WatchMembers::new(self.membership().changes())
    }

    /// The rebalances from now on, as a stream that ends with the service. A slow reader gets them merged.
    pub fn rebalances(&self) -> Rebalances {
        self.membership().rebalances.subscribe()
    }

    /// Every snapshot from now on, in order, including those that [`ShardingService::ownership_changes`] would skip for a slow reader.
    pub fn snapshots(&self) -> Snapshots {
        self.membership().snapshots.subscribe()
    }

    /// Calls `callback` for each rebalance from now on: one call at a time, outside the driver, merged when it is slow. A panic in it is
    /// logged and has no other effect.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn on_rebalance(&self, callback: impl Fn(&Rebalance) + Send + Sync + 'static) {
        let callback = Arc::new(callback);
        let mut rebalances = self.rebalances();
        tokio::spawn(async move {
            while let Some(rebalance) = rebalances.recv().await {
                let callback = Arc::clone(&callback);
                // It may block, so it runs on a blocking thread; awaiting it keeps the calls in order.
                if tokio::task::spawn_blocking(move || callback(&rebalance)).await.is_err() {
                    tracing::error!("a callback of on_rebalance panicked; it will be called again at the next rebalance");
                }
            }
        });
    }
}
