//! Lives of a fleet with `max_loss` and `keep`, from a seed: workers join, die many at once, are cut off and leave, while calls
//! fail and come late, and changes of the records most of all. At one view no slot ever has two owners; every worker can leave;
//! and after the faults the fleet settles; if its rebalancing is frozen, after an operator's confirmation.
//!
//! `SHARDWISE_SEED=N` repeats one life's faults (not the jitter of the workers' pauses, which comes from their incarnations).

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise::discovery::{ErrorKind, FaultRates, Faults, MemoryBackend};
use shardwise::{BackendLoss, MaxLoss, Ownership, Policy, ServiceState, ShardingService};
use tokio::task::JoinHandle;

#[expect(dead_code, reason = "each test file uses its part")]
mod common;
#[path = "common/scripted.rs"]
mod scripted;

use common::{World, policy};
use scripted::{How, Scripted};

const LIVES: u64 = 20;
const SLOTS: u32 = 512;
const BEGIN_WITH: usize = 8;
const STEPS: u32 = 40;
const TTL: Duration = Duration::from_secs(3);
/// A TTL for being seen draining, 2 s for saying so and deregistering, and what is between.
const LEAVES_WITHIN: Duration = Duration::from_millis(5_100);
const SETTLES_WITHIN: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(50);

const BAD: FaultRates = FaultRates {
    fail_before: 0.1,
    fail_after: 0.1,
    delay: 0.3,
    delay_max: Duration::from_millis(900),
    execute_late: 0.05,
    execute_late_max: Duration::from_secs(5),
    lose_lease: 0.01,
    fail_watch: 0.05,
    drop_event: 0.05,
    repeat_event: 0.05,
};

struct Worker {
    service: ShardingService,
    link: MemoryBackend,
    faults: Faults,
    leaving: Arc<AtomicBool>,
}

impl Worker {
    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }
}

struct Life {
    seed: u64,
    dice: StdRng,
    world: World,
    policy: Policy,
    /// While set, changes of the records fail and come late.
    troubled: Arc<AtomicBool>,
    born: u64,
    workers: Vec<Worker>,
    leavers: Vec<JoinHandle<()>>,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut policy = policy();
        (policy.placement.slots, policy.placement.virtual_nodes) = (SLOTS, 64);
        policy.max_loss = match seed % 4 {
            0 => None,
            1 => MaxLoss::percent(20),
            2 => MaxLoss::percent(50),
            _ => MaxLoss::percent(80),
        };
        if seed / 4 % 2 == 1 {
            policy.on_backend_loss = BackendLoss::Keep { keep_for: Duration::from_secs(20) };
        }
        let (dice, world) = (StdRng::seed_from_u64(seed), World::new());
        Self { seed, dice, world, policy, troubled: Arc::new(AtomicBool::new(true)), born: 0, workers: Vec::new(), leavers: Vec::new() }
    }

    fn join(&mut self) {
        self.born += 1;
        let (seed, link) = (self.seed * 1_000 + self.born, self.world.store.link());
        let faults = Faults::new(Arc::new(link.clone()), seed, BAD);
        let (troubled, mut dice) = (Arc::clone(&self.troubled), StdRng::seed_from_u64(seed));
        let backend = Scripted::new(faults.clone(), move |(operation, _)| match dice.random_range(0..10) {
            _ if operation != "update" || !troubled.load(Ordering::Relaxed) => How::Now,
            0..4 => How::Fails(ErrorKind::Unavailable),
            4..7 => How::After(Duration::from_millis(dice.random_range(0..1_500))),
            7 => How::Never,
            _ => How::Now,
        });
        let id = format!("w{:03}", self.born);
        let service = self.world.factory_of(&id, Arc::new(backend), self.policy.clone()).create("workers").expect("a known policy");
        let (joining, leaving) = (service.clone(), Arc::new(AtomicBool::new(false)));
        let left = Arc::clone(&leaving);
        // It may take longer than `register_self` waits.
        drop(tokio::spawn(async move { while !left.load(Ordering::Relaxed) && joining.register_self().await.is_err() {} }));
        self.workers.push(Worker { service, link, faults, leaving });
    }

    /// Up to half of them end without a word.
    fn some_die(&mut self) {
        for _ in 0..self.dice.random_range(1..=self.workers.len() / 2) {
            let dead = self.workers.swap_remove(self.dice.random_range(0..self.workers.len()));
            dead.link.set_reachable(false);
        }
    }

    fn one_leaves(&mut self) {
        let seed = self.seed;
        let worker = &self.workers[self.dice.random_range(0..self.workers.len())];
        if worker.leaving.swap(true, Ordering::Relaxed) {
            return;
        }
        let service = worker.service.clone();
        self.leavers.push(tokio::spawn(async move {
            let begun = service.now();
            service.deregister_self().await.expect("it leaves");
            let took = service.now().since(begun);
            let id = service.instance_id();
            assert!(took < LEAVES_WITHIN, "seed {seed}: {id} took {took:?} to leave; SHARDWISE_SEED={seed} repeats the faults");
        }));
    }

    fn something_happens(&mut self) {
        match self.dice.random_range(0..10) {
            0 | 1 => self.join(),
            2 if self.workers.len() > 2 => self.some_die(),
            3 | 4 => {
                for worker in &self.workers {
                    if self.dice.random() {
                        worker.link.set_reachable(false);
                    }
                }
            }
            5 | 6 => self.workers.iter().for_each(|worker| worker.link.set_reachable(true)),
            7 if self.workers.len() > 3 => self.one_leaves(),
            _ => {}
        }
    }

    /// # Panics
    ///
    /// If two members own one slot by the same view.
    fn observe(&self) {
        let now = self.world.clock.now();
        let seen: Vec<_> = self.workers.iter().map(|worker| (worker, worker.service.ownership())).collect();
        let owning: Vec<_> = seen.iter().filter(|(_, seen)| seen.is_live_at(now) && seen.state() == ServiceState::Active).collect();
        for (n, (one, seen)) in owning.iter().enumerate() {
            for (other, also) in owning[n + 1..].iter().filter(|(_, also)| also.view().members() == seen.view().members()) {
                let twice = seen.slots().intersection(also.slots()).len();
                let (seed, one, other) = (self.seed, one.service.instance_id(), other.service.instance_id());
                assert_eq!(
                    twice, 0,
                    "seed {seed}: {one} and {other} own slots together by one view; SHARDWISE_SEED={seed} repeats the faults"
                );
            }
        }
    }

    async fn passes(&self, time: Duration) {
        let begun = self.world.clock.now();
        while self.world.clock.now().since(begun) < time {
            self.observe();
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Whether all workers rebalance (`false`) or all are frozen (`true`); an error if they differ.
    fn settled(&self) -> Result<bool, String> {
        let shares: Vec<Arc<Ownership>> =
            self.workers.iter().filter(|worker| !worker.is_leaving()).map(|worker| worker.service.ownership()).collect();
        let words = |share: &Arc<Ownership>| format!("{share:?} of {} members", share.view().members().len());
        let wrong = || Err(shares.iter().map(words).collect::<Vec<_>>().join("; "));
        let still = shares.iter().filter(|share| share.rebalancing_frozen()).count();
        let owned: u32 = shares.iter().map(|share| share.slots().len()).sum();
        if shares.iter().any(|share| share.state() != ServiceState::Active || share.view().members().len() != shares.len()) {
            return wrong();
        }
        match still {
            0 if owned == SLOTS => Ok(false),
            _ if still == shares.len() && owned < SLOTS => Ok(true),
            _ => wrong(),
        }
    }

    async fn settles(&self) -> bool {
        let healed = self.world.clock.now();
        loop {
            match self.settled() {
                Ok(frozen) => return frozen,
                Err(why) => {
                    let (seed, waited) = (self.seed, self.world.clock.now().since(healed));
                    assert!(
                        waited < SETTLES_WITHIN,
                        "seed {seed}: not settled after {waited:?}: {why}; SHARDWISE_SEED={seed} repeats the faults"
                    );
                    self.passes(POLL_EVERY).await;
                }
            }
        }
    }

    async fn lived(mut self) {
        (0..BEGIN_WITH).for_each(|_| self.join());
        self.passes(Duration::from_secs(10)).await;
        for _ in 0..STEPS {
            self.something_happens();
            let time = Duration::from_millis(self.dice.random_range(10..5_000));
            self.passes(time).await;
        }
        self.troubled.store(false, Ordering::Relaxed);
        for worker in &self.workers {
            worker.faults.set_rates(FaultRates::NONE);
            worker.link.set_reachable(true);
        }
        for leaver in self.leavers.drain(..) {
            leaver.await.expect("it leaves in time");
        }
        // Who is leaving, and whose record is left behind, is gone before the fleet is judged.
        self.passes(TTL + LEAVES_WITHIN).await;
        if self.workers.iter().all(Worker::is_leaving) || !self.settles().await {
            return;
        }
        let operator = self.world.factory_of("operator", Arc::new(self.world.store.link()), self.policy.clone());
        operator.confirm_loss("workers").await.expect("the operator's word is taken");
        self.passes(TTL).await;
        assert!(!self.settles().await, "seed {}: it stands still though an operator has confirmed the loss", self.seed);
    }
}

#[tokio::test(start_paused = true)]
async fn lives_keep_no_slot_twice_and_end_well() {
    let seeds = match std::env::var("SHARDWISE_SEED") {
        Ok(seed) => vec![seed.parse().expect("SHARDWISE_SEED is a whole number")],
        Err(_) => (0..LIVES).collect(),
    };
    for seed in seeds {
        Life::new(seed).lived().await;
    }
}
