//! What the worker offers to do under names.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use shardwise::Run;

use super::Leases;

/// What is offered, each with its run: dropping it withdraws the offer.
pub(crate) type Offers = BTreeMap<OfferedWork, Run>;

/// Work that the worker can do under a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OfferedWork {
    Singleton(String),
    /// A set of daemons.
    Daemons(String),
    Timer {
        name: String,
        every: Duration,
        phase: Duration,
    },
}

impl Leases {
    /// What is offered under a lease that is not live any more.
    pub(super) fn offers_of_ended_lease(&self) -> Offers {
        self.update(|state, _| {
            let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
            if Some(offers.0) == state.live() { Offers::new() } else { std::mem::take(&mut offers.1) }
        })
    }
}
