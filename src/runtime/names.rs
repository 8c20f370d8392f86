//! The names that this worker offers to serve: singletons, daemons, timers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardwise_core::ClaimName;
use tokio::sync::{Semaphore, watch};

/// What is offered, each name as often as somebody offers it. The driver follows it. Clones share it.
#[derive(Clone)]
pub(crate) struct OfferedNames(Arc<watch::Sender<BTreeMap<ClaimName, OfferCount>>>);

struct OfferCount {
    times: usize,
    turn: Arc<Semaphore>,
}

impl Default for OfferedNames {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

/// An offer; dropping it takes it back.
pub(crate) struct Offer {
    names: Arc<watch::Sender<BTreeMap<ClaimName, OfferCount>>>,
    name: ClaimName,
    /// Of those of one worker that offer the same name, one at a time works under it.
    turn: Arc<Semaphore>,
}

impl OfferedNames {
    pub(crate) fn offer(&self, name: ClaimName) -> Offer {
        let mut turn = Arc::new(Semaphore::new(1));
        self.0.send_modify(|names| {
            let offered = names.entry(name.clone()).or_insert_with(|| OfferCount { times: 0, turn: Arc::clone(&turn) });
            offered.times += 1;
            turn = Arc::clone(&offered.turn);
        });
        Offer { names: Arc::clone(&self.0), name, turn }
    }

    pub(crate) fn follow(&self) -> OfferedNamesWatch {
        let mut offered = self.0.subscribe();
        offered.mark_changed();
        OfferedNamesWatch(offered)
    }
}

impl Offer {
    pub(crate) fn turn(&self) -> Arc<Semaphore> {
        Arc::clone(&self.turn)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.names.send_modify(|names| {
            if let Some(offered) = names.get_mut(&self.name) {
                offered.times -= 1;
                if offered.times == 0 {
                    names.remove(&self.name);
                }
            }
        });
    }
}

/// What is offered, as it changes.
pub(crate) struct OfferedNamesWatch(watch::Receiver<BTreeMap<ClaimName, OfferCount>>);

impl OfferedNamesWatch {
    /// What is offered now, at first and after each change. Never again once nobody can change it.
    pub(crate) async fn next(&mut self) -> BTreeSet<ClaimName> {
        match self.0.changed().await {
            Ok(()) => self.0.borrow_and_update().keys().cloned().collect(),
            Err(_) => std::future::pending().await,
        }
    }
}
