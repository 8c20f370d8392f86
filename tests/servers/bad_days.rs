//! A fleet under random faults, from a seed: whatever happens to its calls, watches, leases and connections, no worker owns by a view
//! that has been outdated for longer than two TTLs, and after the faults the fleet settles. `SHARDWISE_SEED=N` repeats one run's draws;
//! when they fall depends on the machine.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise::discovery::{Clock, Discovery, FaultRates, Faults};
use shardwise::{GroupName, Incarnation, InstanceId, MemberState, Moment, ShardingFactory, ShardingService};
use shardwise_testkit::TcpProxy;

use crate::meeting::{GROUP, Kind, Server, Terms, runtime, settled};

const TTL: Duration = Duration::from_secs(2);
const WORKERS: usize = 5;
const LASTS: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(50);
/// For a busy machine: between a change and the poll that finds it.
const ALLOWANCE: Duration = Duration::from_millis(500);
/// Renewing again after the last fault: the longest pause between two tries, a new registration, a view, and its proof; and as much again,
/// for a busy machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

const BAD_DAY: FaultRates = FaultRates {
    fail_before: 0.15,
    fail_after: 0.1,
    delay: 0.3,
    delay_max: Duration::from_secs(1),
    execute_late: 0.05,
    execute_late_max: Duration::from_secs(2),
    lose_lease: 0.05,
    fail_watch: 0.1,
    drop_event: 0.2,
    repeat_event: 0.2,
};

on_servers!(a_bad_day_ends_well: consul Consul, etcd Etcd, nats Nats, postgres Postgres, valkey Valkey);

struct Worker {
    proxy: TcpProxy,
    faults: Faults,
    service: ShardingService,
}

async fn worker(terms: Terms, server: &Server, number: usize, seed: u64) -> Worker {
    let (proxy, id) = (TcpProxy::start(server.address()).await.unwrap(), format!("worker-{number}"));
    let faults = Faults::new(terms.backend(proxy.address()), seed.wrapping_mul(31).wrapping_add(number as u64), BAD_DAY);
    let builder = ShardingFactory::builder().settings(terms.settings(proxy.address(), &id));
    let factory = builder.backend(terms.kind.name(), Arc::new(faults.clone())).build().unwrap();
    Worker { proxy, faults, service: factory.create("workers").unwrap() }
}

/// The members over time, as an observer without faults saw them; each with the revision and the moment at which it was first seen.
struct History {
    outside: Arc<dyn Discovery>,
    known: Vec<(u64, Moment, Vec<Key>)>,
}

type Key = (InstanceId, Incarnation, MemberState);

impl History {
    /// # Panics
    ///
    /// If a worker owns by a view that has been outdated for longer than two TTLs: then two workers could own one slot that long.
    async fn observe(&mut self, workers: &[Worker], seed: u64) {
        let view = self.outside.members(&GroupName::new(GROUP).unwrap()).await.unwrap().view;
        let (now, there) = (Clock::system().now(), keys(&view));
        if self.known.last().is_none_or(|(_, _, last)| *last != there) {
            self.known.push((view.revision(), now, there));
        }
        for Worker { service, .. } in workers {
            let seen = service.ownership();
            let goes_by = keys(seen.view());
            let since = self.known.iter().find(|(revision, _, there)| *revision > seen.view().revision() && *there != goes_by);
            let outdated = since.map(|(_, since, _)| now.since(*since)).filter(|_| seen.is_live_at(now) && !seen.slots().is_empty());
            let id = service.instance_id();
            assert!(
                outdated.is_none_or(|outdated| outdated <= TTL * 2 + ALLOWANCE),
                "{id} owns by a view outdated for {outdated:?}; SHARDWISE_SEED={seed} repeats the faults"
            );
        }
    }
}

fn keys(view: &shardwise::View) -> Vec<Key> {
    view.members().iter().map(|member| (member.instance_id.clone(), member.incarnation, member.state)).collect()
}

fn a_bad_day_ends_well(kind: Kind) {
    let seed = std::env::var("SHARDWISE_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("{}: repeat with SHARDWISE_SEED={seed}", kind.name());
    runtime("bad-day").block_on(bad_day(Terms { kind, ttl: TTL, slots: 64 }, seed));
}

async fn bad_day(terms: Terms, seed: u64) {
    let server = Server::start(terms.kind).await;
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        workers.push(worker(terms, &server, number, seed).await);
    }
    for worker in &workers {
        let service = worker.service.clone();
        // On such a day a join may take longer than `register_self` waits.
        drop(tokio::spawn(async move { while service.register_self().await.is_err() {} }));
    }
    let mut history = History { outside: terms.backend(server.address()), known: Vec::new() };
    let (mut draw, begun) = (StdRng::seed_from_u64(seed), tokio::time::Instant::now());
    while begun.elapsed() < LASTS {
        if draw.random_bool(0.025) {
            workers[draw.random_range(0..WORKERS)].proxy.reset();
        }
        history.observe(&workers, seed).await;
        tokio::time::sleep(POLL_EVERY).await;
    }
    let changes = history.known.len();
    let faults: Vec<_> = workers.iter().map(|worker| worker.faults.happened().values().sum::<u64>()).collect();
    for worker in &workers {
        worker.faults.set_rates(FaultRates::NONE);
    }
    let healed = tokio::time::Instant::now();
    while let Err(why) = agreed(&history, &workers) {
        let waited = healed.elapsed();
        assert!(waited < SETTLES_WITHIN, "not settled after {waited:?}: {why}; SHARDWISE_SEED={seed} repeats the faults");
        history.observe(&workers, seed).await;
        tokio::time::sleep(POLL_EVERY).await;
    }
    // Some sixty each; that one has none is less likely than one in a billion.
    assert!(faults.iter().all(|faults| *faults > 0), "the day was not bad for everybody: {faults:?}; SHARDWISE_SEED={seed} repeats it");
    println!("{}: {faults:?} faults, {changes} changes of the group, settled {:?} after the last", terms.kind.name(), healed.elapsed());
}

/// Whether all are members and own, and all use the view that an observer without faults sees.
fn agreed(history: &History, workers: &[Worker]) -> Result<(), String> {
    let services = || workers.iter().map(|worker| &worker.service);
    settled(services())?;
    let there = history.known.last().map(|(_, _, there)| there.as_slice()).unwrap_or_default();
    let differs = services().find(|service| keys(&service.members()) != there);
    differs.map_or(Ok(()), |service| Err(format!("{} sees other members than {there:?}", service.instance_id())))
}
