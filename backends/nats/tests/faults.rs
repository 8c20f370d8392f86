//! Servers that are stopped, killed and restarted, connections that break, keys that are deleted by hand: no living member is evicted, and
//! watches go on.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{
    Fleet, PACE, TTL, backend, bucket, claimant, durable, eventually, granted, group, ids, lasting, registration, shared, slots, view_of,
};
use futures::StreamExt;
use shardwise_discovery::{Clock, Discovery, ErrorKind, Registration, WatchEvent, WatchStream};
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
async fn fleet(urls: [&str; 3], bucket: &str) -> (Fleet, JoinHandle<()>) {
    let [one, two, outside] = urls.map(|url| backend(url, bucket));
    let mut fleet = Fleet::new();
    for (incarnation, id) in (1..).zip(MEMBERS) {
        fleet.join(if incarnation % 2 == 0 { &two } else { &one }, id, incarnation).await;
    }
    let mut watch = outside.watch(&group(), PACE);
    view_of(&mut watch, &MEMBERS).await;
    (fleet, always(watch, &MEMBERS))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stood_still_evicts_no_member() {
    let server = durable().await;
    let url = server.address();
    let (fleet, watching) = fleet([&url, &url, &url], &bucket()).await;
    for stopped in [TTL / 2, TTL * 2] {
        tokio::time::sleep(TTL).await;
        server.pause().unwrap();
        tokio::time::sleep(stopped).await;
        server.resume().unwrap();
        tokio::time::sleep(TTL * 2).await;
    }
    assert_eq!((fleet.lost(), watching.is_finished()), (0, false));
    watching.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_and_restarted_finds_all_members_again() {
    let server = durable().await;
    let url = server.address();
    let (fleet, watching) = fleet([&url, &url, &url], &bucket()).await;
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
    let (server, bucket) = (shared().await, bucket());
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let (url, through) = (server.address(), format!("nats://{}", proxy.address()));
    let (cut, open, outside) = (backend(&through, &bucket), backend(&url, &bucket), backend(&url, &bucket));
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
    let (server, bucket) = (shared().await, bucket());
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let url = format!("nats://{}", proxy.address());
    let (fleet, watching) = fleet([&url, &url, &url], &bucket).await;
    let beside = backend(&url, &bucket);
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

/// Whatever an operator deletes, its member registers again, and a member that is dead goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_were_deleted_by_hand_are_noticed() {
    let (server, bucket) = (shared().await, bucket());
    let url = server.address();
    let (here, there) = (backend(&url, &bucket), backend(&url, &bucket));
    let hand = async_nats::connect(&*url).await.unwrap();
    let mut watch = there.watch(&group(), PACE);
    for key in ["b", "m"] {
        let dead = lasting("dead", 1);
        here.register(&dead).await.unwrap();
        view_of(&mut watch, &["dead"]).await;
        hand.publish(format!("$KV.{bucket}.workers.{key}.dead"), "".into()).await.unwrap();
        view_of(&mut watch, &[]).await;
        let error = here.update(&dead).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Lost, "{key}: {error}");
        here.deregister(&dead.record_id()).await.unwrap();
    }
}

/// The bucket is deleted under its members: they register again in a new one, and revisions do not fall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_was_deleted_is_made_anew() {
    let (server, bucket) = (shared().await, bucket());
    let url = server.address();
    let (here, there) = (backend(&url, &bucket), backend(&url, &bucket));
    let mut fleet = Fleet::new();
    for (incarnation, id) in (1..).zip(MEMBERS) {
        fleet.join(&here, id, incarnation).await;
    }
    let mut watch = there.watch(&group(), PACE);
    let before = view_of(&mut watch, &MEMBERS).await.revision();
    let context = async_nats::jetstream::new(async_nats::connect(&*url).await.unwrap());
    context.delete_stream(format!("KV_{bucket}")).await.unwrap();
    eventually("all have registered again", async || (fleet.lost() >= 4).then_some(())).await;
    let after = eventually("all are seen again", async || {
        let view = there.members(&group()).await.ok()?.view;
        (ids(&view) == MEMBERS).then(|| view.revision())
    })
    .await;
    assert!(after > before, "{after} after {before}");
}

/// All die at once. Who comes then waits for the claims that it wants, and has them a TTL later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_after_all_have_died_takes_over_within_a_ttl() {
    let (server, bucket) = (shared().await, bucket());
    let url = server.address();
    {
        let gone = backend(&url, &bucket);
        for n in 0..20_u32 {
            let member = Registration { claims: true, ..registration(&format!("m{n:02}"), n.into()) };
            gone.register(&member).await.unwrap();
            assert_eq!(granted(&gone, &member.record_id(), &slots(n..n + 1)).await.len(), 1);
        }
        // The process ends with its backend.
    }
    let heir = backend(&url, &bucket);
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
    let (lag, begun) = (Lag::begin(), std::time::Instant::now());
    eventually("all twenty slots", async || (granted(&heir, &me, &slots(0..20)).await.len() == 20).then_some(())).await;
    let (took, late) = (begun.elapsed(), lag.allowance());
    assert!(took < TTL + Duration::from_secs(3) + late, "{took:?}, with {late:?} for this machine");
    alive.abort();
}
