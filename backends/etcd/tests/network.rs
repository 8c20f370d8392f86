//! What the network does on a bad day: silence one way or both, slowness, servers that are not there.

mod common;

use std::time::{Duration, Instant};

use common::{Fleet, PACE, Reader, TTL, backend, eventually, group, ids, next_error, next_proof, registration, url, view_of};
use shardwise_discovery::{Clock, Discovery, ErrorKind};
use shardwise_testkit::{Direction, Etcd, Lag, TcpProxy};

/// The endpoint that watch and calls use goes silent. Renewals go on over the other one, and the watch, which nothing ends, is found
/// silent within two TTLs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_goes_silent_is_found_while_renewals_succeed() {
    let server = Etcd::single().await.unwrap();
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let (worker, outside) = (backend(&[url(proxy.address()), server.address()]), backend(&[server.address()]));
    let mut fleet = Fleet::new(worker.clone());
    fleet.join("a", 1).await;
    let mut watch = worker.watch(&group(), PACE);
    view_of(&mut watch, &["a"]).await;
    for way in [Direction::ToClient, Direction::ToServer] {
        let (lag, started) = (Lag::begin(), Instant::now());
        proxy.cut(way);
        let error = next_error(&mut watch).await;
        let in_time = || started.elapsed() < TTL * 2 + lag.allowance();
        assert!(error.is_retryable() && in_time(), "{error} after {:?}", started.elapsed());
        next_proof(&mut watch).await;
        assert!(in_time(), "proven again after {:?}", started.elapsed());
        tokio::time::sleep(TTL * 2).await;
        assert_eq!(ids(&outside.members(&group()).await.unwrap().view), ["a"], "renewals went on");
        proxy.heal().await.unwrap();
        // Back to the first endpoint for the other direction.
        drop(fleet);
        fleet = Fleet::new(backend(&[url(proxy.address()), server.address()]));
        fleet.join("a", 1).await;
        watch = backend(&[url(proxy.address()), server.address()]).watch(&group(), PACE);
        view_of(&mut watch, &["a"]).await;
    }
}

/// One way, the other way, both: calls and watch fail in time, and are back at once when the network is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_an_error_and_no_empty_view() {
    let server = Etcd::single().await.unwrap();
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let (worker, outside) = (backend(&[url(proxy.address())]), backend(&[server.address()]));
    let mut other = Fleet::new(outside.clone());
    other.join("other", 1).await;
    let mut watch = worker.watch(&group(), PACE);
    view_of(&mut watch, &["other"]).await;
    let reader = Reader::of(worker.watch(&group(), PACE));
    let cuts: [&[Direction]; 3] = [&[Direction::ToClient], &[Direction::ToServer], &[Direction::ToClient, Direction::ToServer]];
    for (n, cut) in (0..).zip(cuts) {
        let a = registration("a", n);
        worker.register(&a).await.unwrap();
        for way in cut {
            proxy.cut(*way);
        }
        let started = Instant::now();
        let error = worker.renew(&a.record_id(), TTL).await.unwrap_err();
        assert!(error.is_retryable() && started.elapsed() < Duration::from_secs(10), "{error} after {:?}", started.elapsed());
        next_error(&mut watch).await;
        eventually("the others see it gone", async || {
            let snapshot = outside.members(&group()).await.unwrap();
            (ids(&snapshot.view) == ["other"]).then_some(())
        })
        .await;
        proxy.heal().await.unwrap();
        let (lag, started) = (Lag::begin(), Instant::now());
        next_proof(&mut watch).await;
        let (took, late) = (started.elapsed(), lag.allowance());
        assert!(took < Duration::from_secs(3) + late, "seen again {took:?} after the cut ended, with {late:?} for this machine");
        let error =
            eventually("an answer", async || worker.renew(&a.record_id(), TTL).await.err().filter(|error| !error.is_retryable())).await;
        assert_eq!(*error.kind(), ErrorKind::Lost);
        reader.until(&["other"]).await;
    }
    assert!(reader.always(&["other"]), "nobody is gone because the network is");
}

/// Slow is not dead: a renewal counts from the start of its request, not from its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_delayed_by_seconds() {
    let server = Etcd::single().await.unwrap();
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let backend = backend(&[url(proxy.address())]);
    let mut a = registration("a", 1);
    a.ttl = TTL * 5;
    backend.register(&a).await.unwrap();
    let mut watch = backend.watch(&group(), a.ttl / 4);
    view_of(&mut watch, &["a"]).await;
    let by = Duration::from_millis(1_500);
    proxy.delay(Direction::ToClient, by);
    let clock = Clock::system();
    for _ in 0..3 {
        let before = clock.now();
        let grant = backend.renew(&a.record_id(), a.ttl).await.unwrap();
        assert!(grant.started.since(before) < by, "the start counts");
        assert!(clock.now().since(grant.started) >= by * 2, "two questions, one after the other");
    }
    next_proof(&mut watch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_is_down_does_not_matter() {
    let server = Etcd::single().await.unwrap();
    let (refusing, black) = (TcpProxy::start(server.socket_addr()).await.unwrap(), TcpProxy::start(server.socket_addr()).await.unwrap());
    refusing.refuse().await.unwrap();
    black.cut_both();
    for (down, limit) in [(&refusing, Duration::from_secs(1)), (&black, Duration::from_secs(5))] {
        for place in 0..2 {
            let mut addresses = vec![server.address(), url(server.socket_addr())];
            addresses.insert(place, url(down.address()));
            let backend = backend(&addresses);
            let (lag, started) = (Lag::begin(), Instant::now());
            backend.register(&registration("a", 1)).await.unwrap();
            assert!(started.elapsed() < limit + lag.allowance(), "the first call took {:?}", started.elapsed());
            let started = Instant::now();
            backend.renew(&registration("a", 1).record_id(), TTL).await.unwrap();
            view_of(&mut backend.watch(&group(), PACE), &["a"]).await;
            assert!(started.elapsed() < Duration::from_secs(1) + lag.allowance(), "later ones took {:?}", started.elapsed());
        }
    }
}
