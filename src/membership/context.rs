//! The context of work under ownership: the snapshot, the clock, the work in flight.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use shardwise_core::{ClaimName, Member, Moment, Ownership, Policy};
use shardwise_discovery::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::advertised::AdvertisedAddresses;
use super::extensions::Extensions;
use super::guards::Guards;
use super::holder_table::HolderTable;
use super::life::Life;
use super::proof::{Channel, Recipient};
use crate::settings::{MessagesSettings, PeersSettings, PolicySettings};

/// The part of a membership that work, messages and requests may hold: it keeps no stream open and no service alive.
pub(crate) struct OwnershipContext {
    pub(crate) policy: Arc<Policy>,
    /// How this worker listens for messages; read by the modules above.
    pub(crate) messages: MessagesSettings,
    /// Which members it calls and answers; read by the modules above.
    pub(crate) peers: PeersSettings,
    pub(crate) clock: Clock,
    pub(crate) life: Life,
    /// The user's work under ownership; a leaving service waits for it.
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
    pub(crate) extensions: Extensions,
    current: ArcSwap<Ownership>,
}

impl OwnershipContext {
    pub(super) fn new(settings: &PolicySettings, policy: Arc<Policy>, member: &Member, clock: Clock, ownership: Arc<Ownership>) -> Self {
        Self {
            policy,
            messages: settings.messages.clone(),
            peers: settings.peers.clone(),
            clock,
            life: Life::of(member),
            in_flight: TaskTracker::new(),
            guards: Guards::default(),
            gone: CancellationToken::new(),
            refused: AtomicU64::new(0),
            wanted_names: watch::Sender::default(),
            holders: HolderTable::default(),
            advertised: Arc::new(AdvertisedAddresses::new(member)),
            extensions: Extensions::default(),
            current: ArcSwap::new(ownership),
        }
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

    /// This worker as the recipient of a call, for the proofs on that channel.
    pub(crate) fn recipient(&self, channel: Channel) -> Recipient<'_> {
        self.life.recipient(channel, &self.policy.group)
    }
}
