//! Scenes on a bad network. They need proxies before the server, which a backend's tests bring, so no suite contains them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use super::records::{saying, seen};
use super::{KeptAlive, LASTING, SOON, Scope, ids, view_where};
use crate::{Discovery, Registration, Result, WatchEvent, WatchStream};

/// After how long a caller gives up: before its connection counts as silent.
const LIMIT: Duration = Duration::from_millis(200);
/// How long the proxy holds back such a call.
const SLOWNESS: Duration = Duration::from_millis(700);
const CHANGES: u64 = 1_000;
const MEMBERS_MAX: usize = 100;
/// A member that nothing happens to.
const STEADY: &str = "steady";

/// Clause 8 for calls that were given up and arrive after what their caller has done since: they undo nothing.
///
/// The backend of the scope reaches the server through a proxy; the peer does not. `delay` sets for how long the proxy holds back what is
/// sent to the server.
pub async fn late_calls_undo_nothing(scope: &Scope, delay: impl Fn(Duration)) {
    let (slow, quick, a) = (&scope.backend, &scope.peer, scope.registration("a", 1));
    let record_id = a.record_id();
    let version = async || seen(scope).await.pop().and_then(|(_, _, version)| version);
    for round in 0..3 {
        // Each time the slow backend is connected before its network is slow.
        slow.members(&scope.group).await.expect("members");
        overtaken(&delay, slow.register(&saying(&a, "old")), quick.deregister(&record_id)).await;
        assert_eq!(version().await, None, "round {round}: a late registration adds no record after the deregistration");

        slow.register(&saying(&a, "registered")).await.expect("register");
        overtaken(&delay, slow.update(&saying(&a, "old")), quick.update(&saying(&a, "new"))).await;
        assert_eq!(version().await.as_deref(), Some("new"), "round {round}: a late update replaces no newer one");

        slow.renew(&record_id, a.ttl).await.expect("renew");
        overtaken(&delay, slow.register(&saying(&a, "old")), quick.deregister(&record_id)).await;
        assert_eq!(version().await, None, "round {round}: a late registration does not bring a removed record back");

        slow.register(&saying(&a, "registered")).await.expect("register");
        overtaken(&delay, slow.deregister(&record_id), quick.register(&saying(&a, "again"))).await;
        assert_eq!(version().await.as_deref(), Some("again"), "round {round}: a late deregistration removes no newer record");
        quick.deregister(&record_id).await.expect("deregister");
    }
}

/// The first call is on its way when its caller gives up, and the second one overtakes it. Both have arrived in the end.
async fn overtaken<T, U>(delay: &impl Fn(Duration), given_up: impl Future<Output = T>, next: impl Future<Output = Result<U>>) {
    delay(SLOWNESS);
    assert!(timeout(LIMIT, given_up).await.is_err(), "a call that the proxy holds back for {SLOWNESS:?} had an answer within {LIMIT:?}");
    if let Err(error) = next.await {
        panic!("the call after it: {error}");
    }
    sleep(SLOWNESS * 2).await;
    delay(Duration::ZERO);
}

/// A thousand random joins, leaves, deaths and broken connections. In the end exactly the living are there, at most `within` after the last
/// change; until then no view lacks a member to which nothing has happened.
///
/// Both connections of the scope go through proxies, and `reset` breaks those of the backend (0) or of the peer (1). `outside` is a third
/// connection, without a proxy. The seed repeats the choices.
pub async fn a_thousand_changes(
    scope: &Scope,
    outside: &Arc<dyn Discovery>,
    seed: u64,
    reset: impl Fn(usize),
    within: impl Fn() -> Duration,
) {
    let (mut random, workers) = (StdRng::seed_from_u64(seed), [&scope.backend, &scope.peer]);
    let steady = scope.registration_for(STEADY, 0, scope.ttl);
    outside.register(&steady).await.expect("register");
    let _steady = living(outside, &steady);
    let watching = tokio::spawn(always_shows_steady(outside.watch(&scope.group, scope.ttl / 4)));
    let mut members: BTreeMap<String, (Registration, usize, KeptAlive)> = BTreeMap::new();
    for n in 1..=CHANGES {
        let place = random.random_range(0..workers.len());
        let chosen = members.keys().nth(random.random_range(0..members.len().max(1))).cloned();
        match (random.random_range(0..10), chosen) {
            (0..=4, _) | (_, None) => {
                let joining = scope.registration_for(&format!("m{n:04}"), n, scope.ttl);
                repeated("register", async || workers[place].register(&joining).await).await;
                let kept_alive = living(workers[place], &joining);
                members.insert(joining.member.instance_id.to_string(), (joining, place, kept_alive));
            }
            (5..=7, Some(id)) => {
                let Some((leaving, place, kept_alive)) = members.remove(&id) else { continue };
                drop(kept_alive);
                repeated("deregister", async || workers[place].deregister(&leaving.record_id()).await).await;
            }
            (8, Some(id)) => drop(members.remove(&id)),
            _ => reset(place),
        }
        if members.len() > MEMBERS_MAX {
            members.pop_first();
        }
    }
    let expected: Vec<String> = members.keys().cloned().chain([STEADY.to_owned()]).collect();
    only_these_stay(scope, outside, &expected, within).await;
    assert!(!watching.is_finished(), "the watch has ended, or a view lacked the member to which nothing has happened");
    watching.abort();
}

/// These are there now, and alone soon.
async fn only_these_stay(scope: &Scope, outside: &Arc<dyn Discovery>, expected: &[String], within: impl Fn() -> Duration) {
    let begun = Instant::now();
    loop {
        let seen = ids(&outside.members(&scope.group).await.expect("members").view);
        assert!(expected.iter().all(|id| seen.contains(id)), "{seen:?} lacks some of the living {expected:?}");
        if seen == expected {
            break;
        }
        assert!(begun.elapsed() < within(), "{seen:?} instead of {expected:?}");
        sleep(scope.ttl / 60).await;
    }
    view_where(&mut outside.watch(&scope.group, scope.ttl / 4), SOON, "exactly the living", |view| ids(view) == expected).await;
}

async fn always_shows_steady(mut watch: WatchStream) {
    while let Some(event) = watch.next().await {
        if let Ok(WatchEvent::View(snapshot)) = event {
            let seen = ids(&snapshot.view);
            assert!(seen.iter().any(|id| id == STEADY), "{seen:?} lacks {STEADY}");
        }
    }
}

/// Renews a member as a worker does, each third of its TTL and again soon after a failure, until the guard is dropped.
fn living(backend: &Arc<dyn Discovery>, member: &Registration) -> KeptAlive {
    let (backend, record_id, ttl) = (Arc::clone(backend), member.record_id(), member.ttl);
    KeptAlive(tokio::spawn(async move {
        loop {
            match timeout(ttl / 3, backend.renew(&record_id, ttl)).await {
                Ok(Ok(_)) => sleep(ttl / 3).await,
                Ok(Err(error)) if !error.is_retryable() => panic!("renewing {record_id:?}: {error}"),
                _ => sleep(ttl / 60).await,
            }
        }
    }))
}

/// Makes a call again while connections break.
async fn repeated<T>(what: &str, mut call: impl AsyncFnMut() -> Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begun.elapsed() < LASTING, "{what}: {error}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}
