//! What a service, its driver and its runners share: the snapshot that readers see, and the news of its changes.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use shardwise_core::{InstanceId, Member, Moment, Ownership, Policy, Rebalance, Serves, ServiceState, Timing};
use shardwise_discovery::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::absence::Absences;
use crate::life::Life;
use crate::listeners::ListenerHub;
use crate::messages::Post;
use crate::requests::RequestHandlers;
use crate::runtime::{Guards, OfferedNames};
use crate::service::RankCache;
use crate::settings::{MessagesSettings, PeersSettings};

/// What work under ownership stands on. Whoever holds it keeps no stream open and no service alive.
pub(crate) struct OwnershipContext {
    pub(crate) policy: Arc<Policy>,
    pub(crate) clock: Clock,
    /// The user's work under ownership; a leaving service waits for it.
    pub(crate) in_flight: TaskTracker,
    /// The same, by slot, name or key.
    pub(crate) guards: Guards,
    /// Cancelled when a test's fleet kills the worker: its runners end at once.
    pub(crate) gone: CancellationToken,
    /// How often a fence or a guard was refused.
    pub(crate) refused: AtomicU64,
    current: ArcSwap<Ownership>,
}

pub(crate) struct Shared {
    pub(crate) ownership_context: Arc<OwnershipContext>,
    pub(crate) timing: Timing,
    pub(crate) instance_id: InstanceId,
    pub(crate) serves: Option<Serves>,
    pub(crate) life: Life,
    pub(crate) names: OfferedNames,
    /// Messages to whoever holds a name.
    pub(crate) post: Arc<Post>,
    /// Requests to this worker.
    pub(crate) request_handlers: RequestHandlers,
    /// When the view was last proven current; it stays when the worker is fenced.
    pub(crate) proven: Mutex<Option<Moment>>,
    /// When the latest renewal was answered that moved the deadline.
    renewed: Mutex<Option<Moment>>,
    /// Told when this worker has changed a note that its runners follow.
    pub(crate) noted: watch::Sender<()>,
    /// How often a slot was given away though work was still running in it.
    pub(crate) overlaps: AtomicU64,
    pub(crate) rebalances: ListenerHub<Rebalance>,
    pub(crate) snapshots: ListenerHub<Arc<Ownership>>,
    /// What the backend said last when it failed, since the wish to join: a join that takes too long ends with it.
    pub(crate) failure: ArcSwapOption<String>,
    /// Why the group cannot be seen until somebody changes something, where the backend said so last.
    pub(crate) blinded: watch::Sender<Option<Arc<str>>>,
    /// The backend has answered since the wish to join, if only with a refusal.
    pub(crate) answered: AtomicBool,
    /// Who is away, and since when.
    pub(crate) absences: Absences,
    /// It was said that a member goes without having said so.
    warned: AtomicBool,
    /// Placements asked for so far.
    pub(crate) rebuilds: AtomicU64,
    /// Who comes after each slot's owner.
    pub(crate) ranking: RankCache,
    changes: watch::Sender<Arc<Ownership>>,
}

impl Shared {
    pub(crate) fn new(
        policy: Arc<Policy>,
        timing: Timing,
        member: &Member,
        (messages, peers): (MessagesSettings, PeersSettings),
        clock: Clock,
        ownership: Arc<Ownership>,
    ) -> Self {
        let context = OwnershipContext {
            policy,
            clock,
            in_flight: TaskTracker::new(),
            guards: Guards::default(),
            gone: CancellationToken::new(),
            refused: AtomicU64::new(0),
            current: ArcSwap::new(Arc::clone(&ownership)),
        };
        let life = Life::of(member);
        let post = Post::new(context.policy.group.clone(), member, life.clone(), messages, peers.networks.clone(), &context.gone);
        let request_handlers = RequestHandlers::new(&context.policy.group, member, life.clone(), peers, &context.gone);
        Self {
            ownership_context: Arc::new(context),
            timing,
            instance_id: member.instance_id.clone(),
            serves: member.serves.clone(),
            life,
            post: Arc::new(post),
            request_handlers,
            proven: Mutex::default(),
            renewed: Mutex::default(),
            names: OfferedNames::default(),
            noted: watch::Sender::new(()),
            overlaps: AtomicU64::new(0),
            rebalances: ListenerHub::default(),
            snapshots: ListenerHub::default(),
            failure: ArcSwapOption::empty(),
            blinded: watch::Sender::new(None),
            answered: AtomicBool::new(false),
            absences: Absences::default(),
            warned: AtomicBool::new(false),
            rebuilds: AtomicU64::new(0),
            ranking: RankCache::default(),
            changes: watch::Sender::new(ownership),
        }
    }

    /// Makes `ownership` what readers see from here on, then tells those who wait for changes.
    pub(crate) fn publish(&self, ownership: Arc<Ownership>) {
        if !self.policy.rejoin_grace.is_zero() && !Arc::ptr_eq(ownership.view(), self.ownership().view()) {
            self.absences.saw(ownership.view(), self.clock.now());
        }
        if ownership.deadline() > self.ownership().deadline() {
            *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.now());
        }
        let claims_ended = ownership.claims_end().is_none();
        self.current.store(Arc::clone(&ownership));
        if claims_ended {
            self.guards.revoke_all();
        }
        self.snapshots.push(&ownership);
        self.changes.send_replace(ownership);
    }

    pub(crate) fn rebalanced(&self, rebalance: &Rebalance) {
        self.guards.tell(rebalance);
        self.rebalances.push(rebalance);
    }

    /// Says once that a member goes without having said so, if it is one.
    pub(crate) fn warn_if_member(&self, why: &str) {
        let state = self.ownership().state();
        let goes = matches!(state, ServiceState::Created | ServiceState::Draining | ServiceState::Left | ServiceState::Unsharded);
        if !goes && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(policy = %self.policy.name, instance = %self.instance_id, %state, "{why}");
        }
    }

    /// So many pieces of work went on in slots that were given away.
    pub(crate) fn count_overlaps(&self, running: usize) {
        if running > 0 {
            self.overlaps.fetch_add(running as u64, Ordering::Relaxed);
            crate::metrics::overlapped(&self.policy, running);
            tracing::warn!(policy = %self.policy.name, running, "slots were given away while work in them still ran (on_drain_timeout = \"release\")");
        }
    }

    /// How long ago the view was last proven current; `None` before the first one.
    pub(crate) fn view_age(&self) -> Option<Duration> {
        let proven = *self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        proven.map(|proven| self.clock.now().since(proven))
    }

    /// How long ago the latest renewal was answered; `None` before the first one.
    pub(crate) fn renewed_ago(&self) -> Option<Duration> {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.map(|renewed| self.clock.now().since(renewed))
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.changes.subscribe()
    }
}

impl Deref for Shared {
    type Target = OwnershipContext;

    fn deref(&self) -> &OwnershipContext {
        &self.ownership_context
    }
}

impl OwnershipContext {
    pub(crate) fn ownership(&self) -> Arc<Ownership> {
        self.current.load_full()
    }

    /// Reads the snapshot without counting a reference: for the hot path.
    #[inline]
    pub(crate) fn read<T>(&self, f: impl FnOnce(&Ownership, Moment) -> T) -> T {
        f(&self.current.load(), self.clock.now())
    }
}
