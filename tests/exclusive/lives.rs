//! Lives of a fleet under exclusive ownership, from a seed: workers join, die, are cut off and leave, while calls fail, come late and lose their
//! answers, and watches keep news to themselves or tell them twice. At no moment do two workers hold one slot, by claim or by a guard that
//! says so; no write is accepted under an epoch below one that was; and when the faults are over every slot has a holder again.
//!
//! `SHARDWISE_SEED=N` repeats one life's faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise::core::holdings::OnDrainTimeout;
use shardwise::discovery::{FaultRates, Faults, MemoryBackend};
use shardwise::{ClaimName, Epoch, Fence, Guard, Policy, Run, ShardingService};

use super::{SLOTS, World, held, key_in, policy};

const LIVES: u64 = 30;
const BEGIN_WITH: usize = 4;
const STEPS: u32 = 40;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const LOOK_EVERY: Duration = Duration::from_millis(20);
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

const BAD: FaultRates = FaultRates {
    fail_before: 0.1,
    fail_after: 0.1,
    delay: 0.3,
    delay_max: Duration::from_millis(900),
    // A backend that forgets a record before its time forgets its claims, and hands them to somebody else while their holder does not know:
    // no promise covers that, and the user's table does.
    lose_lease: 0.0,
    fail_watch: 0.05,
    drop_event: 0.05,
    repeat_event: 0.05,
};

struct Worker {
    service: ShardingService,
    link: MemoryBackend,
    faults: Faults<MemoryBackend>,
    guards: Vec<Guard>,
    _singletons: Vec<Run>,
    leaves: bool,
}

struct Life {
    seed: u64,
    dice: StdRng,
    world: World,
    policy: Policy,
    born: u64,
    workers: Vec<Worker>,
    /// The user's own table: the highest epoch that wrote in each slot, and how many writes it refused.
    table: BTreeMap<u32, Epoch>,
    accepted: u64,
    refused: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut policy = policy();
        if seed % 2 == 1 {
            policy.on_drain_timeout = OnDrainTimeout::Release;
        }
        let (dice, world) = (StdRng::seed_from_u64(seed), World::new());
        Self { seed, dice, world, policy, born: 0, workers: Vec::new(), table: BTreeMap::new(), accepted: 0, refused: 0 }
    }

    fn join(&mut self) {
        self.born += 1;
        let link = self.world.store.link();
        let faults = Faults::new(link.clone(), self.seed * 1_000 + self.born, BAD);
        let id = format!("w{:03}", self.born);
        let factory = self.world.factory_of(&id, Arc::new(faults.clone()), self.policy.clone());
        let service = factory.create("workers").expect("a known policy");
        let singletons = NAMES.map(|name| {
            let singleton = service.singleton(name).expect("exclusive");
            singleton.run(|context| async move {
                context.cancel().cancelled().await;
                Ok::<(), String>(())
            })
        });
        let joining = service.clone();
        // It may take longer than `register_self` waits.
        drop(tokio::spawn(async move { while joining.register_self().await.is_err() {} }));
        self.workers.push(Worker { service, link, faults, guards: Vec::new(), _singletons: singletons.into(), leaves: false });
    }

    fn something_happens(&mut self) {
        let any = self.dice.random_range(0..self.workers.len());
        match self.dice.random_range(0..12) {
            0 | 1 => self.join(),
            2 if self.workers.len() > 2 => {
                // It goes on by itself, cut off for ever, as a dead one's code might.
                self.workers[any].link.set_reachable(false);
                self.workers[any].leaves = true;
            }
            3 | 4 => self.workers[any].link.set_reachable(false),
            5 | 6 => self.workers.iter().filter(|worker| !worker.leaves).for_each(|worker| worker.link.set_reachable(true)),
            7 if self.workers.iter().filter(|worker| !worker.leaves).count() > 2 && !self.workers[any].leaves => {
                self.workers[any].leaves = true;
                let leaving = self.workers[any].service.clone();
                drop(tokio::spawn(async move { leaving.deregister_self().await }));
            }
            8 => self.workers[any].guards.clear(),
            _ => {
                for _ in 0..8 {
                    let key = key_in(self.dice.random_range(0..SLOTS));
                    let worker = &mut self.workers[any];
                    worker.guards.extend(worker.service.enter(&key).ok());
                }
            }
        }
    }

    /// # Panics
    ///
    /// If two hold one slot, or a guard that says it is held could not write.
    fn look(&mut self) {
        let seed = self.seed;
        let mut holders: BTreeMap<u32, String> = BTreeMap::new();
        let mut named: BTreeSet<ClaimName> = BTreeSet::new();
        for worker in &self.workers {
            let ownership = worker.service.ownership();
            for (name, _) in ownership.names().filter(|_| ownership.is_live_at(worker.service.now())) {
                assert!(named.insert(name.clone()), "seed {seed}: {name} has two holders; SHARDWISE_SEED={seed} repeats the faults");
            }
            let serving = held(&worker.service).into_iter();
            let guarded = worker.guards.iter().filter(|guard| guard.is_held()).filter_map(Guard::fence);
            let claims: BTreeSet<(u32, u64)> = serving.chain(guarded.map(|Fence { slot, epoch }| (slot, epoch.get()))).collect();
            for (slot, epoch) in claims {
                let told = format!("{:?} under epoch {epoch}", worker.service);
                if let Some(other) = holders.insert(slot, told.clone()) {
                    panic!("seed {seed}: slot {slot} has two holders: {other}, and {told}; SHARDWISE_SEED={seed} repeats the faults");
                }
                let highest = self.table.entry(slot).or_insert(Epoch::new(epoch).expect("an epoch"));
                assert!(
                    highest.get() <= epoch,
                    "seed {seed}: slot {slot} is held under {epoch} after {highest}; SHARDWISE_SEED={seed} repeats the faults"
                );
                *highest = Epoch::new(epoch).expect("an epoch");
                self.accepted += 1;
            }
            // Whoever does not ask whether its guard is still good meets the table.
            let ghosts = worker.guards.iter().filter(|guard| !guard.is_held()).filter_map(Guard::fence);
            self.refused += ghosts.filter(|fence| self.table.get(&fence.slot).is_some_and(|highest| fence.epoch < *highest)).count() as u64;
        }
    }

    async fn passes(&mut self, time: Duration) {
        let begun = self.world.clock.now();
        while self.world.clock.now().since(begun) < time {
            self.look();
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn settled(&self) -> bool {
        let mut all: Vec<u32> = self.workers.iter().flat_map(|worker| held(&worker.service).into_keys()).collect();
        all.sort_unstable();
        let named: usize = self.workers.iter().map(|worker| worker.service.ownership().names().count()).sum();
        let staying = self.workers.iter().filter(|worker| !worker.leaves);
        named == NAMES.len() && all.into_iter().eq(0..SLOTS) && staying.clone().all(|worker| !held(&worker.service).is_empty())
    }

    async fn lived(mut self) -> (u64, u64) {
        (0..BEGIN_WITH).for_each(|_| self.join());
        self.passes(Duration::from_secs(5)).await;
        for _ in 0..STEPS {
            self.something_happens();
            let time = Duration::from_millis(self.dice.random_range(10..3_000));
            self.passes(time).await;
        }
        for worker in &mut self.workers {
            worker.faults.set_rates(FaultRates::NONE);
            worker.guards.clear();
            if !worker.leaves {
                worker.link.set_reachable(true);
            }
        }
        let healed = self.world.clock.now();
        while !self.settled() {
            let (seed, waited) = (self.seed, self.world.clock.now().since(healed));
            let shares = || self.workers.iter().map(|worker| format!("{:?}", worker.service)).collect::<Vec<_>>().join("; ");
            assert!(
                waited < SETTLES_WITHIN,
                "seed {seed}: not settled after {waited:?}: {}; SHARDWISE_SEED={seed} repeats the faults",
                shares()
            );
            self.passes(LOOK_EVERY).await;
        }
        (self.accepted, self.refused)
    }
}

#[tokio::test(start_paused = true)]
async fn lives_have_no_slot_with_two_holders_and_end_with_one_each() {
    let seeds = match std::env::var("SHARDWISE_SEED") {
        Ok(seed) => vec![seed.parse().expect("SHARDWISE_SEED is a whole number")],
        Err(_) => (0..LIVES).collect(),
    };
    let (mut accepted, mut refused) = (0, 0);
    for seed in seeds {
        let (more, ghosts) = Life::new(seed).lived().await;
        (accepted, refused) = (accepted + more, refused + ghosts);
    }
    assert!(accepted > 50_000, "{accepted} writes were made");
    assert!(refused > 0, "some guards outlive their claims");
}
