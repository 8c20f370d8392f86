//! For your own tests: services with a chosen share, and a whole fleet in one process on paused time (feature `testing`).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use shardwise::testing::TestFleet;
//!
//! let mut fleet = TestFleet::start(3).await;
//! fleet.kill(0);
//! fleet.settled().await; // on paused time a TTL takes no time at all
//! assert_eq!(fleet.owners("tenant-7").len(), 1);
//! # }
//! ```

// A test fleet reports by panicking, as tests do.
#![expect(clippy::panic, clippy::expect_used, reason = "this module is for tests")]

#[cfg(feature = "requests")]
mod transport;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{
    GroupName, InstanceId, Member, Ownership, Policy, PolicyName, Serves, ServiceState, ShardKey, SlotOwners, SlotSet, Timing, View,
};
use shardwise_discovery::{Clock, Discovery, MemoryBackend, random_incarnation};

use crate::operate::Group;
use crate::service::ShardingService;
use crate::settings::PolicySettings;
#[cfg(feature = "requests")]
pub use transport::LocalTransport;
pub use worker::TestWorker;

/// How long a fleet may take to settle, in the runtime's time.
const SETTLE_LIMIT: Duration = Duration::from_mins(2);
const POLL_EVERY: Duration = Duration::from_millis(10);

fn policy() -> Policy {
    let (name, group) = (PolicyName::new("test"), GroupName::new("test-group"));
    Policy::new(name.expect("a valid name"), group.expect("a valid name"))
}

impl ShardingService {
    /// A service that is active for ever and holds the share of `me` among `members` under the default placement; nothing is registered.
    ///
    /// # Panics
    ///
    /// If a name is not a valid instance id, or `me` is not among `members`.
    pub fn frozen<'a>(members: impl IntoIterator<Item = &'a str>, me: &str) -> Self {
        let member = |id: &str| Member::named(InstanceId::new(id).unwrap_or_else(|error| panic!("{id:?}: {error}")));
        let view = View::new(0, members.into_iter().map(member).collect());
        let myself = view.member(&member(me).instance_id).unwrap_or_else(|| panic!("{me:?} is not among the members")).clone();
        let slots = SlotOwners::of_view(&view, policy().placement).slots_of(&myself.instance_id);
        let clock = Clock::system();
        let ownership = Ownership::fixed(ServiceState::Active, slots, Arc::new(view), clock.now());
        Self::fixed(policy(), &myself, ownership, clock)
    }
}

/// Workers in one process that share a group and can be killed, paused and cut off. Intended for `#[tokio::test(start_paused = true)]`:
/// leases use tokio's clock, so waiting for a takeover takes no time.
///
/// Members are numbered in the order of joining, from 0, and keep their number.
///
/// # Panics
///
/// Methods panic if a member cannot join or leave, or if what they wait for does not happen in time.
pub struct TestFleet {
    settings: PolicySettings,
    clock: Clock,
    store: MemoryBackend,
    workers: Vec<FleetWorker>,
    #[cfg(feature = "requests")]
    transport: LocalTransport,
}

struct FleetWorker {
    it: TestWorker,
    link: MemoryBackend,
    state: WorkerFate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerFate {
    Alive,
    Paused,
    Partitioned,
    Gone,
}

impl TestFleet {
    /// Starts `n` members under a default policy with a TTL of 3 s, and waits until they have settled.
    pub async fn start(n: usize) -> Self {
        Self::start_with(n, policy()).await
    }

    /// Starts `n` members under your own policy.
    pub async fn start_with(n: usize, policy: Policy) -> Self {
        let timing = Timing::new(Duration::from_secs(3), None, Duration::from_millis(100)).expect("a valid timing");
        Self::start_as(n, PolicySettings { timing, ..PolicySettings::new(policy) }).await
    }

    /// Starts `n` members under all settings of a policy, but for its discovery: they share a store in memory.
    pub async fn start_as(n: usize, settings: PolicySettings) -> Self {
        let clock = Clock::tokio();
        let store = MemoryBackend::new(clock.clone());
        let mut fleet = Self {
            settings,
            clock,
            store,
            workers: Vec::new(),
            #[cfg(feature = "requests")]
            transport: LocalTransport::new(),
        };
        for _ in 0..n {
            fleet.join().await;
        }
        fleet.settled().await;
        fleet
    }

    /// Starts one more member and returns its number.
    pub async fn join(&mut self) -> usize {
        self.join_with(|_| ()).await
    }

    /// Like [`TestFleet::join`], after `prepare` has registered handlers at its service.
    pub async fn join_with(&mut self, prepare: impl FnOnce(&ShardingService)) -> usize {
        let number = self.workers.len();
        let id = InstanceId::new(format!("worker-{number}")).expect("a valid name");
        let member = Member { incarnation: random_incarnation(), serves: Some(Serves::Keys), ..Member::named(id) };
        let link = self.store.link();
        let backend: Arc<dyn Discovery> = Arc::new(link.clone());
        let it = TestWorker::with_settings(&self.settings, member, backend, self.clock.clone());
        let service = it.service().clone();
        #[cfg(feature = "requests")]
        self.transport.add(&service).unwrap_or_else(|error| panic!("worker-{number} takes no requests: {error}"));
        prepare(&service);
        self.workers.push(FleetWorker { it, link, state: WorkerFate::Alive });
        service.register_self().await.unwrap_or_else(|error| panic!("worker-{number} cannot join: {error}"));
        number
    }

    /// The service of member `i`.
    pub fn service(&self, i: usize) -> &ShardingService {
        self.workers[i].it.service()
    }

    /// Brings the requests of the members to each other.
    #[cfg(feature = "requests")]
    pub const fn transport(&self) -> &LocalTransport {
        &self.transport
    }

    fn worker(&mut self, i: usize, state: WorkerFate) -> &FleetWorker {
        self.workers[i].state = state;
        #[cfg(feature = "requests")]
        self.transport.set_stalled(self.workers[i].it.service().instance_id(), state == WorkerFate::Paused);
        &self.workers[i]
    }

    /// Member `i` dies; see [`TestWorker::kill`].
    pub fn kill(&mut self, i: usize) {
        self.worker(i, WorkerFate::Gone).it.kill();
    }

    /// Member `i` stops until [`TestFleet::resume`]; see [`TestWorker::pause`].
    pub fn pause(&mut self, i: usize) {
        self.worker(i, WorkerFate::Paused).it.pause();
    }

    /// Member `i` continues.
    pub fn resume(&mut self, i: usize) {
        self.worker(i, WorkerFate::Alive).it.resume();
    }

    /// Member `i` loses its connection to the backend.
    pub fn partition(&mut self, i: usize) {
        self.worker(i, WorkerFate::Partitioned).link.set_reachable(false);
    }

    /// Member `i` gets its connection back.
    pub fn heal(&mut self, i: usize) {
        self.worker(i, WorkerFate::Alive).link.set_reachable(true);
    }

    /// An operator confirms that the vanished members are gone for good; returns how many members had waited for the confirmation.
    pub async fn confirm_loss(&self) -> usize {
        let group = Group { policy: &self.settings.policy, timing: self.settings.timing, backend: Arc::new(self.store.clone()) };
        group.confirm_loss().await.unwrap_or_else(|error| panic!("the loss cannot be confirmed: {error}"))
    }

    /// Member `i` leaves in good order.
    pub async fn leave(&mut self, i: usize) {
        self.workers[i].it.service().deregister_self().await.unwrap_or_else(|error| panic!("worker-{i} cannot leave: {error}"));
        self.workers[i].state = WorkerFate::Gone;
    }

    /// The numbers of the members that own `key` right now.
    pub fn owners<K: ShardKey + ?Sized>(&self, key: &K) -> Vec<usize> {
        (0..self.workers.len()).filter(|i| self.workers[*i].it.service().owns(key)).collect()
    }

    /// Waits until the living members see each other and no other member, and own every slot exactly once: two minutes of the runtime's
    /// time at most.
    pub async fn settled(&self) {
        let started = self.clock.now();
        while let Err(why) = self.check() {
            assert!(self.clock.now().since(started) < SETTLE_LIMIT, "the fleet has not settled within {SETTLE_LIMIT:?}: {why}");
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    fn check(&self) -> Result<(), String> {
        let alive: Vec<_> = self.workers.iter().filter(|w| w.state == WorkerFate::Alive).collect();
        let slots = self.slots();
        let mut owned = SlotSet::empty(slots);
        let mut owned_total = 0;
        for worker in &alive {
            let (id, view) = (worker.it.service().instance_id(), worker.it.service().members());
            if worker.it.service().state() != ServiceState::Active {
                return Err(format!("{id} is {}", worker.it.service().state()));
            }
            if view.members().len() != alive.len() {
                return Err(format!("{id} sees {} members of {}", view.members().len(), alive.len()));
            }
            let held = worker.it.service().ownership().slots().clone();
            owned_total += held.len();
            owned = owned.union(&held);
        }
        let complete = alive.is_empty() || (owned_total == slots && owned.len() == slots);
        if complete { Ok(()) } else { Err(format!("{} of {slots} slots are owned, {owned_total} times", owned.len())) }
    }

    /// The number of slots of the ring of the first living member.
    fn slots(&self) -> u32 {
        let alive = self.workers.iter().find(|worker| worker.state == WorkerFate::Alive);
        alive.map_or(self.settings.policy.placement.slots, |worker| worker.it.service().ownership().slots().slots())
    }
}
