//! A leaver is seen leaving, on every backend: of two hundred none is taken for dead, and a dead member is not taken for a leaver.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use shardwise::{Observer, Settings, ShardingFactory, ShardingService};

use crate::exclusive::Place;
use crate::meeting::{Kind, runtime, until};

const LEAVES: usize = 200;
/// So many live and leave at a time.
const AT_A_TIME: usize = 25;
const SETTLED_WITHIN: Duration = Duration::from_mins(2);
/// No leaver's lease ends before it has left.
const TTL: Duration = Duration::from_secs(10);

on_all_at_once!(two_hundred_leave_and_no_member_has_vanished; soak: nats Nats, postgres Postgres, valkey Valkey);

fn two_hundred_leave_and_no_member_has_vanished(kind: Option<Kind>) {
    let runtime = runtime("departures");
    let place = runtime.block_on(Place::start(kind));
    let _inside = runtime.enter();
    // Valkey holds no claims.
    let ownership = if kind == Some(Kind::Valkey) { "eventual" } else { "exclusive" };
    let rules = format!("ownership = \"{ownership}\"\nslots = 64\n");
    let factory = |id: &str| ShardingFactory::from_settings(Settings::from_toml_str(&place.settings_by(&rules, id, TTL)).unwrap()).unwrap();
    let observer = runtime.block_on(factory("observer").observe("workers")).unwrap();
    for round in 0..LEAVES / AT_A_TIME {
        let factories: Vec<ShardingFactory> = (0..AT_A_TIME).map(|n| factory(&format!("w-{round}-{n}"))).collect();
        let services: Vec<ShardingService> = factories.iter().map(|factory| factory.create("workers").unwrap()).collect();
        let joined = runtime.block_on(join_all(services.iter().map(ShardingService::register_self)));
        assert!(joined.iter().all(Result::is_ok), "{joined:?}");
        seen(&observer, AT_A_TIME);
        // Not all in the same moment.
        let leave = async |(n, service): (usize, &ShardingService)| {
            tokio::time::sleep(Duration::from_millis(7 * n as u64)).await;
            service.deregister_self().await
        };
        let left = runtime.block_on(join_all(services.iter().enumerate().map(leave)));
        assert!(left.iter().all(Result::is_ok), "{left:?}");
        seen(&observer, 0);
    }
    // A member whose record the backend did not show for a moment meanwhile is another matter: how it went last is its leaving.
    let departures = observer.departures();
    let last: BTreeMap<_, _> = departures.iter().map(|gone| (&gone.instance_id, gone.vanished())).collect();
    let vanished: Vec<_> = last.iter().filter(|(_, vanished)| **vanished).collect();
    let missed = departures.iter().filter(|gone| gone.vanished()).count();
    println!("{}: {missed} were not shown for a moment while they lived", place.name());
    assert!(vanished.is_empty(), "{}: {} of {LEAVES} are taken for dead: {vanished:?}", place.name(), vanished.len());
    assert_eq!(last.len(), LEAVES, "{}", place.name());
}

fn seen(observer: &Observer, members: usize) {
    until("the observer sees them", SETTLED_WITHIN, || {
        let now = observer.members().members().len();
        if now == members { Ok(()) } else { Err(format!("it sees {now} members instead of {members}")) }
    });
}
