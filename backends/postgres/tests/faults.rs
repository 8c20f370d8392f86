//! Servers that are stopped, killed and restarted, connections that break, rows that are edited: no living member is evicted, and watches
//! go on.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    ClaimsFollower, Fleet, PACE, TTL, backend, claimant, database, durable, eventually, granted, group, ids, lasting, prepared,
    registration, slots, view_of,
};
use futures::StreamExt;
use shardwise_discovery::{Clock, Discovery, ErrorKind, WatchEvent, WatchStream};
use shardwise_testkit::{Lag, TcpProxy};
use tokio::task::JoinHandle;

const MEMBERS: [&str; 4] = ["a", "b", "c", "d"];

/// Reads a watch all the time; fails if a view lacks a member, or a revision falls.
fn always(mut watch: WatchStream, expected: &'static [&'static str]) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut revision = 0;
        while let Some(event) = watch.next().await {
            if let Ok(WatchEvent::View(snapshot)) = event {
                assert_eq!(ids(&snapshot.view), expected);
                assert!(snapshot.view.revision() >= revision && snapshot.proven <= Clock::system().now());
                revision = snapshot.view.revision();
            }
        }
    })
}

/// Two processes with two members each, and one that watches.
async fn fleet(urls: [&str; 3]) -> (Fleet, JoinHandle<()>) {
    let (one, two, outside) = (backend(urls[0]), backend(urls[1]), backend(urls[2]));
    let mut fleet = Fleet::new();
    for (incarnation, id) in (1..).zip(MEMBERS) {
        fleet.join(if incarnation % 2 == 0 { &two } else { &one }, id, incarnation).await;
    }
    let mut watch = outside.watch(&group(), PACE);
    view_of(&mut watch, &MEMBERS).await;
    (fleet, always(watch, &MEMBERS))
}

/// Stopped for two TTLs, and then with times in its tables that are far in the past and in the future.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stood_still_and_a_clock_that_was_set_evict_no_member() {
    let server = durable().await;
    let database = prepared(&server).await;
    let url = database.url();
    let (fleet, watching) = fleet([&url, &url, &url]).await;
    for stopped in [TTL / 2, TTL * 2] {
        tokio::time::sleep(TTL).await;
        server.freeze().unwrap();
        tokio::time::sleep(stopped).await;
        server.thaw().unwrap();
        tokio::time::sleep(TTL * 2).await;
    }
    for time in ["'-infinity'", "clock_timestamp() - interval '1 day'", "clock_timestamp() + interval '1 day'", "'infinity'"] {
        let set = format!("UPDATE shardwise.member SET renewed_at = {time}; UPDATE shardwise.observer SET seen_at = {time}");
        database.execute(&set).await.unwrap();
        tokio::time::sleep(TTL).await;
    }
    assert_eq!((fleet.lost(), watching.is_finished()), (0, false));
    watching.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_and_restarted_finds_all_members_again() {
    let server = durable().await;
    let url = prepared(&server).await.url();
    let (fleet, watching) = fleet([&url, &url, &url]).await;
    for _ in 0..3 {
        server.restart().await.unwrap();
        tokio::time::sleep(TTL).await;
    }
    assert_eq!((fleet.lost(), watching.is_finished()), (0, false));
    watching.abort();
}

/// One process of three is cut off for longer than a TTL: its members are evicted, by the others alone, and register again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_cut_off_is_evicted_and_evicts_no_member() {
    let database = database().await;
    let proxy = TcpProxy::start(database.server().socket_addr()).await.unwrap();
    let (cut, open, outside) = (backend(&database.url_at(proxy.address())), backend(&database.url()), backend(&database.url()));
    let mut fleet = Fleet::new();
    fleet.join(&cut, "cut", 1).await;
    fleet.join(&open, "open", 2).await;
    let mut watch = outside.watch(&group(), PACE);
    view_of(&mut watch, &["cut", "open"]).await;
    proxy.cut_both();
    view_of(&mut watch, &["open"]).await;
    proxy.heal().await.unwrap();
    view_of(&mut watch, &["cut", "open"]).await;
    assert!(fleet.lost() >= 1, "its record was evicted");
}

/// The connections of all are reset again and again: no member is evicted, and every watch goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_cost_no_member() {
    let database = database().await;
    let proxy = TcpProxy::start(database.server().socket_addr()).await.unwrap();
    let url = database.url_at(proxy.address());
    let (fleet, watching) = fleet([&url, &url, &url]).await;
    let beside = backend(&url);
    for _ in 0..20 {
        proxy.reset();
        tokio::time::sleep(TTL / 10).await;
        // On a busy machine connections come back later.
        eventually("an answer", async || beside.members(&group()).await.ok()).await;
    }
    tokio::time::sleep(TTL * 2).await;
    assert_eq!((fleet.lost(), watching.is_finished()), (0, false));
    watching.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_that_is_lost_costs_one_poll() {
    let database = database().await;
    let (here, there) = (backend(&database.url()), backend(&database.url()));
    let mut watch = there.watch(&group(), PACE);
    view_of(&mut watch, &[]).await;
    // From here on no listener gets a notification: each listener loses its connection as soon as it has one.
    let deaf = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()";
    let lag = Lag::begin();
    for n in 0..5 {
        database.execute(deaf).await.unwrap();
        let a = registration("a", n);
        here.register(&a).await.unwrap();
        let begun = Instant::now();
        view_of(&mut watch, &["a"]).await;
        let (took, late) = (begun.elapsed(), lag.allowance());
        assert!(took < Duration::from_secs(3) + late, "{took:?}, with {late:?} for this machine");
        here.deregister(&a.record_id()).await.unwrap();
        view_of(&mut watch, &[]).await;
    }
}

/// A row that is deleted by hand: its member registers again, and a member that is dead is gone for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_were_deleted_by_hand_are_noticed() {
    let database = database().await;
    let (here, there) = (backend(&database.url()), backend(&database.url()));
    here.register(&lasting("dead", 1)).await.unwrap();
    let mut watch = there.watch(&group(), PACE);
    view_of(&mut watch, &["dead"]).await;
    database.execute("DELETE FROM shardwise.member").await.unwrap();
    view_of(&mut watch, &[]).await;
    let error = here.renew(&lasting("dead", 1).record_id(), TTL).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost);
}

/// All die at once. Who comes then is alone among the dead, waits for the claims that it wants, and has them a TTL later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_after_all_have_died_takes_over_within_a_ttl() {
    let database = database().await;
    let mut dead = Vec::new();
    {
        let gone = backend(&database.url());
        for n in 0..30 {
            let member = shardwise_discovery::Registration { claims: true, ..registration(&format!("m{n:02}"), n) };
            gone.register(&member).await.unwrap();
            dead.push(granted(&gone, &member.record_id(), &slots(u32::try_from(n).unwrap()..u32::try_from(n).unwrap() + 1)).await);
        }
        // The process ends with its backend.
    }
    let heir = backend(&database.url());
    let me = claimant(&heir, "heir", 99).await;
    let alive = {
        let (heir, me) = (Arc::clone(&heir), me.clone());
        tokio::spawn(async move {
            loop {
                let _ = heir.renew(&me, TTL).await;
                tokio::time::sleep(TTL / 3).await;
            }
        })
    };
    let (lag, begun) = (Lag::begin(), Instant::now());
    let mut follower = ClaimsFollower::of(&heir);
    eventually("all thirty slots", async || {
        granted(&heir, &me, &slots(0..30)).await;
        (granted(&heir, &me, &slots(0..30)).await.len() == 30).then_some(())
    })
    .await;
    let (took, late) = (begun.elapsed(), lag.allowance());
    assert!(took < TTL + Duration::from_secs(3) + late, "{took:?}, with {late:?} for this machine");
    follower.until_held(&slots(0..30)).await;
    alive.abort();
}
