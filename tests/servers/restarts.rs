//! The server is killed and comes back with what it had stored, and everything that is stored there is taken away.

use std::time::{Duration, Instant};

use shardwise::{GroupName, ServiceState, ShardingService};

use crate::meeting::{GROUP, Kind, Server, Terms, runtime, settled, until};

const TTL: Duration = Duration::from_secs(3);
const WORKERS: usize = 3;

on_servers!(a_fleet_lives_through_restarts_with_and_without_the_servers_data:
    consul Consul, etcd Etcd, valkey Valkey; soak: nats Nats, postgres Postgres);

/// In which the fleet is whole again, from the first answer of the server that is back. A worker whose record is gone finds that out with
/// its next renewal. Where tables are missing for a moment, a watch that has met that looks again after up to 5 s.
const fn back_max(kind: Kind) -> Duration {
    Duration::from_secs(if matches!(kind, Kind::Nats | Kind::Postgres) { 15 } else { 8 })
}

/// For how long members may differ in their views; no longer than two TTLs anywhere.
fn differ_max(kind: Kind) -> Duration {
    if kind == Kind::Postgres { TTL * 2 } else { TTL }
}

fn a_fleet_lives_through_restarts_with_and_without_the_servers_data(kind: Kind) {
    let runtime = runtime("restarts");
    let _inside = runtime.enter();
    let server = runtime.block_on(Server::start(kind));
    let terms = Terms { kind, ttl: TTL, slots: 64 };
    let workers: Vec<_> = (0..WORKERS).map(|n| terms.service(server.address(), &format!("worker-{n}"))).collect();
    for worker in &workers {
        runtime.block_on(worker.register_self()).unwrap();
    }
    until("all see all", back_max(kind), || settled(workers.iter()));
    for keep_data in [true, false] {
        let held: Vec<_> = workers.iter().map(|worker| worker.ownership().slots().clone()).collect();
        let killed = Instant::now();
        runtime.block_on(async { if keep_data { server.restart().await } else { server.wipe().await } });
        // One that has not seen the group before: the workers' view may be from before the restart.
        let (outside, group) = (terms.backend(server.address()), GroupName::new(GROUP).unwrap());
        let mut doubled = None;
        let back = until("the fleet is whole again", back_max(kind), || {
            doubled = has_double(&workers).then(|| doubled.unwrap_or_else(Instant::now));
            let long = doubled.map(|since: Instant| since.elapsed()).unwrap_or_default();
            assert!(long < differ_max(kind), "two workers have owned one slot for {long:?}");
            let there = runtime.block_on(outside.members(&group)).map_err(|error| error.to_string())?;
            let count = there.view.members().len();
            if count == WORKERS { settled(workers.iter()) } else { Err(format!("the server knows {count} of them")) }
        });
        assert!(workers.iter().all(|worker| worker.state() == ServiceState::Active));
        let same = workers.iter().zip(&held).all(|(worker, held)| worker.ownership().slots() == held);
        assert!(same, "the same members share as before");
        println!("{}, data kept: {keep_data}: whole {back:?} after its first answer, {:?} after the kill", kind.name(), killed.elapsed());
    }
}

/// A process takes a lock of its id while it changes its record. Killed in the middle, it leaves the lock, which counts for 10 s; with a
/// short TTL the next process gave up before that, and so did all after it.
#[test]
fn a_worker_that_was_killed_while_it_changed_its_record_starts_again() {
    let runtime = runtime("killed in the middle");
    let _inside = runtime.enter();
    let server = runtime.block_on(Server::start(Kind::Consul));
    let Server::Consul(consul) = &server else { return };
    runtime.block_on(consul.api("PUT", "/v1/kv/shardwise/guard/worker-0?flags=77", Some(&"x".into()))).unwrap();
    let terms = Terms { kind: Kind::Consul, ttl: Duration::from_secs(2), slots: 64 };
    let worker = terms.service(server.address(), "worker-0");
    runtime.block_on(worker.register_self()).unwrap();
    runtime.block_on(worker.deregister_self()).unwrap();
}

/// Whether some slot is owned twice now.
fn has_double(workers: &[ShardingService]) -> bool {
    let live = workers.iter().map(ShardingService::ownership).filter(|owned| owned.is_live_at(workers[0].now()));
    let (mut sum, mut all) = (0, shardwise::SlotSet::empty(64));
    for owned in live {
        sum += owned.slots().len();
        all = all.union(owned.slots());
    }
    sum > all.len()
}
