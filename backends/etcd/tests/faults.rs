//! What etcd itself does on a bad day, with real servers.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    ByHand, Fleet, PACE, PATIENCE, Reader, TTL, backend, config, eventually, group, ids, next_proof, open, registration, url, view_of,
    view_where, with_user,
};
use futures::stream::{self, StreamExt};
use serde_json::json;
use shardwise_discovery::{Discovery, ErrorKind, WatchEvent};
use shardwise_testkit::{Etcd, EtcdCluster, EtcdOptions, KeyAccess, Lag, TcpProxy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_its_data_loses_no_member() {
    let server = Etcd::single().await.unwrap();
    let backend = backend(&[server.address()]);
    let mut fleet = Fleet::new(backend.clone());
    fleet.join("a", 1).await;
    fleet.join("b", 2).await;
    let mut watch = backend.watch(&group(), PACE);
    view_of(&mut watch, &["a", "b"]).await;
    let reader = Reader::of(backend.watch(&group(), PACE));
    server.restart(true).await.unwrap();
    next_proof(&mut watch).await;
    fleet.join("c", 3).await;
    reader.until(&["a", "b", "c"]).await;
    assert!(reader.always(&["a", "b"]), "nobody was gone in between");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_its_data_is_reported_as_lost_and_revisions_go_on_rising() {
    let server = Etcd::single().await.unwrap();
    let (one, other) = (backend(&[server.address()]), backend(&[server.address()]));
    let a = registration("a", 1);
    one.register(&a).await.unwrap();
    for n in 0..20 {
        let b = registration("b", n);
        one.register(&b).await.unwrap();
        one.deregister(&b.record_id()).await.unwrap();
    }
    let reader = Reader::of(other.watch(&group(), PACE));
    reader.until(&["a"]).await;
    let before = one.members(&group()).await.unwrap().view.revision();
    server.restart(false).await.unwrap();
    let error =
        eventually("the renewal is answered", async || one.renew(&a.record_id(), TTL).await.err().filter(|e| !e.is_retryable())).await;
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    reader.until(&[]).await;
    let snapshot = one.members(&group()).await.unwrap();
    assert!(snapshot.view.members().is_empty());
    assert!(snapshot.view.revision() > before, "{} after {before}", snapshot.view.revision());
    one.register(&a).await.unwrap();
    reader.until(&["a"]).await;
    assert!(one.members(&group()).await.unwrap().view.revision() > snapshot.view.revision());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_dies_and_no_member_is_lost() {
    let cluster = EtcdCluster::start(3, EtcdOptions::default()).await.unwrap();
    let leader = cluster.leader().await.unwrap();
    // The leader is the one that is asked, so all have to change over.
    let mut addresses = cluster.addresses();
    addresses.rotate_left(leader);
    let backend = backend(&addresses);
    let mut fleet = Fleet::new(backend.clone());
    fleet.join("a", 1).await;
    fleet.join("b", 2).await;
    let mut watch = backend.watch(&group(), PACE);
    view_of(&mut watch, &["a", "b"]).await;
    let reader = Reader::of(backend.watch(&group(), PACE));
    cluster.members()[leader].kill().unwrap();
    next_proof(&mut watch).await;
    fleet.join("c", 3).await;
    reader.until(&["a", "b", "c"]).await;
    tokio::time::sleep(TTL * 2).await;
    fleet.kill("c");
    reader.until(&["a", "b"]).await;
    assert!(reader.always(&["a", "b"]), "nobody was gone in between");
}

/// SIGSTOP: connections stay open and nothing is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_etcd_freezes_and_the_next_one_is_asked() {
    let cluster = EtcdCluster::start(3, EtcdOptions::default()).await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let mut addresses = cluster.addresses();
    let follower = (leader + 1) % 3;
    addresses.rotate_left(follower);
    let backend = backend(&addresses);
    let mut fleet = Fleet::new(backend.clone());
    fleet.join("a", 1).await;
    let mut watch = backend.watch(&group(), PACE);
    view_of(&mut watch, &["a"]).await;
    let reader = Reader::of(backend.watch(&group(), PACE));
    cluster.members()[follower].pause().unwrap();
    let (lag, started) = (Lag::begin(), Instant::now());
    next_proof(&mut watch).await;
    let (took, late) = (started.elapsed(), lag.allowance());
    assert!(took < TTL * 2 + late, "the watch was proven again after {took:?}, {late:?} for this machine");
    tokio::time::sleep(TTL * 2).await;
    fleet.join("b", 2).await;
    reader.until(&["a", "b"]).await;
    assert!(reader.always(&["a"]), "renewals went on elsewhere in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compacted_and_defragmented_while_the_watch_is_cut() {
    let server = Etcd::single().await.unwrap();
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let (worker, outside) = (backend(&[url(proxy.address())]), backend(&[server.address()]));
    let mut fleet = Fleet::new(outside.clone());
    fleet.join("a", 1).await;
    let reader = Reader::of(worker.watch(&group(), PACE));
    reader.until(&["a"]).await;
    for round in 0..2 {
        proxy.cut_both();
        for n in 0..50 {
            let gone = registration("gone", n);
            outside.register(&gone).await.unwrap();
            outside.deregister(&gone.record_id()).await.unwrap();
        }
        let id = if round == 0 { "b" } else { "c" };
        fleet.join(id, 2).await;
        ByHand(&server).compact().await;
        server.api("/v3/maintenance/defragment", &json!({})).await.unwrap();
        // Once the old connection goes on, once it breaks.
        if round == 1 {
            proxy.reset();
        }
        proxy.heal().await.unwrap();
        reader.until(if round == 0 { &["a", "b"] } else { &["a", "b", "c"] }).await;
    }
    assert!(reader.always(&["a"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_open_while_history_is_compacted_all_the_time() {
    let server = Arc::new(Etcd::single().await.unwrap());
    let busy = backend(&[server.address()]);
    busy.register(&registration("a", 1)).await.unwrap();
    let mut fleet = Fleet::new(busy.clone());
    fleet.join("a", 1).await;
    let changing = async {
        for n in 0.. {
            let mut a = registration("a", 1);
            a.member.version = Some(n.to_string());
            busy.update(&a).await.unwrap();
            ByHand(&server).compact().await;
        }
    };
    let opening = async {
        for _ in 0..50 {
            let watcher = backend(&[server.address()]);
            let mut watch = watcher.watch(&group(), PACE);
            let first = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
            assert!(matches!(&first, Ok(WatchEvent::View(snapshot)) if ids(&snapshot.view) == ["a"]), "{first:?}");
        }
    };
    tokio::select! {
        () = changing => {}
        () = opening => {}
    }
}

/// Tokens run out, and users and roles change, while the connection stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_void_is_replaced() {
    let server = Etcd::start(EtcdOptions::default().with_auth()).await.unwrap();
    server.add_user("worker", "right", &[(KeyAccess::ReadWrite, "/shardwise/")]).await.unwrap();
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let backend = open(&with_user(&[url(proxy.address())], "worker", "right"));
    let a = registration("a", 1);
    backend.register(&a).await.unwrap();
    let mut watch = backend.watch(&group(), PACE);
    view_of(&mut watch, &["a"]).await;
    for n in 0..3 {
        // etcd forgets a user's tokens when the password is set.
        server.api("/v3/auth/user/changepw", &json!({ "name": "worker", "password": "right" })).await.unwrap();
        backend.renew(&a.record_id(), TTL).await.unwrap();
        next_proof(&mut watch).await;
        // And it refuses tokens from before a change of anybody's rights.
        server.add_user(&format!("another {n}"), "x", &[]).await.unwrap();
        backend.renew(&a.record_id(), TTL).await.unwrap();
        next_proof(&mut watch).await;
    }
    // A proof that comes late on a busy machine may cost one; each of six tokens that became void would be six.
    let connections = proxy.accepted();
    assert!(connections <= 3, "{connections} connections: a token that is void is no reason for another");
    backend.deregister(&a.record_id()).await.unwrap();
    view_of(&mut watch, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_dead_records_go_and_the_living_stay() {
    const DEAD: u64 = 3_000;
    let server = Etcd::single().await.unwrap();
    let backend = backend(&[server.address()]);
    let mut fleet = Fleet::new(backend.clone());
    fleet.join("living", 1).await;
    let started = Instant::now();
    let registering = stream::iter(0..DEAD).map(|n| {
        let (backend, mut dead) = (backend.clone(), registration(&format!("dead {n}"), n));
        dead.ttl = TTL * 7;
        async move { backend.register(&dead).await.unwrap() }
    });
    registering.buffer_unordered(64).collect::<Vec<_>>().await;
    let (registered, all) = (started.elapsed(), Instant::now());
    let mut watch = backend.watch(&group(), PACE);
    // On a slow machine the first are gone before the last has come.
    view_where(&mut watch, "a thousand", |view| view.members().len() > 1_000).await;
    view_of(&mut watch, &["living"]).await;
    println!("{DEAD} registered in {registered:?}, gone {:?} after the last", all.elapsed());
    // The TTL and etcd's own pace of a thousand in a second; and as much again, for a machine with other work.
    assert!(all.elapsed() < TTL * 7 + Duration::from_secs(3 * 2 + 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_deleted_by_hand_is_reported_as_lost() {
    let server = Etcd::single().await.unwrap();
    let backend = open(&config(&[server.address()]));
    let a = registration("a", 1);
    backend.register(&a).await.unwrap();
    ByHand(&server).delete("/shardwise/v1/members/workers/a").await;
    let error = backend.renew(&a.record_id(), TTL).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost, "its lease lives on, its record does not: {error}");
}
