//! A change of the placement by a rolling restart, under load: one switch, and at no view two owners of a key.

#![expect(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests report by panicking, and print their seed")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use shardwise::discovery::{Clock, FaultRates, Faults, MemoryBackend};
use shardwise::settings::{InstanceSettings, PolicySettings};
use shardwise::{
    Cause, ErrorKind, GroupName, InstanceId, KeyPlacement, LoadMargin, Moment, Ownership, PlacementKind, PlacementParams, Policy,
    PolicyName, ServiceState, ShardingFactory, ShardingService, Timing, Weight,
};

const WORKERS: usize = 12;
const KEYS: u32 = 200;
const SLOTS: u32 = 1_024;
const TTL: Duration = Duration::from_secs(3);
/// How often each worker filters all keys.
const FILTER_EVERY: Duration = Duration::from_millis(50);

/// A view comes up to 300 ms late and now and then only with the next, so that views differ; some calls fail.
const ORDINARY_DAY: FaultRates = FaultRates {
    delay: 0.5,
    delay_max: Duration::from_millis(300),
    drop_event: 0.1,
    repeat_event: 0.1,
    fail_before: 0.02,
    ..FaultRates::NONE
};

/// A policy with that placement and no other.
fn done(placement: PlacementParams) -> Policy {
    let mut policy = Policy::new(PolicyName::new("workers").expect("valid"), GroupName::new("group").expect("valid"));
    policy.drain_timeout = Duration::ZERO;
    policy.placement = placement;
    policy
}

fn between(old: PlacementParams, next: PlacementParams) -> Policy {
    let mut policy = done(old);
    policy.next = Some(next);
    policy
}

fn old() -> Policy {
    done(PlacementParams { slots: SLOTS, virtual_nodes: 32, ..PlacementParams::default() })
}

fn changing(next: PlacementParams) -> Policy {
    between(old().placement, next)
}

fn next_placement(slots: u32) -> PlacementParams {
    PlacementParams { slots, virtual_nodes: 64, ..PlacementParams::default() }
}

fn by_key(placement: KeyPlacement) -> PlacementParams {
    PlacementParams { kind: PlacementKind::Key(placement), virtual_nodes: 32, ..PlacementParams::default() }
}

/// Whether the snapshot gives that key to its worker, whatever the time is.
fn holds(snapshot: &Ownership, key: u32) -> bool {
    snapshot.keys().map_or_else(|| snapshot.slots().holds(&key), |keys| keys.holds(&key))
}

/// What one life of a worker held from some filtering of the keys on until a later one.
#[derive(Debug)]
struct Held {
    life: usize,
    from: Moment,
    until: Moment,
    revision: u64,
    keys: Vec<usize>,
}

/// Everything that was seen, of all lives.
#[derive(Default)]
struct Log {
    held: Vec<Held>,
    /// By worker, in order.
    snapshots: BTreeMap<usize, Vec<Arc<Ownership>>>,
}

struct Life {
    service: ShardingService,
    link: MemoryBackend,
}

struct Fleet {
    clock: Clock,
    store: MemoryBackend,
    seed: u64,
    random: StdRng,
    workers: BTreeMap<usize, Life>,
    lives: usize,
    log: Arc<Mutex<Log>>,
}

fn with<T>(log: &Mutex<Log>, f: impl FnOnce(&mut Log) -> T) -> T {
    f(&mut log.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Fleet {
    async fn start(seed: u64, workers: usize, policy: &Policy) -> Self {
        println!("seed {seed}");
        let (clock, random) = (Clock::tokio(), StdRng::seed_from_u64(seed));
        let store = MemoryBackend::new(clock.clone());
        let mut fleet = Self { clock, store, seed, random, workers: BTreeMap::new(), lives: 0, log: Arc::default() };
        for worker in 0..workers {
            fleet.join(worker, policy).await;
        }
        fleet.settled(workers).await;
        fleet
    }

    /// A new life of that worker, under load from the beginning; an error is that of joining.
    async fn try_join(&mut self, worker: usize, policy: &Policy) -> shardwise::Result<()> {
        let link = self.store.link();
        let faults = Faults::new(Arc::new(link.clone()), self.seed.wrapping_mul(1_000).wrapping_add(self.lives as u64), ORDINARY_DAY);
        let mut settings = PolicySettings::new(policy.clone());
        settings.discovery.backend = "test".into();
        settings.timing = Timing::new(TTL, None, Duration::from_millis(100)).expect("valid");
        let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(faults)).clock(self.clock.clone());
        let mut instance = InstanceSettings::default();
        instance.id = Some(InstanceId::new(format!("worker-{worker}")).expect("valid"));
        // Where others' rules count no weights, they do no harm.
        instance.weight = Weight::new([1, 2, 4, 10][worker % 4]).expect("valid");
        let factory = builder.instance(instance).build().expect("a valid factory");
        let service = factory.create("workers").expect("a known policy");
        let mut snapshots = service.snapshots();
        let log = Arc::clone(&self.log);
        tokio::spawn(async move {
            while let Some(snapshot) = snapshots.recv().await {
                with(&log, |log| log.snapshots.entry(worker).or_default().push(snapshot));
            }
        });
        tokio::spawn(filter(service.clone(), self.lives, Arc::clone(&self.log)));
        self.lives += 1;
        service.register_self().await?;
        self.workers.insert(worker, Life { service, link });
        Ok(())
    }

    async fn join(&mut self, worker: usize, policy: &Policy) {
        self.try_join(worker, policy).await.unwrap_or_else(|error| panic!("worker-{worker} cannot join: {error}"));
    }

    /// Ends a life: in good order, or as by a crash, of which the others learn by the TTL.
    async fn end(&mut self, worker: usize, crash: bool) {
        let life = self.workers.remove(&worker).expect("it lives");
        if crash {
            life.link.set_reachable(false);
        } else {
            life.service.deregister_self().await.expect("it leaves");
        }
    }

    /// Restarts these workers one after the other under another policy; one in five of them by a crash.
    async fn restart(&mut self, mut workers: Vec<usize>, policy: &Policy) {
        workers.shuffle(&mut self.random);
        for worker in workers {
            let crash = self.random.random_bool(0.2);
            self.end(worker, crash).await;
            self.join(worker, policy).await;
            tokio::time::sleep(Duration::from_millis(self.random.random_range(0..400))).await;
        }
    }

    /// Waits until all see the same members, that many.
    async fn settled(&self, members: usize) {
        let views = || self.workers.values().map(|life| life.service.members());
        let begun = self.clock.now();
        while !views().all(|view| view.members().len() == members && view.members() == views().next().expect("some").members()) {
            assert!(self.clock.now().since(begun) < 10 * TTL, "they do not see the same {members} members");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the group serves by the newest view of each, all the same.
    fn placement(&self) -> PlacementParams {
        let mut serving = self.workers.values().map(|life| {
            let ownership = life.service.ownership();
            assert_eq!(ownership.state(), ServiceState::Active);
            let serving = life.service.policy().serving(ownership.view().group_fingerprint()).expect("it serves what the group serves");
            assert_eq!((ownership.slots().slots(), ownership.keys().is_some()), (serving.ring_slots(), serving.kind.by_key().is_some()));
            serving
        });
        let first = serving.next().expect("there are workers");
        assert!(serving.all(|other| other == first));
        let owners = |key| self.workers.values().filter(|life| life.service.owns(&key)).count();
        assert!((0..KEYS).all(|key| owners(key) == 1), "every key has one owner");
        first
    }

    /// Checks what was seen; `agreed` is what each worker went by while it was active, one after the other.
    fn check(self, agreed: &[&Policy]) {
        let log = std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
        let agreed: Vec<_> = agreed.iter().map(|policy| Some(policy.fingerprint())).collect();
        for (worker, snapshots) in &log.snapshots {
            let active = snapshots.iter().filter(|snapshot| snapshot.state() == ServiceState::Active);
            let mut went_by: Vec<_> = active.map(|snapshot| snapshot.view().group_fingerprint()).collect();
            went_by.dedup();
            assert_eq!(went_by, agreed, "worker-{worker}");
        }
        one_owner_at_a_view(&log);
        let longest = longest_overlap(&log.held);
        let revisions: BTreeSet<_> = log.held.iter().map(|held| held.revision).collect();
        println!("{} revisions; two owners, each by another one, for at most {longest:?}", revisions.len());
        assert!(longest < 2 * TTL, "two workers owned a key for {longest:?}");
    }
}

/// Filters all keys again and again, and notes what came out whenever it is something else.
async fn filter(service: ShardingService, life: usize, log: Arc<Mutex<Log>>) {
    let keys: Vec<u32> = (0..KEYS).collect();
    let mut current: Option<Held> = None;
    while !matches!(service.state(), ServiceState::Left | ServiceState::Fenced) {
        let (now, revision, held) = (service.now(), service.members().revision(), service.filter_owned_indices(&keys));
        let same = current.as_ref().is_some_and(|current| (current.revision, &current.keys) == (revision, &held));
        if !same {
            let next = Held { life, from: now, until: now, revision, keys: held };
            note(&log, current.replace(next), now);
        }
        tokio::time::sleep(FILTER_EVERY).await;
    }
    note(&log, current, service.now());
}

fn note(log: &Mutex<Log>, held: Option<Held>, until: Moment) {
    with(log, |log| log.held.extend(held.map(|held| Held { until, ..held })));
}

/// Of all that went by one revision, in a snapshot or while filtering, no two held one key.
fn one_owner_at_a_view(log: &Log) {
    let mut owners = BTreeMap::new();
    for (worker, snapshots) in &log.snapshots {
        let parts = |snapshot: &Ownership| (snapshot.view().revision(), snapshot.slots().clone(), snapshot.keys().cloned());
        let changes = snapshots.windows(2).filter(|pair| parts(&pair[0]) != parts(&pair[1])).map(|pair| &pair[1]);
        for snapshot in changes {
            for key in (0..KEYS).filter(|key| holds(snapshot, *key)) {
                let owner = *owners.entry((snapshot.view().revision(), key)).or_insert(*worker);
                assert_eq!(owner, *worker, "owners of key {key} at revision {}", snapshot.view().revision());
            }
        }
    }
    let mut lives = BTreeMap::new();
    for held in &log.held {
        for key in &held.keys {
            let owner = *lives.entry((held.revision, *key)).or_insert(held.life);
            assert_eq!(owner, held.life, "owners of key {key} at revision {}", held.revision);
        }
    }
    assert!(owners.len() > 10 * KEYS as usize && lives.len() > 10 * KEYS as usize, "there was something to see");
}

/// For how long at most two lives held the same key without a break.
fn longest_overlap(log: &[Held]) -> Duration {
    let mut longest = Duration::ZERO;
    for key in 0..KEYS as usize {
        let mut spans: Vec<(usize, Moment, Moment)> = Vec::new();
        for held in log.iter().filter(|held| held.keys.binary_search(&key).is_ok()) {
            match spans.iter_mut().find(|(life, _, until)| *life == held.life && *until == held.from) {
                Some((.., until)) => *until = held.until,
                None => spans.push((held.life, held.from, held.until)),
            }
        }
        spans.sort_by_key(|(_, from, _)| *from);
        for (i, (life, _, until)) in spans.iter().enumerate() {
            for (other, from, other_until) in &spans[i + 1..] {
                if life != other {
                    longest = longest.max((*until).min(*other_until).since(*from));
                }
            }
        }
    }
    longest
}

/// All workers change over by two restarts of each, one after the other under load, some of them by a crash.
async fn change_over(seed: u64, old: PlacementParams, next: PlacementParams) {
    let mut fleet = Fleet::start(seed, WORKERS, &done(old)).await;
    assert_eq!(fleet.placement(), old);
    fleet.restart((0..WORKERS).collect(), &between(old, next)).await;
    fleet.settled(WORKERS).await;
    assert_eq!(fleet.placement(), next);
    fleet.restart((0..WORKERS).collect(), &done(next)).await;
    fleet.settled(WORKERS).await;
    assert_eq!(fleet.placement(), next, "the second restart, which removes the old, changes nothing");
    fleet.check(&[&done(old), &done(next)]);
}

/// To twice as many slots, to a number that has no ring in common with the old one, to the same number with other points, to another load
/// margin alone, and to the placement that keeps the shares of weights.
#[tokio::test(start_paused = true)]
async fn a_fleet_changes_over_with_one_switch() {
    let wider = PlacementParams { load_margin: LoadMargin::parse("0.5").expect("a margin"), ..old().placement };
    let [twice, odd, same] = [2 * SLOTS, 1_031, SLOTS].map(next_placement);
    let quota = PlacementParams { kind: PlacementKind::Quota, ..old().placement };
    for (seed, next) in [(1, twice), (2, odd), (3, same), (6, wider), (7, quota)] {
        change_over(seed, old().placement, next).await;
    }
}

/// From Python's rule to ours, which is why it is there; back again; and from one rule of others to another.
#[tokio::test(start_paused = true)]
async fn a_fleet_changes_over_from_a_key_placement_and_to_one() {
    let [python, modulo, hashring] = [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring].map(by_key);
    let ring = old().placement;
    for (seed, old, next) in [(11, python, ring), (12, ring, python), (13, modulo, hashring)] {
        change_over(seed, old, next).await;
    }
}

/// Half of the fleet has `next` and goes back; then all of it has, and goes back.
#[tokio::test(start_paused = true)]
async fn the_way_back_is_open_until_the_old_placement_is_removed() {
    const FEW: usize = 6;
    let next = next_placement(2 * SLOTS);
    let mut fleet = Fleet::start(4, FEW, &old()).await;
    fleet.restart((0..FEW / 2).collect(), &changing(next)).await;
    fleet.settled(FEW).await;
    assert_eq!(fleet.placement(), old().placement, "not all have it");
    fleet.restart((0..FEW / 2).collect(), &old()).await;
    fleet.settled(FEW).await;
    assert_eq!(fleet.placement(), old().placement);
    fleet.restart((0..FEW).collect(), &changing(next)).await;
    fleet.settled(FEW).await;
    assert_eq!(fleet.placement(), next);
    fleet.restart((0..FEW).collect(), &old()).await;
    fleet.settled(FEW).await;
    assert_eq!(fleet.placement(), old().placement);
    fleet.check(&[&old(), &done(next), &old()]);
}

/// What `docs/reference/operations.md` warns of: with one worker that knows the old placement alone, the group goes by that again. Once two
/// workers know the new one alone, such a worker is refused instead.
#[tokio::test(start_paused = true)]
async fn a_worker_with_the_old_settings_takes_the_group_back_until_the_old_placement_is_removed() {
    let next = next_placement(2 * SLOTS);
    let mut fleet = Fleet::start(5, 4, &changing(next)).await;
    assert_eq!(fleet.placement(), next, "all list it from the beginning");
    let mut rebalances = fleet.workers[&0].service.rebalances();
    fleet.join(4, &old()).await;
    fleet.settled(5).await;
    assert_eq!(fleet.placement(), old().placement);
    assert_eq!(rebalances.recv().await.expect("a rebalance").cause, Cause::PolicyChanged);
    fleet.end(4, false).await;
    fleet.settled(4).await;
    assert_eq!(fleet.placement(), next);

    fleet.restart(vec![0, 1], &done(next)).await;
    fleet.settled(4).await;
    let error = fleet.try_join(4, &old()).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::OtherPolicy);
    for fingerprint in [old().fingerprint(), done(next).fingerprint()] {
        assert!(error.to_string().contains(&fingerprint.to_string()), "{error}");
    }
    fleet.settled(4).await;
    assert_eq!(fleet.placement(), next);
}
