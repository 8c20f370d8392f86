//! Servers that are restarted, stopped and emptied, scripts and connections that are lost, keys that are edited: watches go on, and no view
//! goes back.

mod common;

use std::time::{Duration, Instant};

use common::{Fleet, PACE, TTL, Watching, backend, eventually, group, key, lasting, registration, valkey, view_of};
use shardwise_core::ClaimName;
use shardwise_discovery::{Discovery, ErrorKind, Notes, WriteOutcome};
use shardwise_testkit::{Lag, TcpProxy};

/// A restarted server restarts all leases, so no member is evicted that renews then. Each member registers anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_restarted_costs_a_registration_each_and_no_member() {
    let server = valkey().await;
    let (one, outside) = (backend(&server.address()), backend(&server.address()));
    let mut fleet = Fleet::new();
    fleet.join(&one, "a", 1).await;
    fleet.join(&one, "b", 2).await;
    let watching = Watching::of(outside.watch(&group(), PACE));
    let mut revision = watching.shows(&["a", "b"]).await;
    for round in 1..=3 {
        server.kill().unwrap();
        // Longer than a TTL: by the deadlines all of them would be due.
        tokio::time::sleep(TTL + Duration::from_millis(200)).await;
        server.restart().await.unwrap();
        eventually("both register anew", async || (fleet.lost() >= 2 * round).then_some(())).await;
        let view = outside.members(&group()).await.unwrap().view;
        assert_eq!(common::ids(&view), ["a", "b"], "round {round}");
        assert!(view.revision() > revision, "{} after {revision}", view.revision());
        revision = view.revision();
    }
    watching.shows(&["a", "b"]).await;
}

/// Everything is deleted while processes are connected: the next call notices, members register again, revisions go on above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_emptied_is_another_store_and_views_do_not_go_back() {
    let server = valkey().await;
    let (here, outside) = (backend(&server.address()), backend(&server.address()));
    for n in 0..20 {
        let passing = lasting("passing", n);
        here.register(&passing).await.unwrap();
        here.deregister(&passing.record_id()).await.unwrap();
    }
    here.register(&lasting("a", 100)).await.unwrap();
    let watching = Watching::of(outside.watch(&group(), PACE));
    let revision = watching.shows(&["a"]).await;
    server.command(&["FLUSHALL"]).await.unwrap();
    // A process that knows nothing of the group registers first, and its numbers begin anew.
    let newcomer = backend(&server.address());
    newcomer.register(&lasting("b", 101)).await.unwrap();
    let after = watching.shows(&["b"]).await;
    assert!(after > revision, "{after} after {revision}");
    let error = here.renew(&lasting("a", 100).record_id(), TTL).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost);
    here.register(&lasting("a", 100)).await.unwrap();
    watching.shows(&["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_were_flushed_are_sent_again() {
    let server = valkey().await;
    let (here, there) = (backend(&server.address()), backend(&server.address()));
    let mut watch = there.watch(&group(), PACE);
    for n in 0..5 {
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        let a = registration("a", n);
        here.register(&a).await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        here.renew(&a.record_id(), TTL).await.unwrap();
        view_of(&mut watch, &["a"]).await;
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        here.deregister(&a.record_id()).await.unwrap();
        view_of(&mut watch, &[]).await;
    }
    let name = ClaimName::new("n").unwrap();
    server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    assert!(matches!(here.write_note(&group(), &name, 0, "1").await.unwrap(), WriteOutcome::Written(_)));
}

/// The connections of all are reset again and again: no member is evicted, and every watch goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_cost_no_member() {
    let server = valkey().await;
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let url = format!("redis://{}", proxy.address());
    let (one, two, outside) = (backend(&url), backend(&url), backend(&url));
    let mut fleet = Fleet::new();
    fleet.join(&one, "a", 1).await;
    fleet.join(&two, "b", 2).await;
    let watching = Watching::of(outside.watch(&group(), PACE));
    watching.shows(&["a", "b"]).await;
    let beside = backend(&url);
    for _ in 0..20 {
        proxy.reset();
        tokio::time::sleep(TTL / 10).await;
        // On a busy machine connections come back later.
        eventually("an answer", async || beside.members(&group()).await.ok()).await;
    }
    watching.shows(&["a", "b"]).await;
    assert_eq!(fleet.lost(), 0);
}

/// A process that is cut off is evicted on time, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_cut_off_is_evicted_and_comes_back() {
    let server = valkey().await;
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let (cut, open) = (backend(&format!("redis://{}", proxy.address())), backend(&server.address()));
    let mut fleet = Fleet::new();
    fleet.join(&cut, "cut", 1).await;
    fleet.join(&open, "open", 2).await;
    let mut watch = open.watch(&group(), PACE);
    view_of(&mut watch, &["cut", "open"]).await;
    let (lag, begun) = (Lag::begin(), Instant::now());
    proxy.cut_both();
    view_of(&mut watch, &["open"]).await;
    let (took, late) = (begun.elapsed(), lag.allowance());
    assert!(took < TTL + Duration::from_secs(2) + late, "{took:?}, with {late:?} for this machine");
    proxy.heal().await.unwrap();
    view_of(&mut watch, &["cut", "open"]).await;
    assert!(fleet.lost() >= 1, "its record was evicted");
}

/// The server is stopped for longer than a TTL: a member whose lease has ended has to register again, and does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stood_still_has_its_members_back_soon() {
    let server = valkey().await;
    let (one, outside) = (backend(&server.address()), backend(&server.address()));
    let mut fleet = Fleet::new();
    fleet.join(&one, "a", 1).await;
    fleet.join(&one, "b", 2).await;
    let watching = Watching::of(outside.watch(&group(), PACE));
    watching.shows(&["a", "b"]).await;
    for stopped in [TTL / 2, TTL * 2] {
        server.pause().unwrap();
        tokio::time::sleep(stopped).await;
        server.resume().unwrap();
        tokio::time::sleep(TTL).await;
        watching.shows(&["a", "b"]).await;
    }
}

/// Keys that are deleted by hand: the watch notices within a minute, or at once if the revision is gone as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_were_deleted_by_hand_are_noticed() {
    let server = valkey().await;
    let (here, there) = (backend(&server.address()), backend(&server.address()));
    let a = lasting("a", 1);
    here.register(&a).await.unwrap();
    let watching = Watching::of(there.watch(&group(), PACE));
    watching.shows(&["a"]).await;
    server.command(&["DEL", &key("group"), &key("members"), &key("deadlines")]).await.unwrap();
    watching.shows(&[]).await;
    assert_eq!(*here.renew(&a.record_id(), TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    here.register(&a).await.unwrap();
    watching.shows(&["a"]).await;
}

/// A message of another program in the channel, or one that is lost, costs a list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strange_messages_cost_a_list_each() {
    let server = valkey().await;
    let (here, there) = (backend(&server.address()), backend(&server.address()));
    let watching = Watching::of(there.watch(&group(), PACE));
    watching.shows(&[]).await;
    for (n, message) in (0..).zip(["", "nonsense", "0a", "\u{1F980}"]) {
        server.command(&["PUBLISH", &key("news:0"), message]).await.unwrap();
        let a = lasting("a", n);
        here.register(&a).await.unwrap();
        watching.shows(&["a"]).await;
        here.deregister(&a.record_id()).await.unwrap();
        watching.shows(&[]).await;
    }
}
