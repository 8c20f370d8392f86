//! A thousand joins, leaves, kills and broken connections. `cargo xtask soak churn` runs it again and again.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{PACE, TTL, backend, durable, eventually, group, ids, live, prepared, registration, view_of};
use futures::StreamExt;
use shardwise_discovery::{Discovery, ErrorKind, Registration, WatchEvent};
use shardwise_testkit::{Lag, TcpProxy};
use tokio::task::JoinHandle;

/// Random joins, leaves, kills and broken connections: in the end exactly the living are there, and in between no view missed anybody for
/// whom nothing had happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_member_is_lost_and_none_is_made_up_in_a_thousand_changes() {
    const CHANGES: u64 = 1_000;
    let seed = std::env::var("SHARDWISE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("repeat with SHARDWISE_SEED={seed}");
    let mut state = seed;
    // Enough dice for a test: splitmix64.
    let mut dice = |sides: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    };
    let database = prepared(&durable().await).await;
    let at = database.server().socket_addr();
    let proxies = [TcpProxy::start(at).await.unwrap(), TcpProxy::start(at).await.unwrap()];
    let workers = [backend(&database.url_at(proxies[0].address())), backend(&database.url_at(proxies[1].address()))];
    let outside = backend(&database.url());
    let mut watch = outside.watch(&group(), PACE);
    view_of(&mut watch, &[]).await;
    // One who is never touched.
    outside.register(&registration("steady", 0)).await.unwrap();
    let steady = tokio::spawn(live(Arc::clone(&outside), registration("steady", 0)));
    view_of(&mut watch, &["steady"]).await;
    let watching = tokio::spawn(async move {
        while let Some(event) = watch.next().await {
            if let Ok(WatchEvent::View(snapshot)) = event {
                assert!(ids(&snapshot.view).contains(&"steady"), "nothing has happened to it");
            }
        }
    });
    let mut living: BTreeMap<String, (Registration, usize, JoinHandle<ErrorKind>)> = BTreeMap::new();
    for n in 1..=CHANGES {
        let (kind, place) = (dice(10), usize::try_from(dice(2)).unwrap());
        let chosen = (!living.is_empty()).then(|| usize::try_from(dice(living.len() as u64)).unwrap());
        let chosen = chosen.and_then(|nth| living.keys().nth(nth).cloned());
        match (kind, chosen) {
            (0..=4, _) | (_, None) => {
                let joining = registration(&format!("m{n}"), n);
                eventually("a registration", async || workers[place].register(&joining).await.ok()).await;
                let task = tokio::spawn(live(Arc::clone(&workers[place]), joining.clone()));
                living.insert(joining.member.instance_id.to_string(), (joining, place, task));
            }
            (5..=7, Some(id)) => {
                let (leaving, place, task) = living.remove(&id).unwrap();
                task.abort();
                eventually("a farewell", async || workers[place].deregister(&leaving.record_id()).await.ok()).await;
            }
            (8, Some(id)) => living.remove(&id).unwrap().2.abort(),
            _ => proxies[place].reset(),
        }
        if living.len() > 100 {
            let id = living.keys().next().cloned().unwrap();
            living.remove(&id).unwrap().2.abort();
        }
    }
    let expected = || living.keys().map(String::as_str).chain(["steady"]).collect::<Vec<_>>();
    let mut view = outside.members(&group()).await.unwrap().view;
    assert!(expected().iter().all(|id| ids(&view).contains(id)), "the living are there all the time");
    let (lag, started) = (Lag::begin(), Instant::now());
    while ids(&view) != expected() {
        assert!(started.elapsed() < TTL * 2 + Duration::from_secs(2) + lag.allowance(), "{:?} instead of {:?}", ids(&view), expected());
        tokio::time::sleep(Duration::from_millis(50)).await;
        view = outside.members(&group()).await.unwrap().view;
    }
    assert!(!steady.is_finished() && !watching.is_finished() && living.values().all(|(_, _, task)| !task.is_finished()));
    watching.abort();
    steady.abort();
    for (_, _, task) in living.into_values() {
        task.abort();
    }
}
