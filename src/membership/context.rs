//! The context of work under ownership: the snapshot, the clock, the work in flight.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use arc_swap::ArcSwap;
#[cfg(feature = "requests")]
use shardwise_core::Holder;
use shardwise_core::{ClaimName, Incarnation, InstanceId, Member, Moment, Ownership, Policy};
use shardwise_discovery::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::advertised::AdvertisedAddresses;
use super::guards::Guards;
use super::holder_table::HolderTable;
#[cfg(feature = "requests")]
use super::incoming::IncomingConnections;
use super::state::Membership;
use super::worker::WorkerWatch;
use crate::error::locked;
use crate::settings::{PeersSettings, PolicySettings, RequestSettings};
use crate::telemetry::metrics::suspected;

/// The part of a membership that work, messages and requests may hold: it keeps no stream open and no service alive.
pub(crate) struct OwnershipContext {
    pub(crate) policy: Arc<Policy>,
    /// Which members it calls and answers; read by the modules above.
    pub(crate) peers: PeersSettings,
    /// How its requests are spread and limited; read by the modules above.
    pub(crate) requests: RequestSettings,
    pub(crate) clock: Clock,
    pub(crate) life: Life,
    /// The user's work under ownership, and requests that are being handled; a leaving service waits for them. It is closed from then on
    /// until the service joins again.
    pub(crate) in_flight: TaskTracker,
    /// The same work, by slot, name or key.
    pub(crate) guards: Guards,
    /// Cancelled when a test's fleet kills the worker: its runners end at once.
    pub(crate) gone: CancellationToken,
    /// How often a fence or a guard was refused.
    pub(crate) refused: AtomicU64,
    /// The names that this worker wants to hold; the driver claims them.
    pub(crate) wanted_names: watch::Sender<BTreeSet<ClaimName>>,
    /// The claims of the group while this worker is a member; under eventual ownership there are none.
    pub(crate) holders: HolderTable,
    pub(crate) advertised: Arc<AdvertisedAddresses>,
    /// The worker's health, which the driver writes into the record.
    pub(crate) worker: WorkerWatch,
    pub(crate) extensions: Extensions,
    /// The handlers of requests.
    pub(crate) handlers: LazyExtension,
    #[cfg(feature = "requests")]
    pub(crate) routing: LazyExtension,
    #[cfg(feature = "requests")]
    pub(crate) incoming: IncomingConnections,
    /// The whole membership, while there is one.
    membership: OnceLock<Weak<Membership>>,
    current: ArcSwap<Ownership>,
}

impl OwnershipContext {
    pub(super) fn new(settings: &PolicySettings, policy: Arc<Policy>, member: &Member, clock: Clock, ownership: Arc<Ownership>) -> Self {
        Self {
            policy,
            peers: settings.peers.clone(),
            requests: settings.requests,
            clock,
            life: Life::of(member),
            in_flight: TaskTracker::new(),
            guards: Guards::default(),
            gone: CancellationToken::new(),
            refused: AtomicU64::new(0),
            wanted_names: watch::Sender::default(),
            holders: HolderTable::default(),
            advertised: Arc::new(AdvertisedAddresses::new(member)),
            worker: WorkerWatch::default(),
            extensions: Extensions::default(),
            handlers: LazyExtension::default(),
            #[cfg(feature = "requests")]
            routing: LazyExtension::default(),
            #[cfg(feature = "requests")]
            incoming: IncomingConnections::default(),
            membership: OnceLock::new(),
            current: ArcSwap::new(ownership),
        }
    }

    /// The whole membership; `None` once its service has ended.
    pub(crate) fn membership(&self) -> Option<Arc<Membership>> {
        self.membership.get()?.upgrade()
    }

    pub(super) fn belongs_to(&self, membership: &Arc<Membership>) {
        // It is created once.
        let _ = self.membership.set(Arc::downgrade(membership));
    }

    pub(super) fn store(&self, ownership: Arc<Ownership>) {
        self.current.store(ownership);
    }

    pub(crate) fn ownership(&self) -> Arc<Ownership> {
        self.current.load_full()
    }

    /// Reads the snapshot without a reference count: for the hot path.
    #[inline]
    pub(crate) fn read<T>(&self, f: impl FnOnce(&Ownership, Moment) -> T) -> T {
        f(&self.current.load(), self.clock.now())
    }

    /// The worker is suspected not to work: it is checked at once, if it is watched.
    pub(crate) fn suspect(&self) {
        suspected(&self.policy);
        self.worker.suspected.notify_one();
    }
}

/// This worker's name and incarnation, which changes each time it joins again after it has left. Clones share it.
#[derive(Clone)]
pub(crate) struct Life {
    instance_id: InstanceId,
    incarnation: Arc<AtomicU64>,
}

impl Life {
    pub(crate) fn of(member: &Member) -> Self {
        Self { instance_id: member.instance_id.clone(), incarnation: Arc::new(AtomicU64::new(member.incarnation.get())) }
    }

    pub(crate) fn begin(&self, incarnation: Incarnation) {
        self.incarnation.store(incarnation.get(), Ordering::SeqCst);
    }

    #[cfg(feature = "requests")]
    pub(crate) fn holder(&self) -> Holder {
        Holder { instance_id: self.instance_id.clone(), incarnation: self.incarnation() }
    }

    pub(crate) const fn instance_id(&self) -> &InstanceId {
        &self.instance_id
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation::new(self.incarnation.load(Ordering::SeqCst))
    }
}

/// At most one value of each type, such as the names on offer: what later modules keep for each member.
#[derive(Default)]
pub(crate) struct Extensions(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// The member's value of this type, created by `make` if there is none. `make` must not ask for an extension itself.
    pub(crate) fn get_or_make<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut values = locked(&self.0);
        if let Some(known) = values.iter().find_map(|value| Arc::clone(value).downcast().ok()) {
            return known;
        }
        let made = Arc::new(make());
        values.push(Arc::<T>::clone(&made));
        made
    }
}

/// The one value of a type that a module above keeps here, read without a lock: for the hot path.
#[derive(Default)]
pub(crate) struct LazyExtension(OnceLock<Box<dyn Any + Send + Sync>>);

impl LazyExtension {
    /// The value, created by `make` if there is none. Only one type uses an extension; another one would get a value that lives for ever.
    pub(crate) fn get_or_make<T: Send + Sync + 'static>(&self, make: impl Fn() -> T) -> &T {
        let value = self.0.get_or_init(|| Box::new(make()));
        value.downcast_ref().unwrap_or_else(|| Box::leak(Box::new(make())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value_which_is_made_once() {
        let extensions = Extensions::default();
        let (first, other) = (extensions.get_or_make(|| 1_u32), extensions.get_or_make(|| "text"));
        assert_eq!((*first, *other), (1, "text"));
        assert!(Arc::ptr_eq(&first, &extensions.get_or_make(|| 2_u32)));
    }
}
