//! The names that this worker offers to serve: singletons, daemons, timers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use shardwise_core::ClaimName;
use tokio::sync::{Semaphore, watch};

use crate::error::locked;
use crate::membership::OwnershipContext;

/// The offered names, each with the number of its offers. The driver claims them.
pub(super) struct OfferedNames {
    offers: Mutex<BTreeMap<ClaimName, OfferCount>>,
    /// The offered names; changed under the lock of `offers`, so that the driver never sees an older set after a newer one.
    wanted: watch::Sender<BTreeSet<ClaimName>>,
}

struct OfferCount {
    times: usize,
    /// Of several runs in one worker that offer the same name, one works at a time.
    turn: Arc<Semaphore>,
}

/// An offer; dropping it withdraws it.
pub(super) struct Offer {
    names: Arc<OfferedNames>,
    name: ClaimName,
    pub(super) turn: Arc<Semaphore>,
}

impl OfferedNames {
    pub(super) fn of(context: &OwnershipContext) -> Arc<Self> {
        context.extensions.get_or_make(|| Self { offers: Mutex::default(), wanted: context.wanted_names.clone() })
    }

    pub(super) fn offer(self: &Arc<Self>, name: ClaimName) -> Offer {
        let mut offers = locked(&self.offers);
        let count = offers.entry(name.clone()).or_insert_with(|| OfferCount { times: 0, turn: Arc::new(Semaphore::new(1)) });
        count.times += 1;
        let turn = Arc::clone(&count.turn);
        self.wanted.send_modify(|wanted| wanted.extend([name.clone()]));
        Offer { names: Arc::clone(self), name, turn }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let mut offers = locked(&self.names.offers);
        let Some(count) = offers.get_mut(&self.name) else { return };
        count.times -= 1;
        if count.times == 0 {
            offers.remove(&self.name);
            self.names.wanted.send_if_modified(|wanted| wanted.remove(&self.name));
        }
    }
}
