//! Many members, many changes, and how long they take. `cargo xtask soak` measures the same on an idle machine.

mod common;

use std::time::{Duration, Instant};

use common::{Fleet, PACE, TTL, Watching, backend, group, ids, registration, valkey, view_of};
use futures::future::join_all;
use shardwise_discovery::{Discovery, Registration};
use shardwise_testkit::Lag;
use tokio::sync::Mutex;

/// These tests measure, so they run one after the other.
static ALONE: Mutex<()> = Mutex::const_new(());

/// From the kill of a member to the view without it at another process, in a group of five processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_takes_little_more_than_a_ttl() {
    const KILLS: u64 = 3;
    const STEADY: [&str; 5] = ["steady0", "steady1", "steady2", "steady3", "steady4"];
    let _alone = ALONE.lock().await;
    let server = valkey().await;
    let processes: Vec<_> = STEADY.iter().map(|_| backend(&server.address())).collect();
    let mut fleet = Fleet::new();
    for ((n, process), id) in (0..).zip(&processes).zip(STEADY) {
        fleet.join(process, id, n).await;
    }
    let mut watch = processes[0].watch(&group(), PACE);
    let (lag, mut took) = (Lag::begin(), Vec::new());
    for n in 0..KILLS {
        // Its process goes with it.
        let doomed = backend(&server.address());
        fleet.join(&doomed, "doomed", 100 + n).await;
        view_of(&mut watch, &[&["doomed"][..], &STEADY].concat()).await;
        tokio::time::sleep(TTL / 7 * u32::try_from(n % 3).unwrap()).await;
        fleet.kill("doomed");
        drop(doomed);
        let killed = Instant::now();
        view_of(&mut watch, &STEADY).await;
        took.push(killed.elapsed());
    }
    took.sort_unstable();
    println!("gone after {took:?}, TTL {TTL:?}");
    assert_eq!(fleet.lost(), 0, "no living member was evicted");
    let late = lag.allowance();
    assert!(took.iter().all(|took| *took < TTL + Duration::from_millis(600) + late), "{took:?}, with {late:?} for this machine");
}

/// From the call of register or deregister to the view at another process's watch. The best median of a few rounds counts, and what this
/// machine itself is late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_and_leaving_are_seen_at_once() {
    const LIMIT: Duration = Duration::from_millis(25);
    let _alone = ALONE.lock().await;
    let server = valkey().await;
    let (here, there) = (backend(&server.address()), backend(&server.address()));
    let mut watch = there.watch(&group(), PACE);
    view_of(&mut watch, &[]).await;
    let (lag, mut best) = (Lag::begin(), Duration::MAX);
    for round in 0..5 {
        let mut took = Vec::new();
        for n in 0..50 {
            let a = registration("a", round * 100 + n);
            let started = Instant::now();
            let (answer, _) = tokio::join!(here.register(&a), view_of(&mut watch, &["a"]));
            answer.unwrap();
            took.push(started.elapsed());
            here.deregister(&a.record_id()).await.unwrap();
            view_of(&mut watch, &[]).await;
        }
        took.sort_unstable();
        println!("p50 {:?}, worst {:?}", took[took.len() / 2], took[took.len() - 1]);
        best = best.min(took[took.len() / 2]);
        if best < LIMIT {
            return;
        }
    }
    let late = lag.allowance();
    assert!(best < LIMIT + late, "p50 {best:?}, with {late:?} for this machine");
}

/// Three hundred members of sixteen processes: all stay, and none of them is a change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_members_of_sixteen_processes_stay() {
    const MEMBERS: u64 = 300;
    let _alone = ALONE.lock().await;
    let server = valkey().await;
    let processes: Vec<_> = (0..16).map(|_| backend(&server.address())).collect();
    let ttl = Duration::from_secs(10);
    let members: Vec<Registration> = (0..MEMBERS).map(|n| Registration { ttl, ..registration(&format!("m{n:03}"), n) }).collect();
    let joined = join_all(members.iter().zip(processes.iter().cycle()).map(|(member, process)| process.register(member))).await;
    assert!(joined.iter().all(Result::is_ok), "{joined:?}");
    let watching = Watching::of(processes[0].watch(&group(), ttl / 3));
    let all: Vec<String> = members.iter().map(|member| member.member.instance_id.as_str().to_owned()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let revision = watching.shows(&all).await;
    let begun = Instant::now();
    while begun.elapsed() < ttl * 2 {
        let renewed = members
            .iter()
            .zip(processes.iter().cycle())
            .map(|(member, process)| async move { process.renew(&member.record_id(), ttl).await });
        assert!(join_all(renewed).await.iter().all(Result::is_ok), "every renewal in time is answered");
        tokio::time::sleep(ttl / 3).await;
    }
    let view = processes[1].members(&group()).await.unwrap().view;
    assert_eq!((ids(&view).len(), view.revision()), (all.len(), revision), "renewals are no changes");
}
