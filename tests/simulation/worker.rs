//! One worker of a simulated fleet: the real service over a faulty wire, with its own clock.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise::discovery::{Clock, FaultRates, Faults, MemoryBackend};
use shardwise::testing::TestWorker;
use shardwise::{Fence, Guard, Incarnation, InstanceId, Member, Moment, Ownership, Policy, Run, ServiceState, ShardingService, Timing};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::clocks::OwnClock;
use crate::named_log::NamedLog;
use crate::wire::{Cut, Wire};

pub(crate) const TTL: Duration = Duration::from_secs(3);
/// Names of singletons that every worker offers, beside its daemons and one timer.
pub(crate) const SINGLETONS: [&str; 2] = ["a", "b"];
const TIMER_PERIOD: Duration = Duration::from_secs(1);

pub(crate) const BAD: FaultRates = FaultRates {
    fail_before: 0.1,
    fail_after: 0.1,
    delay: 0.3,
    delay_max: Duration::from_millis(900),
    execute_late: 0.05,
    // So late that the record, and what was claimed under it, may be another by then.
    execute_late_max: Duration::from_secs(5),
    // A backend that forgets a record before its time forgets its claims, and grants them to another member while their holder does not
    // know: no promise covers that; the user's fenced table does.
    lose_lease: 0.0,
    fail_watch: 0.05,
    drop_event: 0.05,
    repeat_event: 0.05,
};

/// One renewal in so many stalls in the store, before it is carried out or before the look at whether that was too late.
const STALLS_ONE_IN: u32 = 20;
/// Longer than a lease.
const STALL_MAX: Duration = Duration::from_secs(4);

/// Renewals that stall in the store, as in a file whose disk is busy.
#[derive(Clone)]
struct Stalls(Arc<Mutex<StallDice>>);

struct StallDice {
    random: StdRng,
    one_in: Option<u32>,
    stalled: u64,
}

impl Stalls {
    fn new(seed: u64, wanted: bool) -> Self {
        let one_in = wanted.then_some(STALLS_ONE_IN);
        Self(Arc::new(Mutex::new(StallDice { random: StdRng::seed_from_u64(seed), one_in, stalled: 0 })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut StallDice) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn stall(&self) -> Duration {
        self.with(|dice| match dice.one_in {
            Some(one_in) if dice.random.random_ratio(1, one_in) => {
                dice.stalled += 1;
                STALL_MAX.mul_f64(dice.random.random())
            }
            _ => Duration::ZERO,
        })
    }
}

/// The worker's fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Runs,
    /// Until that moment of true time.
    Paused(Moment),
    /// Cut off for ever, but not dead: it goes on by itself.
    Lost,
    Leaves,
    Dead,
}

/// State shared by all workers of a life.
pub(crate) struct Group {
    pub(crate) truth: Clock,
    pub(crate) store: MemoryBackend,
    pub(crate) policy: Policy,
    /// How far clocks are off at most, in millionths.
    pub(crate) drift: u64,
    /// Of the calls of those that join.
    pub(crate) rates: FaultRates,
    pub(crate) log: NamedLog,
    /// Notified of each snapshot of each worker.
    pub(crate) published: Arc<Notify>,
    /// Whether the checks of all workers succeed; `None` in lives without checks.
    pub(crate) checks: Option<Arc<AtomicBool>>,
}

pub(crate) struct Worker {
    pub(crate) id: InstanceId,
    pub(crate) version: u32,
    pub(crate) fate: Fate,
    pub(crate) wire: Wire,
    pub(crate) faults: Faults,
    pub(crate) faults_of_notes: Faults,
    /// Work in flight, and what is left of it.
    pub(crate) guards: Vec<Guard>,
    link: MemoryBackend,
    stalls: Stalls,
    it: TestWorker,
    joining: JoinHandle<()>,
    _follower: JoinHandle<()>,
    _runs: Vec<Run>,
}

impl Worker {
    /// Begins to join as the worker of that number.
    pub(crate) fn joins(number: usize, id: InstanceId, version: u32, dice: &mut StdRng, group: &Group) -> Self {
        let clock = OwnClock::drawn(dice, &group.truth, group.drift);
        let stalls = Stalls::new(dice.random(), group.rates != FaultRates::NONE);
        let stalling = stalls.clone();
        let link = group.store.link().stalling(move || stalling.stall());
        // What is with the backend already is carried out, whatever becomes of this worker.
        let late = group.store.link();
        let mut faults = || Faults::new(Arc::new(link.clone()), dice.random(), group.rates).with_late_by(Arc::new(late.clone()));
        let [faults, faults_of_notes] = [(); 2].map(|()| faults());
        let wire = Wire::new(faults.clone(), faults_of_notes.clone(), late, clock.clone());
        // Without a margin what is left between the deadline and the end of the lease is for the clocks alone.
        let margin = Duration::from_millis(if dice.random() { 0 } else { 100 });
        let timing = Timing::new(TTL, None, margin).expect("valid");
        let member =
            Member { incarnation: Incarnation::new(dice.random()), version: Some(format!("1.{version}")), ..Member::named(id.clone()) };
        let it = TestWorker::new(group.policy.clone(), timing, member, Arc::new(wire.clone()), clock.clock());
        if let Some(succeed) = group.checks.clone() {
            let answer = move || if succeed.load(Ordering::Relaxed) { Ok(()) } else { Err("a shared dependency has failed".to_owned()) };
            let check = move || std::future::ready(answer());
            it.service().health(check).expect("watched once");
        }
        // At once, within drain_timeout, and beyond it.
        let winds_down = Duration::from_millis([0, 300, 1_700][dice.random_range(0..3)]);
        let runs = offers(it.service(), number, winds_down, &group.log);
        let (mut snapshots, published) = (it.service().snapshots(), Arc::clone(&group.published));
        let follower = tokio::spawn(async move {
            while snapshots.recv().await.is_some() {
                published.notify_one();
            }
        });
        let service = it.service().clone();
        // It may take longer than `register_self` waits.
        let joining = tokio::spawn(async move { while service.register_self().await.is_err() {} });
        Self {
            id,
            version,
            fate: Fate::Runs,
            wire,
            faults,
            faults_of_notes,
            guards: Vec::new(),
            link,
            stalls,
            it,
            joining,
            _follower: follower,
            _runs: runs,
        }
    }

    pub(crate) fn service(&self) -> &ShardingService {
        self.it.service()
    }

    pub(crate) fn runs(&self) -> bool {
        self.fate == Fate::Runs
    }

    /// Is, or will be, a member of the group.
    pub(crate) fn stays(&self) -> bool {
        matches!(self.fate, Fate::Runs | Fate::Paused(_))
    }

    pub(crate) fn dies(&mut self) {
        self.joining.abort();
        self.it.kill();
        self.link.set_reachable(false);
        self.guards.clear();
        self.fate = Fate::Dead;
    }

    pub(crate) fn pauses(&mut self, until: Moment) {
        self.it.pause();
        self.fate = Fate::Paused(until);
    }

    pub(crate) fn goes_on(&mut self) {
        self.it.resume();
        self.fate = Fate::Runs;
    }

    /// It has left, and joins again as the same process.
    pub(crate) fn joins_again(&mut self) {
        let service = self.service().clone();
        self.joining = tokio::spawn(async move { while service.register_self().await.is_err() {} });
        self.fate = Fate::Runs;
    }

    pub(crate) fn leaves(&mut self) {
        self.joining.abort();
        self.fate = Fate::Leaves;
        let service = self.service().clone();
        drop(tokio::spawn(async move { service.deregister_self().await }));
    }

    /// Whether some of its calls were given up and are still to be carried out.
    pub(crate) fn has_pending(&self) -> bool {
        self.faults.pending() + self.faults_of_notes.pending() > 0
    }

    pub(crate) fn set_reachable(&self, reachable: bool) {
        self.link.set_reachable(reachable);
    }

    /// How many renewals have stalled in the store.
    pub(crate) fn stalled(&self) -> u64 {
        self.stalls.with(|dice| dice.stalled)
    }

    /// No faults any more.
    pub(crate) fn is_healed(&mut self) {
        self.stalls.with(|dice| dice.one_in = None);
        self.faults.set_rates(FaultRates::NONE);
        self.faults_of_notes.set_rates(FaultRates::NONE);
        self.wire.cut(Cut::Nowhere);
        self.guards.clear();
        if let Fate::Paused(_) = self.fate {
            self.goes_on();
        }
        if self.stays() {
            self.set_reachable(true);
        }
    }

    /// Its snapshot, if it is in force by its own clock.
    pub(crate) fn live(&self) -> Option<Arc<Ownership>> {
        let ownership = self.service().ownership();
        ownership.is_live_at(self.service().now()).then_some(ownership)
    }

    /// Whether it holds each slot that the placement gives it, and no other. `keys` has one key in each slot.
    pub(crate) fn holds_its_own(&self, keys: &[String]) -> bool {
        let (me, Some(ownership)) = (self.service().instance_id(), self.live()) else { return false };
        let held: BTreeSet<_> = ownership.fences().map(|fence| fence.slot).collect();
        let is_mine = |key: &String| self.service().owners(key, 1).first() == Some(me);
        (0..).zip(keys).all(|(slot, key)| held.contains(&slot) == is_mine(key))
    }

    /// The fences of work that may go on, by its own clock.
    pub(crate) fn working(&self) -> impl Iterator<Item = Fence> + '_ {
        self.guards.iter().filter(|guard| guard.is_held()).filter_map(Guard::fence)
    }

    /// The fences of work that may not go on any more.
    pub(crate) fn stale_fences(&self) -> impl Iterator<Item = Fence> + '_ {
        self.guards.iter().filter(|guard| !guard.is_held()).filter_map(Guard::fence)
    }

    /// Whether it is active and sees exactly these.
    pub(crate) fn agrees(&self, ids: &[&InstanceId]) -> bool {
        let ownership = self.service().ownership();
        ownership.state() == ServiceState::Active
            && ownership.view().members().iter().map(|member| &member.instance_id).eq(ids.iter().copied())
    }
}

/// The work that every worker runs wherever it holds the name.
fn offers(service: &ShardingService, number: usize, winds_down: Duration, log: &NamedLog) -> Vec<Run> {
    let singletons = SINGLETONS.into_iter().map(|name| {
        let log = log.clone();
        service.singleton(name).expect("exclusive").run(move |tenure| log.clone().work(number, tenure, winds_down))
    });
    let mut runs: Vec<_> = singletons.collect();
    let shown = log.clone();
    let daemons = service.daemons("").expect("exclusive");
    runs.push(daemons.run(move |_, tenure| shown.clone().work(number, tenure, winds_down)));
    let shown = log.clone();
    let timer = service.timer("tick", TIMER_PERIOD).expect("exclusive");
    runs.push(timer.run(move |period, tenure| {
        shown.fires(number, period, &tenure);
        async { Ok::<(), String>(()) }
    }));
    runs
}
