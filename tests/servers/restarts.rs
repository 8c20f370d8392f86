//! The server is killed and comes back, with what it had stored and with nothing.

use std::time::{Duration, Instant};

use shardwise::{GroupName, ServiceState, ShardingService};

use crate::meeting::{GROUP, Kind, Server, Terms, runtime, settled, until};

const TTL: Duration = Duration::from_secs(3);
const WORKERS: usize = 3;
/// From the first answer of the server that is back. A worker whose record is gone finds that out with its next renewal.
const BACK_MAX: Duration = Duration::from_secs(8);
/// Members may differ in their views for that long.
const DIFFER_MAX: Duration = TTL;

on_both!(a_fleet_lives_through_restarts_with_and_without_the_servers_data);

fn a_fleet_lives_through_restarts_with_and_without_the_servers_data(kind: Kind) {
    let runtime = runtime("restarts");
    let _inside = runtime.enter();
    let server = runtime.block_on(Server::start(kind));
    let terms = Terms { kind, ttl: TTL, slots: 64 };
    let workers: Vec<_> = (0..WORKERS).map(|n| terms.service(server.address(), &format!("worker-{n}"))).collect();
    for worker in &workers {
        runtime.block_on(worker.register_self()).unwrap();
    }
    until("all see all", BACK_MAX, || settled(workers.iter()));
    for keep_data in [true, false] {
        let held: Vec<_> = workers.iter().map(|worker| worker.ownership().slots().clone()).collect();
        let killed = Instant::now();
        runtime.block_on(server.restart(keep_data));
        let mut doubled = None;
        let back = until("the fleet is whole again", BACK_MAX, || {
            doubled = has_double(&workers).then(|| doubled.unwrap_or_else(Instant::now));
            let long = doubled.map(|since: Instant| since.elapsed()).unwrap_or_default();
            assert!(long < DIFFER_MAX, "two workers have owned one slot for {long:?}");
            // A first look: the workers' view may be from before the restart.
            let group = GroupName::new(GROUP).unwrap();
            let there = runtime.block_on(terms.backend(server.address()).members(&group)).map_err(|error| error.to_string())?;
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
