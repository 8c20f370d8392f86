//! How fast and how much: joins and leaves, many members, records of the dead. Prints what it measured (`--nocapture`).

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{group, open, registration, renew, until};
use futures::StreamExt;
use futures::future::join_all;
use serde_json::json;
use shardwise_core::View;
use shardwise_discovery::conformance::{ids, view_where};
use shardwise_discovery::{Discovery, ViewSnapshot, WatchEvent, WatchStream};
use shardwise_testkit::{Consul, Lag};

const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);
/// For three hundred members that join at once, each as often as it takes.
const JOINED_WITHIN: Duration = Duration::from_mins(2);

/// The view that fulfils this, and when it arrived.
async fn arrived(watch: &mut WatchStream, what: &str, wanted: impl Fn(&View) -> bool) -> Instant {
    view_where(watch, PATIENCE, what, wanted).await;
    Instant::now()
}

fn show(what: &str, mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() * percent).div_ceil(100).max(1) - 1];
    println!("{what}: {} times, median {:?}, p99 {:?}, worst {:?}", took.len(), at(50), at(99), at(100));
    at(50)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_and_leaves_are_seen_by_others_within_milliseconds() {
    let consul = Consul::single().await.unwrap();
    let (worker, other) = (open(&consul.address()), open(&consul.address()));
    let mut watch = other.watch(&group("g"), TTL / 4);
    view_where(&mut watch, PATIENCE, "a first view", |_| true).await;
    let (lag, mut joins, mut leaves) = (Lag::begin(), Vec::new(), Vec::new());
    for n in 0..100u64 {
        let registration = registration("g", &format!("m{n}"), n, TTL);
        let begun = Instant::now();
        let (registered, seen) =
            tokio::join!(worker.register(&registration), arrived(&mut watch, "the join", |view| !view.members().is_empty()));
        registered.unwrap();
        joins.push(seen - begun);
        let (begun, record_id) = (Instant::now(), registration.record_id());
        let (left, seen) = tokio::join!(worker.deregister(&record_id), arrived(&mut watch, "the leave", |view| view.members().is_empty()));
        left.unwrap();
        leaves.push(seen - begun);
    }
    // This binary runs alone, but its other tests share the machine with it, so the limit is on the median; p99 is only printed.
    let limit = Duration::from_millis(50) + lag.allowance();
    assert!(show("join seen by another process", joins) < limit, "not within {limit:?}");
    assert!(show("leave seen by another process", leaves) < limit, "not within {limit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_members_of_one_process_live_on_one_agent() {
    const MEMBERS: u64 = 300;
    let consul = Consul::single().await.unwrap();
    let (backend, other) = (open(&consul.address()), open(&consul.address()));
    let ttl = Duration::from_secs(9);
    let registrations: Vec<_> = (0..MEMBERS).map(|n| registration("g", &format!("m{n:03}"), n, ttl)).collect();
    let (begun, joined) = (Instant::now(), AtomicU64::new(0));
    // Who is in stays in, also where a busy machine takes longer than the TTL until the last one is.
    join_all(registrations.iter().map(async |one| {
        // As a worker does: on a busy machine one of so many at once may get no answer in time, and asks again.
        while let Err(error) = backend.register(one).await {
            assert!(error.is_retryable() && begun.elapsed() < JOINED_WITHIN, "{error}");
        }
        joined.fetch_add(1, Ordering::Relaxed);
        let mut signed = Instant::now();
        while joined.load(Ordering::Relaxed) < MEMBERS {
            tokio::time::sleep(ttl / 90).await;
            if signed.elapsed() > ttl / 3 {
                signed = Instant::now();
                renew(&backend, one).await;
            }
        }
    }))
    .await;
    println!("{MEMBERS} members joined at once in {:?}", begun.elapsed());
    let mut watch = other.watch(&group("g"), ttl / 4);
    let all = view_where(&mut watch, PATIENCE, "all", |view| view.members().len() == registrations.len()).await;
    // Each renews every third of the TTL, for more than one TTL.
    let begun = Instant::now();
    let renewing = join_all(registrations.iter().zip(0u32..).map(async |(one, n)| {
        tokio::time::sleep(ttl / 3 * n / 300).await;
        let mut took = Vec::new();
        while begun.elapsed() < ttl * 4 / 3 {
            let each = Instant::now();
            renew(&backend, one).await;
            took.push(each.elapsed());
            tokio::time::sleep((ttl / 3).saturating_sub(each.elapsed())).await;
        }
        took
    }));
    let watching = async {
        // The agent syncs its own node's data at times of its choice: the same members at a later revision, a few times at most.
        // There are more than a thousand renewals.
        let mut later = 0;
        while let Some(event) = watch.next().await {
            let WatchEvent::View(ViewSnapshot { view, .. }) = event.unwrap() else { continue };
            assert_eq!(view.members(), all.members(), "a renewal changes nobody");
            later += 1;
            assert!(later <= 5, "a renewal is no change: revision {} after {}", view.revision(), all.revision());
        }
    };
    let took = tokio::select! {
        took = renewing => took,
        () = watching => unreachable!("the watch goes on"),
    };
    show("renewal", took.into_iter().flatten().collect());
    let now = other.members(&group("g")).await.unwrap().view;
    assert_eq!(now.members(), all.members());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_records_of_the_dead_disturb_no_member() {
    const DEAD: usize = 3_000;
    let consul = Consul::single().await.unwrap();
    let backend = open(&consul.address());
    for first in (0..DEAD).step_by(50) {
        let dead = (first..first + 50).map(async |n| {
            let check = json!({ "CheckID": format!("dead-{n}"), "TTL": "60s", "Status": "critical" });
            let body = json!({ "ID": format!("dead-{n}"), "Name": "g", "Check": check });
            consul.api("PUT", "/v1/agent/service/register", Some(&body)).await.unwrap();
        });
        join_all(dead).await;
    }
    let registration = registration("g", "alive", 1, TTL);
    let begun = Instant::now();
    backend.register(&registration).await.unwrap();
    println!("joined among {DEAD} dead in {:?}", begun.elapsed());
    let begun = Instant::now();
    backend.renew(&registration.record_id(), TTL).await.unwrap();
    println!("renewed among {DEAD} dead in {:?}", begun.elapsed());
    let (lag, begun) = (Lag::begin(), Instant::now());
    assert_eq!(ids(&backend.members(&group("g")).await.unwrap().view), ["alive"]);
    let (took, late) = (begun.elapsed(), lag.allowance());
    println!("read among {DEAD} dead in {took:?}");
    assert!(took < Duration::from_secs(2) + late, "{took:?}, with {late:?} for this machine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_joins_and_leaves_one_after_the_other_end_in_the_right_view() {
    let consul = Consul::single().await.unwrap();
    let (worker, other) = (open(&consul.address()), open(&consul.address()));
    let mut watch = other.watch(&group("g"), TTL / 4);
    let registrations: Vec<_> = (0..100).map(|n| registration("g", &format!("m{n:03}"), n, TTL)).collect();
    for (n, one) in registrations.iter().enumerate() {
        worker.register(one).await.unwrap();
        if n >= 10 {
            worker.deregister(&registrations[n - 10].record_id()).await.unwrap();
        }
    }
    let expected: Vec<_> = registrations[90..].iter().map(|one| one.member.instance_id.to_string()).collect();
    view_where(&mut watch, PATIENCE, "the last ten", |view| ids(view) == expected).await;
    until("no guard is left", PATIENCE, async || consul.api("GET", "/v1/kv/shardwise/?keys", None).await.is_err().then_some(())).await;
}
