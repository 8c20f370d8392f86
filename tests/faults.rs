//! A fleet under random faults, from a seed: whatever the backend does, no worker owns by a view that has been outdated for longer than two
//! TTLs, and after the faults the fleet settles. `SHARDWISE_SEED=N` repeats one run's faults (not the jitter of the workers' pauses,
//! which comes from their incarnations).

#![expect(clippy::expect_used, reason = "tests report by panicking")]

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise::discovery::{Clock, Discovery, FaultRates, Faults, MemoryBackend};
use shardwise::settings::PolicySettings;
use shardwise::{GroupName, InstanceId, Moment, Policy, PolicyName, ServiceState, ShardingFactory, ShardingService, Timing};

const GROUP: &str = "group";
const TTL: Duration = Duration::from_secs(3);
const WORKERS: usize = 5;
const SLOTS: u32 = 64;
const DAYS: u64 = 40;
/// How long a bad day lasts, and how often it is looked at.
const LASTS: Duration = Duration::from_mins(2);
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Renewing again after the last fault: the longest pause between two tries, a new registration, a view, and its proof.
const SETTLES_WITHIN: Duration = Duration::from_secs(8);

const BAD_DAY: FaultRates = FaultRates {
    fail_before: 0.2,
    fail_after: 0.1,
    delay: 0.3,
    delay_max: Duration::from_secs(2),
    execute_late: 0.05,
    execute_late_max: Duration::from_secs(5),
    lose_lease: 0.05,
    fail_watch: 0.1,
    drop_event: 0.2,
    repeat_event: 0.2,
};

struct Worker {
    link: MemoryBackend,
    faults: Faults,
    service: ShardingService,
    _factory: ShardingFactory,
}

fn policy() -> PolicySettings {
    let mut policy = Policy::new(PolicyName::new("workers").expect("valid"), GroupName::new(GROUP).expect("valid"));
    policy.placement.slots = SLOTS;
    policy.drain_timeout = Duration::ZERO;
    let mut settings = PolicySettings::new(policy);
    settings.discovery.backend = "test".into();
    settings.timing = Timing::new(TTL, None, Duration::from_millis(100)).expect("valid");
    settings
}

fn worker(number: usize, seed: u64, store: &MemoryBackend, clock: &Clock) -> Worker {
    let link = store.link();
    let faults = Faults::new(Arc::new(link.clone()), seed.wrapping_mul(31).wrapping_add(number as u64), BAD_DAY);
    let builder = ShardingFactory::builder().policy(policy()).backend("test", Arc::new(faults.clone())).clock(clock.clone());
    let factory = builder.instance_id(InstanceId::new(format!("w{number}")).expect("valid")).build().expect("a valid factory");
    let service = factory.create("workers").expect("a known policy");
    Worker { link, faults, service, _factory: factory }
}

/// The store's revisions, each with the moment at which it was first seen: what a worker goes by must not have been outdated for long.
#[derive(Default)]
struct History(Vec<(u64, Moment)>);

impl History {
    /// # Panics
    ///
    /// If a worker owns by a view that has been outdated for longer than two TTLs: then two workers could own one slot that long.
    async fn observe(&mut self, store: &MemoryBackend, workers: &[Worker], now: Moment, seed: u64) {
        let group = GroupName::new(GROUP).expect("valid");
        let revision = store.members(&group).await.expect("the store itself has no faults").view.revision();
        if self.0.last().is_none_or(|(last, _)| *last < revision) {
            self.0.push((revision, now));
        }
        for worker in workers {
            let seen = worker.service.ownership();
            let outdated = self.0.iter().find(|(revision, _)| *revision > seen.view().revision()).map(|(_, since)| now.since(*since));
            if let Some(outdated) = outdated.filter(|_| seen.is_live_at(now) && !seen.slots().is_empty()) {
                let id = worker.service.instance_id();
                assert!(
                    outdated <= TTL * 2 + POLL_EVERY,
                    "seed {seed}: {id} owns by a view outdated for {outdated:?}; SHARDWISE_SEED={seed} repeats the faults"
                );
            }
        }
    }
}

async fn bad_day(seed: u64) {
    let clock = Clock::tokio();
    let store = MemoryBackend::new(clock.clone());
    let workers: Vec<_> = (0..WORKERS).map(|number| worker(number, seed, &store, &clock)).collect();
    for worker in &workers {
        let service = worker.service.clone();
        // On such a day a join may take longer than `register_self` waits.
        drop(tokio::spawn(async move { while service.register_self().await.is_err() {} }));
    }
    let (mut draw, mut history, begun) = (StdRng::seed_from_u64(seed), History::default(), clock.now());
    while clock.now().since(begun) < LASTS {
        if draw.random_bool(0.025) {
            workers[draw.random_range(0..WORKERS)].link.set_reachable(draw.random());
        }
        history.observe(&store, &workers, clock.now(), seed).await;
        tokio::time::sleep(POLL_EVERY).await;
    }
    for worker in &workers {
        worker.link.set_reachable(true);
        worker.faults.set_rates(FaultRates::NONE);
    }
    let healed = clock.now();
    while let Err(why) = settled(&workers) {
        let waited = clock.now().since(healed);
        assert!(waited < SETTLES_WITHIN, "seed {seed}: not settled after {waited:?}: {why}; SHARDWISE_SEED={seed} repeats the faults");
        history.observe(&store, &workers, clock.now(), seed).await;
        tokio::time::sleep(POLL_EVERY).await;
    }
}

fn settled(workers: &[Worker]) -> Result<(), String> {
    let reported = |Worker { service, .. }: &Worker| {
        let (state, members) = (service.state(), service.members().members().len());
        format!("{} is {state} and sees {members} members", service.instance_id())
    };
    let well = |Worker { service, .. }: &Worker| service.state() == ServiceState::Active && service.members().members().len() == WORKERS;
    let owned: u32 = workers.iter().map(|worker| worker.service.ownership().slots().len()).sum();
    if workers.iter().all(well) && owned == SLOTS {
        return Ok(());
    }
    Err(format!("{}; {owned} of {SLOTS} slots are owned", workers.iter().map(reported).collect::<Vec<_>>().join(", ")))
}

#[tokio::test(start_paused = true)]
async fn bad_days_end_well() {
    let seeds = match std::env::var("SHARDWISE_SEED") {
        Ok(seed) => vec![seed.parse().expect("SHARDWISE_SEED is a whole number")],
        Err(_) => (0..DAYS).collect(),
    };
    for seed in seeds {
        bad_day(seed).await;
    }
}
