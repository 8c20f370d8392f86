//! What the wrappers add to the contract, and what a cut connection looks like.

#![expect(clippy::expect_used, reason = "tests report by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use shardwise_core::{GroupName, Incarnation, InstanceId, Member};
use shardwise_discovery::{
    Capabilities, Clock, Discovery, Error, ErrorKind, Grant, MemoryBackend, RecordId, Registration, Result, Retry, Timeout, ViewSnapshot,
    WatchEvent, WatchStream,
};

fn group() -> GroupName {
    GroupName::new("g").expect("a valid name")
}

fn registration() -> Registration {
    let member = Member { incarnation: Incarnation::new(1), ..Member::named(InstanceId::new("a").expect("a valid name")) };
    Registration { group: group(), member, ttl: Duration::from_secs(3), claims: false }
}

/// Fails its first calls, then hangs or answers.
struct Flaky {
    inner: MemoryBackend,
    calls: Arc<AtomicUsize>,
    failing: usize,
    kind: ErrorKind,
    hangs: bool,
}

#[async_trait]
impl Discovery for Flaky {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        if self.calls.fetch_add(1, Ordering::SeqCst) < self.failing {
            return Err(Error::new(self.kind.clone(), "register", "flaky"));
        }
        self.inner.register(registration).await
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.inner.renew(record_id, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<()> {
        self.inner.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.inner.deregister(record_id).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.inner.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.inner.watch(group, prove_every)
    }
}

fn flaky(failing: usize, kind: ErrorKind, hangs: bool) -> (Flaky, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    (Flaky { inner: MemoryBackend::new(Clock::tokio()), calls: Arc::clone(&calls), failing, kind, hangs }, calls)
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again_and_counts_from_the_last_attempt() {
    let (backend, calls) = flaky(2, ErrorKind::Unavailable, false);
    let clock = Clock::tokio();
    let before = clock.now();
    let grant = Retry::new(backend, 3, Duration::from_millis(100)).register(&registration()).await.expect("the third try succeeds");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert!(grant.started.since(before) >= Duration::from_millis(200), "the first two attempts do not count");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_pass_is_not_tried_again() {
    for kind in [ErrorKind::Denied, ErrorKind::Misconfigured, ErrorKind::Lost, ErrorKind::InUse { address: None, stamp: 0 }] {
        let (backend, calls) = flaky(9, kind.clone(), false);
        let error = Retry::new(backend, 3, Duration::from_millis(1)).register(&registration()).await.expect_err("it fails");
        assert_eq!((error.kind(), calls.load(Ordering::SeqCst)), (&kind, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_given_up() {
    let (backend, _) = flaky(0, ErrorKind::Unavailable, true);
    let error = Timeout::new(backend, Duration::from_secs(1)).register(&registration()).await.expect_err("it hangs");
    assert_eq!((error.kind(), error.is_retryable()), (&ErrorKind::TimedOut, true));
    assert_eq!(error.to_string(), "register: no answer within 1s");
}

#[tokio::test(start_paused = true)]
async fn a_cut_connection_is_an_error_and_never_an_empty_view() {
    let store = MemoryBackend::new(Clock::tokio());
    let cut = store.link();
    store.register(&registration()).await.expect("register");
    let mut watch = cut.watch(&group(), Duration::from_secs(1));
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::View(_)))));
    cut.set_reachable(false);
    assert_eq!(cut.members(&group()).await.expect_err("cut").kind(), &ErrorKind::Unavailable);
    assert!(watch.next().await.expect("the stream goes on").is_err());
    let silence = tokio::time::timeout(Duration::from_secs(9), watch.next()).await;
    assert!(silence.is_err(), "nothing is proven while it is cut: {silence:?}");
    cut.set_reachable(true);
    let Some(Ok(WatchEvent::View(snapshot))) = watch.next().await else { panic!("a full view after the cut") };
    assert!(snapshot.view.members().is_empty(), "the member died in the meantime, and this was read");
}
