//! What a service, its driver and its runners share: the snapshot that readers see, and the news of its changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use arc_swap::{ArcSwap, ArcSwapOption};
use shardwise_core::{InstanceId, Moment, Ownership, Policy, Rebalance, Timing};
use shardwise_discovery::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::listeners::Hub;
use crate::service::Ranked;

pub(crate) struct Shared {
    pub(crate) policy: Arc<Policy>,
    pub(crate) timing: Timing,
    pub(crate) instance_id: InstanceId,
    pub(crate) clock: Clock,
    /// The user's work under ownership; a leaving service waits for it.
    pub(crate) in_flight: TaskTracker,
    /// Cancelled when a test's fleet kills the worker: its runners end at once.
    pub(crate) gone: CancellationToken,
    pub(crate) rebalances: Hub<Rebalance>,
    pub(crate) snapshots: Hub<Arc<Ownership>>,
    /// What the backend said last when it failed, since the wish to join: a join that takes too long ends with it.
    pub(crate) failure: ArcSwapOption<String>,
    /// Why the group cannot be seen until somebody changes something, where the backend said so last.
    pub(crate) blinded: watch::Sender<Option<Arc<str>>>,
    /// The backend has answered since the wish to join, if only with a refusal.
    pub(crate) answered: AtomicBool,
    /// Placements asked for so far.
    pub(crate) rebuilds: AtomicU64,
    /// Who comes after each slot's owner, once somebody has asked.
    pub(crate) ranked: ArcSwapOption<Ranked>,
    current: ArcSwap<Ownership>,
    changes: watch::Sender<Arc<Ownership>>,
}

impl Shared {
    pub(crate) fn new(policy: Arc<Policy>, timing: Timing, instance_id: InstanceId, clock: Clock, ownership: Arc<Ownership>) -> Self {
        Self {
            policy,
            timing,
            instance_id,
            clock,
            in_flight: TaskTracker::new(),
            gone: CancellationToken::new(),
            rebalances: Hub::default(),
            snapshots: Hub::default(),
            failure: ArcSwapOption::empty(),
            blinded: watch::Sender::new(None),
            answered: AtomicBool::new(false),
            rebuilds: AtomicU64::new(0),
            ranked: ArcSwapOption::empty(),
            current: ArcSwap::new(Arc::clone(&ownership)),
            changes: watch::Sender::new(ownership),
        }
    }

    /// Makes `ownership` what readers see from here on, then tells those who wait for changes.
    pub(crate) fn publish(&self, ownership: Arc<Ownership>) {
        self.current.store(Arc::clone(&ownership));
        self.snapshots.push(&ownership);
        self.changes.send_replace(ownership);
    }

    pub(crate) fn rebalanced(&self, rebalance: &Rebalance) {
        self.rebalances.push(rebalance);
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.changes.subscribe()
    }

    pub(crate) fn ownership(&self) -> Arc<Ownership> {
        self.current.load_full()
    }

    /// Reads the snapshot without counting a reference: for the hot path.
    #[inline]
    pub(crate) fn read<T>(&self, f: impl FnOnce(&Ownership, Moment) -> T) -> T {
        f(&self.current.load(), self.clock.now())
    }
}
