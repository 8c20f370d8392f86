//! Exclusive ownership of the whole library where the backend is not what it was, because everything in it was taken away, and where it
//! refuses the TTL.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use serde_json::json;
use shardwise::discovery::{Discovery, WatchEvent};
use shardwise::{ErrorKind, GroupName, ServiceState, ShardingService};

use crate::exclusive::{Place, share};
use crate::figures;
use crate::meeting::{GROUP, Kind, beside, runtime, until};

const SLOTS: u32 = 16;
const TTL: Duration = Duration::from_secs(3);
const WITHIN: Duration = Duration::from_secs(30);

on_all_at_once!(after_a_wipe_no_member_owns_anything_until_the_floor_is_above_what_was_used; also: nats Nats, postgres Postgres);

fn each(services: &[ShardingService], what: &str, holds: impl Fn(&ShardingService) -> bool) {
    until(what, WITHIN, || {
        let other = services.iter().find(|service| !holds(service));
        other.map_or(Ok(()), |service| Err(format!("{service:?}")))
    });
}

/// Everything that a server stores is taken away, or the file deleted.
async fn wipe(place: &Place) {
    match place {
        Place::Server(_, server) => server.wipe().await,
        Place::Local(folder) => {
            let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
            let (files, beside): (Vec<_>, Vec<_>) = files.partition(|path| path.extension().is_some_and(|end| end == "db"));
            // The database comes last: a worker that finds it gone makes a new one, and what is beside that is not to be removed.
            for file in beside.into_iter().chain(files) {
                let removed = std::fs::remove_file(file);
                assert!(removed.is_ok() || removed.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound));
            }
        }
        Place::Servers(_) => panic!("a single server was started"),
    }
}

/// Follows the group like a process that is not a member, counts the members that it sees, and panics if a revision falls. It does not end.
async fn revisions_rise(outside: Arc<dyn Discovery>, seen: Arc<AtomicUsize>) {
    let (group, mut last) = (GroupName::new(GROUP).unwrap(), 0);
    loop {
        let mut watch = outside.watch(&group, TTL / 4);
        while let Some(event) = watch.next().await {
            if let Ok(WatchEvent::View(snapshot)) = event {
                let revision = snapshot.view.revision();
                assert!(revision >= last, "revision {revision} after {last}");
                last = revision;
                seen.store(snapshot.view.members().len(), Ordering::Relaxed);
            }
        }
        // A watch ends if the reason does not pass by itself.
        tokio::time::sleep(TTL / 4).await;
    }
}

fn hint(service: &ShardingService) -> String {
    service.ownership().not_owning_at(service.now()).map(|nothing| nothing.hint).unwrap_or_default()
}

fn after_a_wipe_no_member_owns_anything_until_the_floor_is_above_what_was_used(kind: Option<Kind>) {
    let outside = runtime("wiped");
    let place = outside.block_on(Place::start(kind));
    // Each with connections that no other one uses, as in a process.
    let processes = ["a", "b", "c"].map(runtime);
    let joins = |process: usize, rules: &str| {
        let runtime = &processes[process];
        let _inside = runtime.enter();
        let service = place.service_by(&format!("slots = {SLOTS}\n{rules}"), ["a", "b", "c"][process], TTL);
        runtime.block_on(service.register_self()).unwrap();
        service
    };
    let mut fleet = vec![joins(0, ""), joins(1, "")];
    until("two share", WITHIN, || share(&fleet.iter().collect::<Vec<_>>()));
    let epochs = |fleet: &[ShardingService]| -> Vec<u64> {
        fleet.iter().flat_map(|service| service.ownership().fences().map(|fence| fence.epoch.get()).collect::<Vec<_>>()).collect()
    };
    let highest = epochs(&fleet).into_iter().max().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let watching = {
        let _inside = outside.enter();
        outside.spawn(revisions_rise(place.backend(), Arc::clone(&seen)))
    };
    // A watch that has ended says why below.
    let sees = |count: usize| match seen.load(Ordering::Relaxed) {
        now if now == count || watching.is_finished() => Ok(()),
        now => Err(format!("it sees {now}")),
    };
    until("the watch from outside sees two", WITHIN, || sees(2));
    outside.block_on(wipe(&place));
    each(&fleet, "both are refused, because the store is another one", |service| {
        service.state() == ServiceState::Refused && hint(service).contains("wiped or replaced")
    });
    for service in &fleet {
        assert!(hint(service).contains("epoch_floor"), "{}", hint(service));
    }
    // For good, and not only until something is tried again.
    let end = Instant::now() + TTL;
    while Instant::now() < end {
        assert!(
            fleet.iter().all(|service| service.state() == ServiceState::Refused && service.ownership().slots().is_empty()),
            "{fleet:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    fleet.push(joins(2, &format!("epoch_floor = {}\n", highest + 1_000)));
    until("all three share", WITHIN, || share(&fleet.iter().collect::<Vec<_>>()));
    let lowest = epochs(&fleet).into_iter().min().unwrap();
    assert!(lowest > highest + 1_000, "epochs go on above the floor: {lowest} after {highest}");
    until("the watch from outside sees three", WITHIN, || sees(3));
    watching.abort();
    let watched = outside.block_on(watching);
    assert!(watched.as_ref().is_err_and(tokio::task::JoinError::is_cancelled), "revisions never fall: {watched:?}");
    figures::note(&json!({ "scene": "wiped", "backend": place.name(), "highest_before": highest, "lowest_after": lowest }));
}

/// Consul alone refuses one: half of it is a lock delay, and that is a minute at most.
#[test]
fn a_ttl_that_the_backend_refuses_is_reported_before_a_join() {
    let _beside = beside();
    let runtime = runtime("refused");
    let _inside = runtime.enter();
    let place = runtime.block_on(Place::start(Some(Kind::Consul)));
    let service = place.service("a", SLOTS, Duration::from_mins(5));
    let error = runtime.block_on(service.register_self()).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable(), service.state()), (ErrorKind::Backend, false, ServiceState::Left), "{error}");
    let said = error.to_string();
    assert!(said.contains("ttl") && said.contains("5m") && said.contains("2m"), "{said}");
}
