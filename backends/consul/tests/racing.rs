//! Who gets an id: racing processes, guards that were left behind, and what else may have the id on an agent.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{group, open, registration, renew, settle, until};
use serde_json::{Value, json};
use shardwise_core::View;
use shardwise_discovery::conformance::{ids, view_where};
use shardwise_discovery::{Discovery, ErrorKind};
use shardwise_testkit::Consul;
use tokio::process::{Child, Command};

const TTL: Duration = Duration::from_secs(2);
/// The address of a racing process's agent; unset in the tests themselves.
const ADDRESS: &str = "SHARDWISE_TEST_RACER_ADDRESS";
const INCARNATION: &str = "SHARDWISE_TEST_RACER_INCARNATION";
/// When to start, as nanoseconds of the clock that all processes of the machine share.
const START_AT: &str = "SHARDWISE_TEST_RACER_START_AT";

/// Not a test: what a racing process runs. Says `won` or `lost the race`; a winner keeps renewing until it is killed.
#[tokio::test]
async fn racer_process() {
    let (Ok(address), Ok(incarnation), Ok(start)) = (std::env::var(ADDRESS), std::env::var(INCARNATION), std::env::var(START_AT)) else {
        return;
    };
    let (clock, backend) = (shardwise_discovery::Clock::system(), open(&address));
    let registration = registration("race", "the one", incarnation.parse().unwrap(), TTL);
    let start = shardwise_core::Moment::from_nanos(start.parse().unwrap());
    tokio::time::sleep(start.since(clock.now())).await;
    while let Err(error) = backend.register(&registration).await {
        if matches!(error.kind(), ErrorKind::InUse { .. }) {
            std::process::exit(3);
        }
        // On a busy machine the other one may hold the guard for longer than one waits for it.
        assert!(error.is_retryable(), "{error}");
    }
    for _ in 0..10 {
        renew(&backend, &registration).await;
        tokio::time::sleep(TTL / 10).await;
    }
    backend.deregister(&registration.record_id()).await.unwrap();
    std::process::exit(4);
}

fn racer(address: &str, incarnation: u64, start_at: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "racer_process", "--nocapture"]).env(ADDRESS, address).env(INCARNATION, incarnation.to_string());
    command.env(START_AT, start_at.to_string()).stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

/// Of two processes that start at one moment exactly one wins, and the winner keeps its record.
async fn two_race(left: &Consul, right: &Consul) {
    for round in 0..8u64 {
        let start = shardwise_discovery::Clock::system().now().plus(Duration::from_millis(500)).as_nanos();
        let racers = [racer(&left.address(), 2 * round + 1, start), racer(&right.address(), 2 * round + 2, start)];
        let ends = futures::future::join_all(racers.map(async |mut racer| racer.wait().await.unwrap().code())).await;
        let mut ends: Vec<_> = ends.into_iter().map(Option::unwrap).collect();
        ends.sort_unstable();
        assert_eq!(ends, [3, 4], "round {round}: one loses (3), one wins and renews to the end (4)");
    }
}

#[tokio::test]
async fn of_two_racing_processes_on_one_agent_one_wins() {
    let consul = Consul::single().await.unwrap();
    two_race(&consul, &consul).await;
}

#[tokio::test]
async fn of_two_racing_processes_on_two_agents_one_wins() {
    let server = Consul::single().await.unwrap();
    let (left, right) = (server.agent("left").await.unwrap(), server.agent("right").await.unwrap());
    two_race(&left, &right).await;
}

#[tokio::test]
async fn a_rival_on_another_agent_is_known_as_alive_after_its_ttl() {
    let server = Consul::single().await.unwrap();
    let (left, right) = (server.agent("left").await.unwrap(), server.agent("right").await.unwrap());
    let (holder, rival) = (open(&left.address()), open(&right.address()));
    let held = registration("g", "a", 1, TTL);
    holder.register(&held).await.unwrap();
    let stamp = async || match rival.register(&registration("g", "a", 2, TTL)).await.unwrap_err().kind() {
        ErrorKind::InUse { stamp, .. } => *stamp,
        other => panic!("{other:?}"),
    };
    let (first, begun) = (stamp().await, Instant::now());
    until("the stamp moves", TTL * 5, async || {
        holder.renew(&held.record_id(), TTL).await.unwrap();
        (stamp().await != first).then_some(())
    })
    .await;
    assert!(begun.elapsed() >= TTL, "before that it may be dead");
}

/// The lock of an id is one for all groups. Two members of equal incarnations took it from each other, and one replaced the other's
/// service.
#[tokio::test]
async fn members_of_two_groups_with_one_id_and_equal_incarnations_keep_their_records() {
    let consul = Consul::single().await.unwrap();
    let join = async |group: &str, incarnation: u64| {
        let (backend, one) = (open(&consul.address()), registration(group, "a", incarnation, TTL));
        until("it is registered", TTL * 5, async || backend.register(&one).await.ok()).await;
        renew(&backend, &one).await;
        (backend, one)
    };
    for round in 1..=20 {
        for (backend, one) in <[_; 2]>::from(tokio::join!(join("g", round), join("h", round))) {
            renew(&backend, &one).await;
            backend.deregister(&one.record_id()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_guard_left_behind_is_waited_out_and_taken_over() {
    let consul = Consul::single().await.unwrap();
    let value = json!("x");
    consul.api("PUT", "/v1/kv/shardwise/guard/a?flags=77", Some(&value)).await.unwrap();
    let (backend, begun) = (open(&consul.address()), Instant::now());
    let registration = registration("g", "a", 1, TTL);
    until("the id can be had", Duration::from_secs(30), async || match backend.register(&registration).await {
        Ok(_) => Some(()),
        Err(error) => {
            assert!(error.is_retryable() && error.to_string().contains("another process is changing"), "{error}");
            None
        }
    })
    .await;
    assert!(begun.elapsed() > Duration::from_secs(9), "its holder might have been in the middle");
    assert_eq!(keys(&consul).await, Vec::<String>::new(), "no guard stays");
}

async fn keys(consul: &Consul) -> Vec<String> {
    let txn = json!([{"KV": {"Verb": "get-tree", "Key": "shardwise/"}}]);
    let answer = consul.api("PUT", "/v1/txn", Some(&txn)).await.unwrap();
    let results = answer["Results"].as_array().cloned().unwrap_or_default();
    results.iter().map(|result| result["KV"]["Key"].as_str().unwrap().to_owned()).collect()
}

async fn agent_ids(consul: &Consul) -> Vec<String> {
    let Value::Object(services) = consul.api("GET", "/v1/agent/services", None).await.unwrap() else { panic!("no map") };
    services.into_iter().map(|(id, _)| id).collect()
}

async fn view(backend: &impl Discovery, name: &str) -> Vec<String> {
    let snapshot = backend.members(&group(name)).await.unwrap();
    snapshot.view.members().iter().map(|member| member.instance_id.to_string()).collect()
}

#[tokio::test]
async fn names_and_ids_are_consuls_own_unchanged() {
    let consul = Consul::single().await.unwrap();
    let backend = open(&consul.address());
    let mut registration = registration("outbox publishers/🦀", "rack 1/wörker", 1, TTL);
    registration.member.address = Some(shardwise_core::Address { host: "10.1.2.3".into(), port: 4711 });
    backend.register(&registration).await.unwrap();
    let services = consul.api("GET", "/v1/agent/services", None).await.unwrap();
    let service = &services["rack 1/wörker"];
    assert_eq!(
        (&service["Service"], &service["Address"], &service["Port"]),
        (&json!("outbox publishers/🦀"), &json!("10.1.2.3"), &json!(4711))
    );
    backend.deregister(&registration.record_id()).await.unwrap();
    assert_eq!(agent_ids(&consul).await, Vec::<String>::new());
}

#[tokio::test]
async fn one_id_in_two_groups_on_one_agent_is_two_members() {
    let consul = Consul::single().await.unwrap();
    let backend = open(&consul.address());
    let (first, second) = (registration("first", "w1", 1, TTL), registration("second", "w1", 1, TTL));
    let (one, two) = tokio::join!(backend.register(&first), backend.register(&second));
    one.unwrap();
    two.unwrap();
    backend.renew(&first.record_id(), TTL).await.unwrap();
    backend.renew(&second.record_id(), TTL).await.unwrap();
    assert_eq!((view(&backend, "first").await, view(&backend, "second").await), (vec!["w1".to_owned()], vec!["w1".to_owned()]));
    backend.deregister(&first.record_id()).await.unwrap();
    assert_eq!((view(&backend, "first").await, view(&backend, "second").await), (vec![], vec!["w1".to_owned()]));
    backend.deregister(&second.record_id()).await.unwrap();
    assert_eq!(agent_ids(&consul).await, Vec::<String>::new());
}

#[tokio::test]
async fn ids_that_differ_in_case_are_two_members() {
    let consul = Consul::single().await.unwrap();
    let backend = open(&consul.address());
    let (large, small) = (registration("g", "Worker", 1, TTL), registration("g", "worker", 2, TTL));
    backend.register(&large).await.unwrap();
    backend.register(&small).await.unwrap();
    for one in [&large, &small] {
        backend.renew(&one.record_id(), TTL).await.unwrap();
    }
    assert_eq!(view(&backend, "g").await, ["Worker", "worker"]);
}

#[tokio::test]
async fn another_fleets_worker_is_left_out_and_its_id_is_not_overwritten() {
    let consul = Consul::single().await.unwrap();
    let backend = open(&consul.address());
    let theirs = json!({ "ID": "a", "Name": "g", "Check": { "CheckID": "theirs", "TTL": "60s", "Status": "passing" } });
    consul.api("PUT", "/v1/agent/service/register", Some(&theirs)).await.unwrap();
    assert_eq!(view(&backend, "g").await, Vec::<String>::new(), "it has no record of ours");
    assert_eq!(foreign(&backend, "g").await, ["a"]);
    let error = backend.register(&registration("g", "a", 1, TTL)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InUse { .. }), "{error}");
    backend.register(&registration("g", "b", 1, TTL)).await.unwrap();
    assert_eq!(view(&backend, "g").await, ["b"]);
    assert_eq!(foreign(&backend, "g").await, ["a"]);
    assert_eq!(foreign(&backend, "other").await, Vec::<String>::new());
}

async fn foreign(backend: &impl Discovery, name: &str) -> Vec<String> {
    backend.members(&group(name)).await.unwrap().view.foreign().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_watch_reports_when_another_fleets_worker_comes_and_stops_passing() {
    let server = Consul::single().await.unwrap();
    let (left, right) = (server.agent("left").await.unwrap(), server.agent("right").await.unwrap());
    let backend = open(&left.address());
    let ours = registration("g", "b", 1, Duration::from_mins(1));
    backend.register(&ours).await.unwrap();
    let mut watch = backend.watch(&group("g"), Duration::from_millis(500));
    let within = Duration::from_secs(20);
    view_where(&mut watch, within, "nobody foreign", |view| view.foreign().is_empty()).await;
    let long = "x".repeat(256);
    for (agent, id) in [(&left, "a"), (&right, "a"), (&right, "c"), (&right, long.as_str())] {
        let check = json!({ "CheckID": format!("theirs {id}"), "TTL": "60s", "Status": "passing" });
        let theirs = json!({ "ID": id, "Name": "g", "Check": check });
        agent.api("PUT", "/v1/agent/service/register", Some(&theirs)).await.unwrap();
    }
    let shown = |view: &View| view.foreign().iter().map(ToString::to_string).collect::<Vec<_>>();
    let both = view_where(&mut watch, within, "each id once", |view| shown(view) == ["a", "c"]).await;
    assert_eq!(ids(&both), ["b"]);
    right.api("PUT", "/v1/agent/check/fail/theirs%20c", None).await.unwrap();
    let one = view_where(&mut watch, within, "who does not pass is gone", |view| shown(view) == ["a"]).await;
    assert!(one.revision() > both.revision());
    assert_ne!(one.fingerprint(), both.fingerprint());
}

#[tokio::test]
async fn what_a_late_process_does_leaves_its_successor_alone() {
    let consul = Consul::single().await.unwrap();
    settle(&consul).await;
    let (late, next) = (open(&consul.address()), open(&consul.address()));
    let (old, new) = (registration("g", "a", 1, TTL), registration("g", "a", 2, TTL));
    late.register(&old).await.unwrap();
    until("the successor has the id", TTL * 5, async || next.register(&new).await.ok()).await;
    // The former one wakes up again.
    assert_eq!(*late.renew(&old.record_id(), TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(*late.update(&old).await.unwrap_err().kind(), ErrorKind::Lost);
    late.deregister(&old.record_id()).await.unwrap();
    assert!(matches!(late.register(&old).await.unwrap_err().kind(), ErrorKind::InUse { .. }));
    next.renew(&new.record_id(), TTL).await.unwrap();
    assert_eq!(next.members(&group("g")).await.unwrap().view.members()[0].incarnation.get(), 2);
}
