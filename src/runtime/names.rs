//! The names that this worker offers to serve: singletons, daemons, timers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardwise_core::ClaimName;
use tokio::sync::watch;

/// What is offered, each name as often as somebody offers it. The driver follows it.
pub(crate) struct Names(Arc<watch::Sender<BTreeMap<ClaimName, usize>>>);

impl Default for Names {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

/// An offer; dropping it takes it back.
pub(crate) struct Offer {
    names: Arc<watch::Sender<BTreeMap<ClaimName, usize>>>,
    name: ClaimName,
}

impl Names {
    pub(crate) fn offer(&self, name: ClaimName) -> Offer {
        self.0.send_modify(|names| *names.entry(name.clone()).or_default() += 1);
        Offer { names: Arc::clone(&self.0), name }
    }

    pub(crate) fn follow(&self) -> Followed {
        let mut offered = self.0.subscribe();
        offered.mark_changed();
        Followed(offered)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.names.send_modify(|names| {
            if let Some(count) = names.get_mut(&self.name) {
                *count -= 1;
                if *count == 0 {
                    names.remove(&self.name);
                }
            }
        });
    }
}

/// What is offered, as it changes.
pub(crate) struct Followed(watch::Receiver<BTreeMap<ClaimName, usize>>);

impl Followed {
    /// What is offered now, at first and after each change. Never again once nobody can change it.
    pub(crate) async fn next(&mut self) -> BTreeSet<ClaimName> {
        match self.0.changed().await {
            Ok(()) => self.0.borrow_and_update().keys().cloned().collect(),
            Err(_) => std::future::pending().await,
        }
    }
}
