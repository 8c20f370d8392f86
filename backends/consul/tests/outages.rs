//! What happens to real servers and to the way there: restarts, lost leaders, cut connections, delays, pauses.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::time::Duration;

use common::{group, open, registration, settle, until};
use futures::StreamExt;
use shardwise_backend_consul::ConsulBackend;
use shardwise_core::Moment;
use shardwise_discovery::conformance::{ids, view_where};
use shardwise_discovery::{Clock, Discovery, ErrorKind, Registration, WatchEvent, WatchStream};
use shardwise_testkit::{Consul, ConsulCluster, ConsulOptions, Direction, TcpProxy};

const TTL: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);
/// What a busy machine may be late.
const LATE: Duration = Duration::from_secs(2);

/// Registers again and again, as a worker does, until it is in.
async fn back(backend: &ConsulBackend, registration: &Registration, within: Duration) {
    until("registered again", within, async || match backend.register(registration).await {
        Ok(_) => Some(()),
        Err(error) => {
            assert!(error.is_retryable() || matches!(error.kind(), ErrorKind::InUse { .. }), "{error}");
            None
        }
    })
    .await;
}

/// Reads events until one proves the view as of after that moment. Answers whether a view in between was without `id`.
async fn proven_after(watch: &mut WatchStream, after: Moment, id: &str) -> bool {
    let mut seen_without = false;
    let read = async {
        loop {
            let proven = match watch.next().await.unwrap() {
                Ok(WatchEvent::View(snapshot)) => {
                    seen_without |= !ids(&snapshot.view).contains(&id.to_owned());
                    snapshot.proven
                }
                Ok(WatchEvent::Proven(at)) => at,
                _ => continue,
            };
            if proven > after {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("the watch is not back within {PATIENCE:?}"));
    seen_without
}

#[tokio::test]
async fn a_server_restarted_with_its_data_comes_back() {
    let consul = Consul::single().await.unwrap();
    let backend = open(&consul.address());
    let worker = registration("g", "a", 1, Duration::from_secs(20));
    backend.register(&worker).await.unwrap();
    // An agent remembers the result of a renewal over its restart, but not that of a registration.
    backend.renew(&worker.record_id(), TTL).await.unwrap();
    let mut watch = backend.watch(&worker.group, TTL / 4);
    view_where(&mut watch, PATIENCE, "the worker", |view| !view.members().is_empty()).await;
    let before = backend.members(&worker.group).await.unwrap().view.revision();
    consul.restart(true).await.unwrap();
    assert!(!proven_after(&mut watch, Clock::system().now(), "a").await, "nobody is gone because of a restart");
    assert!(backend.members(&worker.group).await.unwrap().view.revision() >= before);
    until("renewed", PATIENCE, async || backend.renew(&worker.record_id(), TTL).await.ok()).await;
}

#[tokio::test]
async fn a_server_restarted_without_its_data_is_a_new_beginning_and_revisions_go_on_above() {
    let consul = Consul::single().await.unwrap();
    let backend = open(&consul.address());
    let worker = registration("g", "a", 1, TTL);
    // The index rises, so that the new one is below.
    for _ in 0..20 {
        backend.register(&worker).await.unwrap();
    }
    let mut watch = backend.watch(&worker.group, TTL / 4);
    let before = view_where(&mut watch, PATIENCE, "the worker", |view| !view.members().is_empty()).await.revision();
    consul.restart(false).await.unwrap();
    let error = until("the loss is noticed", PATIENCE, async || {
        let error = backend.renew(&worker.record_id(), TTL).await.err()?;
        (!error.is_retryable()).then_some(error)
    })
    .await;
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    back(&backend, &worker, PATIENCE).await;
    let after = view_where(&mut watch, PATIENCE, "the worker again", |view| !view.members().is_empty() && view.revision() > before).await;
    assert_eq!(ids(&after), ["a"]);
}

#[tokio::test]
async fn a_killed_leader_is_an_error_at_most_and_no_member_is_gone() {
    let cluster = ConsulCluster::start(3, ConsulOptions::default()).await.unwrap();
    let agent = cluster.agent("worker-agent").await.unwrap();
    let backend = open(&agent.address());
    let worker = registration("g", "a", 1, Duration::from_secs(30));
    backend.register(&worker).await.unwrap();
    let mut watch = backend.watch(&worker.group, TTL / 4);
    view_where(&mut watch, PATIENCE, "the worker", |view| !view.members().is_empty()).await;
    let leader = cluster.leader().await.unwrap();
    cluster.servers()[leader].kill().unwrap();
    let killed = Clock::system().now();
    let grant = until("renewed under the new leader", PATIENCE, async || match backend.renew(&worker.record_id(), TTL).await {
        Ok(grant) => Some(grant),
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            None
        }
    })
    .await;
    assert!(grant.started > killed);
    assert!(!proven_after(&mut watch, Clock::system().now(), "a").await, "an election is no reason to be gone");
}

#[tokio::test]
async fn an_agent_cut_off_from_its_servers_confirms_nothing() {
    let server = Consul::single().await.unwrap();
    let agent = server.agent("worker-agent").await.unwrap();
    let (backend, elsewhere) = (open(&agent.address()), open(&server.address()));
    let worker = registration("g", "a", 1, TTL);
    backend.register(&worker).await.unwrap();
    let mut watch = backend.watch(&worker.group, TTL / 4);
    view_where(&mut watch, PATIENCE, "the worker", |view| !view.members().is_empty()).await;
    server.pause().unwrap();
    let cut = Clock::system().now();
    let until_then = cut.plus(TTL * 3);
    while Clock::system().now() < until_then {
        // The agent still accepts renewals.
        let error = backend.renew(&worker.record_id(), TTL).await.unwrap_err();
        assert!(error.is_retryable() || *error.kind() == ErrorKind::Lost, "{error}");
        tokio::time::sleep(TTL / 8).await;
    }
    server.resume().unwrap();
    back(&backend, &worker, PATIENCE).await;
    assert!(backend.renew(&worker.record_id(), TTL).await.unwrap().started > cut);
    assert_eq!(ids(&elsewhere.members(&worker.group).await.unwrap().view), ["a"]);
}

/// A worker behind a proxy to its agent, seen by another one that is not.
struct Cut {
    consul: Consul,
    proxy: TcpProxy,
    worker: ConsulBackend,
    other: ConsulBackend,
    registration: Registration,
}

impl Cut {
    async fn prepare() -> Self {
        Self::prepare_with(TTL).await
    }

    async fn prepare_with(ttl: Duration) -> Self {
        let consul = Consul::single().await.unwrap();
        settle(&consul).await;
        let proxy = TcpProxy::start(consul.socket_addr()).await.unwrap();
        let (worker, other) = (open(&format!("http://{}", proxy.address())), open(&consul.address()));
        let registration = registration("g", "a", 1, ttl);
        worker.register(&registration).await.unwrap();
        Self { consul, proxy, worker, other, registration }
    }

    /// No renewal counts while it is cut; the others see the worker gone within its TTL and margin; it comes back once healed.
    async fn runs_its_course(self) {
        let mut watch = self.worker.watch(&self.registration.group, TTL / 4);
        let mut others = self.other.watch(&self.registration.group, TTL / 4);
        let cut = Clock::system().now();
        let gone = async {
            view_where(&mut others, TTL * 2, "the worker", |view| !view.members().is_empty()).await;
            let gone = |view: &shardwise_core::View| view.members().is_empty();
            view_where(&mut others, TTL + self.other.capabilities().margin + LATE, "nobody", gone).await;
        };
        let renewing = async {
            let error = self.worker.renew(&self.registration.record_id(), TTL).await.unwrap_err();
            assert!(error.is_retryable(), "{error}");
        };
        tokio::join!(gone, renewing);
        until("the watch fails", PATIENCE, async || watch.next().await.unwrap().is_err().then_some(())).await;
        self.proxy.heal().await.unwrap();
        back(&self.worker, &self.registration, PATIENCE).await;
        proven_after(&mut watch, Clock::system().now(), "a").await;
        assert!(self.worker.renew(&self.registration.record_id(), TTL).await.unwrap().started > cut);
        drop(self.consul);
    }
}

#[tokio::test]
async fn a_worker_whose_requests_do_not_arrive_is_gone_and_comes_back() {
    let cut = Cut::prepare().await;
    cut.proxy.cut(Direction::ToServer);
    cut.runs_its_course().await;
}

#[tokio::test]
async fn a_worker_cut_off_both_ways_is_gone_and_comes_back() {
    let cut = Cut::prepare().await;
    cut.proxy.cut_both();
    cut.runs_its_course().await;
}

#[tokio::test]
async fn a_worker_that_hears_no_answers_counts_no_renewal_and_removes_no_member() {
    let cut = Cut::prepare().await;
    cut.proxy.cut(Direction::ToClient);
    // Its renewals arrive, so the others still see it; but it cannot know that.
    let error = cut.worker.renew(&cut.registration.record_id(), TTL).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let error = cut.worker.renew(&cut.registration.record_id(), TTL).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost, "by its own clock the TTL is over: {error}");
    cut.proxy.heal().await.unwrap();
    back(&cut.worker, &cut.registration, PATIENCE).await;
}

#[tokio::test]
async fn an_answer_delayed_beyond_the_ttl_renews_nothing() {
    let ttl = TTL * 3 / 2;
    let cut = Cut::prepare_with(ttl).await;
    // The first renewal has a request more.
    cut.worker.renew(&cut.registration.record_id(), ttl).await.unwrap();
    let (begun, slowness) = (Clock::system().now(), Duration::from_millis(600));
    cut.proxy.delay(Direction::ToClient, slowness);
    // Two answers, one after the other, 1.2 s in all: within the TTL it counts, and from its start.
    let grant = cut.worker.renew(&cut.registration.record_id(), ttl).await.unwrap();
    assert!(grant.started.since(begun) < slowness, "it counts from its start");
    cut.proxy.delay(Direction::ToClient, Duration::from_millis(900));
    cut.proxy.delay(Direction::ToServer, Duration::from_millis(900));
    let late = async || {
        tokio::time::sleep(ttl / 2).await;
        cut.worker.renew(&cut.registration.record_id(), ttl).await
    };
    let error = late().await.unwrap_err();
    assert!(error.is_retryable() || *error.kind() == ErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn a_member_paused_beyond_its_ttl_is_lost_and_stays_dead() {
    let consul = Consul::single().await.unwrap();
    settle(&consul).await;
    let (paused, other) = (open(&consul.address()), open(&consul.address()));
    let worker = registration("g", "a", 1, TTL);
    paused.register(&worker).await.unwrap();
    until("the others see it gone", PATIENCE, async || other.members(&worker.group).await.unwrap().view.members().is_empty().then_some(()))
        .await;
    for _ in 0..3 {
        assert_eq!(*paused.renew(&worker.record_id(), TTL).await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(other.members(&worker.group).await.unwrap().view.members().is_empty(), "a late renewal heals nothing");
    }
}

#[tokio::test]
async fn a_watch_cut_off_alone_proves_nothing_while_renewals_succeed() {
    let consul = Consul::single().await.unwrap();
    let proxy = TcpProxy::start(consul.socket_addr()).await.unwrap();
    let (worker, watcher) = (open(&consul.address()), open(&format!("http://{}", proxy.address())));
    let registered = registration("g", "a", 1, TTL);
    worker.register(&registered).await.unwrap();
    let mut watch = watcher.watch(&group("g"), TTL / 4);
    view_where(&mut watch, PATIENCE, "the worker", |view| !view.members().is_empty()).await;
    proxy.cut_both();
    let cut = Clock::system().now().plus(TTL / 4);
    let silence = async {
        while let Some(event) = watch.next().await {
            match event {
                Ok(WatchEvent::Proven(at)) => assert!(at <= cut, "proven after the cut"),
                Ok(WatchEvent::View(snapshot)) => assert!(snapshot.proven <= cut, "a view after the cut"),
                _ => {}
            }
        }
    };
    let renewing = async {
        for _ in 0..12 {
            worker.renew(&registered.record_id(), TTL).await.unwrap();
            tokio::time::sleep(TTL / 4).await;
        }
    };
    tokio::select! {
        () = silence => panic!("the watch ended"),
        () = renewing => {}
    }
    proxy.heal().await.unwrap();
    assert!(!proven_after(&mut watch, Clock::system().now(), "a").await);
}
