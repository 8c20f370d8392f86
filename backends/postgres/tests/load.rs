//! Many members, many changes, and how long they take. `cargo xtask soak` measures the same on an idle machine.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Fleet, PACE, TTL, backend, claimant, durable, eventually, granted, group, live, prepared, registration, slots, view_of};
use futures::future::join_all;
use shardwise_discovery::{Discovery, ErrorKind, Registration};
use shardwise_testkit::Lag;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// These tests measure, so they run one after the other.
static ALONE: Mutex<()> = Mutex::const_new(());

/// From the kill of a member to the view without it at another process, in a group of five processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_takes_a_ttl_and_a_second_at_most() {
    const KILLS: u64 = 3;
    let _alone = ALONE.lock().await;
    let server = durable().await;
    let url = prepared(&server).await.url();
    let processes: Vec<_> = (0..5).map(|_| backend(&url)).collect();
    let mut fleet = Fleet::new();
    for (n, process) in (0..).zip(&processes) {
        fleet.join(process, &format!("steady{n}"), n).await;
    }
    let mut watch = processes[0].watch(&group(), PACE);
    let (lag, mut took) = (Lag::begin(), Vec::new());
    for n in 0..KILLS {
        // Its process goes with it.
        let doomed = backend(&url);
        fleet.join(&doomed, "doomed", 100 + n).await;
        view_of(&mut watch, &["doomed", "steady0", "steady1", "steady2", "steady3", "steady4"]).await;
        tokio::time::sleep(TTL / 7 * u32::try_from(n % 3).unwrap()).await;
        fleet.kill("doomed");
        drop(doomed);
        let killed = Instant::now();
        view_of(&mut watch, &["steady0", "steady1", "steady2", "steady3", "steady4"]).await;
        took.push(killed.elapsed());
    }
    took.sort_unstable();
    println!("gone after {took:?}, TTL {TTL:?}");
    assert_eq!(fleet.lost(), 0, "no living member was evicted");
    let late = lag.allowance();
    assert!(took.iter().all(|took| *took < TTL + Duration::from_millis(1_500) + late), "{took:?}, with {late:?} for this machine");
}

/// From the call of register or deregister to the view at another process's watch. The best median of a few rounds counts, and what this
/// machine itself is late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_and_leaving_are_seen_at_once() {
    const LIMIT: Duration = Duration::from_millis(50);
    let _alone = ALONE.lock().await;
    let server = durable().await;
    let url = prepared(&server).await.url();
    let (here, there) = (backend(&url), backend(&url));
    let mut watch = there.watch(&group(), PACE);
    view_of(&mut watch, &[]).await;
    // Until the listener is there, changes are found by looking.
    tokio::time::sleep(Duration::from_secs(1)).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_claims_settle_soon() {
    let _alone = ALONE.lock().await;
    let server = durable().await;
    let url = prepared(&server).await.url();
    let (here, there) = (backend(&url), backend(&url));
    let (a, b) = (claimant(&here, "a", 1).await, claimant(&there, "b", 2).await);
    let (lag, started) = (Lag::begin(), Instant::now());
    let held = granted(&here, &a, &slots(0..1_024)).await;
    let (acquired, late) = (started.elapsed(), lag.allowance());
    shardwise_discovery::Claims::release(&*here, &a, &held).await.unwrap();
    let released = started.elapsed();
    assert_eq!(granted(&there, &b, &slots(0..1_024)).await.len(), 1_024);
    println!("1,024 claims acquired in {acquired:?}, released after {released:?}, acquired by another after {:?}", started.elapsed());
    assert!(acquired < Duration::from_secs(2) + late, "{acquired:?}, with {late:?} for this machine");
}

/// Three hundred members of sixteen processes: all stay, and none of them is a change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_members_of_sixteen_processes_stay() {
    const MEMBERS: u64 = 300;
    let _alone = ALONE.lock().await;
    let server = durable().await;
    let url = prepared(&server).await.url();
    let processes: Vec<_> = (0..16).map(|_| backend(&url)).collect();
    let ttl = Duration::from_secs(10);
    let started = Instant::now();
    let joining = (0..MEMBERS).zip(processes.iter().cycle()).map(|(n, process)| async move {
        let member = Registration { ttl, ..registration(&format!("m{n:03}"), n) };
        eventually("a registration", async || process.register(&member).await.ok()).await;
        (Arc::clone(process), member)
    });
    let joined = join_all(joining).await;
    let members: Vec<JoinHandle<ErrorKind>> = joined.into_iter().map(|(process, member)| tokio::spawn(live(process, member))).collect();
    println!("{MEMBERS} joined in {:?}", started.elapsed());
    let mut watches: Vec<_> = processes.iter().map(|process| process.watch(&group(), ttl / 4)).collect();
    for watch in &mut watches {
        let full = |view: &shardwise_core::View| view.members().len() as u64 == MEMBERS;
        shardwise_discovery::conformance::view_where(watch, common::PATIENCE, "all", full).await;
    }
    tokio::time::sleep(ttl * 2).await;
    assert!(members.iter().all(|member| !member.is_finished()), "all have renewed in time");
    assert_eq!(processes[0].members(&group()).await.unwrap().view.members().len() as u64, MEMBERS);
    members.iter().for_each(JoinHandle::abort);
}
