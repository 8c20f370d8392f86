//! What the tests share.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use shardwise_backend_nats::{NatsBackend, NatsBackendConfig, SyncInterval, TTL_MIN};
use shardwise_core::{Claim, ClaimStore, Epoch, GroupName, Incarnation, InstanceId, Member, Resource, View};
use shardwise_discovery::conformance::Scope;
use shardwise_discovery::{
    AcquireOutcome, Claims, ClaimsEvent, ClaimsStream, Clock, Discovery, Error, ErrorKind, RecordId, Registration, Result, WatchStream,
    conformance,
};
use shardwise_testkit::{Nats, NatsOptions};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::{JoinHandle, block_in_place};

/// Long enough for the busiest machine; a test that waits this long fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How often a condition is looked at.
const POLL_EVERY: Duration = Duration::from_millis(10);
/// As often as the library's driver wants its view proven.
pub(crate) const PACE: Duration = Duration::from_millis(750);
/// For members that renew.
pub(crate) const TTL: Duration = Duration::from_secs(3);
/// From fault to message.
pub(crate) const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// Waits in place: starting a server is no future that may change threads.
pub(crate) fn waited_for<T>(starting: impl Future<Output = T>) -> T {
    block_in_place(|| Handle::current().block_on(starting))
}

/// A server that flushes to the disk: without that there is no exclusive ownership.
pub(crate) async fn durable() -> Arc<Nats> {
    Arc::new(Nats::start(NatsOptions::default().newest().durable()).await.unwrap())
}

/// The server that the tests of one program share.
pub(crate) async fn shared() -> Arc<Nats> {
    static SHARED: OnceCell<Arc<Nats>> = OnceCell::const_new();
    SHARED.get_or_init(durable).await.clone()
}

/// Another bucket for each test.
pub(crate) fn bucket() -> String {
    static BUCKETS: AtomicU64 = AtomicU64::new(0);
    format!("test-{}", BUCKETS.fetch_add(1, Ordering::Relaxed))
}

/// The settings of a process that meets others in that bucket.
pub(crate) fn config(urls: &[String], bucket: &str) -> NatsBackendConfig {
    NatsBackendConfig {
        urls: urls.to_vec(),
        bucket: bucket.to_owned(),
        sync_interval: SyncInterval::Always,
        ..NatsBackendConfig::default()
    }
}

pub(crate) fn open(config: &NatsBackendConfig) -> Arc<NatsBackend> {
    Arc::new(NatsBackend::open(config, Clock::system()).unwrap())
}

pub(crate) fn backend(url: &str, bucket: &str) -> Arc<NatsBackend> {
    open(&config(&[url.to_owned()], bucket))
}

/// A scope whose group no other case uses.
pub(crate) fn scope_of(url: &str) -> Scope {
    static GROUPS: AtomicU64 = AtomicU64::new(0);
    let group = GroupName::new(format!("conformance {}", GROUPS.fetch_add(1, Ordering::Relaxed))).unwrap();
    let (here, there) = (backend(url, "conformance"), backend(url, "conformance"));
    Scope { backend: here, peer: there, group, ttl: TTL_MIN, clock: Clock::system(), guard: Box::new(()) }
}

pub(crate) fn group() -> GroupName {
    GroupName::new("workers").unwrap()
}

pub(crate) fn registration(id: &str, incarnation: u64) -> Registration {
    let member = Member { incarnation: Incarnation::new(incarnation), ..Member::named(InstanceId::new(id).unwrap()) };
    Registration { group: group(), member, ttl: TTL, claims: false }
}

/// A registration that lives for long without renewals.
pub(crate) fn lasting(id: &str, incarnation: u64) -> Registration {
    Registration { ttl: Duration::from_mins(2), ..registration(id, incarnation) }
}

pub(crate) fn ids(view: &View) -> Vec<&str> {
    view.members().iter().map(|member| member.instance_id.as_str()).collect()
}

/// Waits until `condition` gives something, for at most [`PATIENCE`].
pub(crate) async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// The next view with exactly these members.
pub(crate) async fn view_of(stream: &mut WatchStream, expected: &[&str]) -> Arc<View> {
    conformance::view_where(stream, PATIENCE, &format!("{expected:?}"), |view| ids(view) == expected).await
}

/// The next error.
pub(crate) async fn next_error(stream: &mut WatchStream) -> Error {
    conformance::next_error(stream, PATIENCE).await
}

/// The error of the first call that fails for good, and when that call began. On a busy machine earlier ones may fail for another reason.
pub(crate) async fn refused_for_good(config: &NatsBackendConfig) -> (Instant, Error) {
    let backend = open(config);
    eventually("a call fails for good", async || {
        let begun = Instant::now();
        let error = backend.members(&group()).await.unwrap_err();
        (!error.is_retryable()).then_some((begun, error))
    })
    .await
}

/// That a call failed for good, in time, in one line that names all this.
pub(crate) fn assert_message(error: &Error, kind: &ErrorKind, begun: Instant, names: &[&str]) {
    let said = error.to_string();
    assert!(begun.elapsed() < REPORTED_WITHIN, "{said} after {:?}", begun.elapsed());
    assert!(!said.contains('\n') && names.iter().all(|name| said.contains(name)), "{said:?} names not all of {names:?}");
    assert_eq!((error.kind(), error.is_retryable()), (kind, false), "{said}");
}

/// The slots of a range as resources.
pub(crate) fn slots(range: std::ops::Range<u32>) -> Vec<Resource> {
    range.map(Resource::Slot).collect()
}

/// A member that claims, and lives for long without renewals.
pub(crate) async fn claimant(backend: &NatsBackend, id: &str, incarnation: u64) -> RecordId {
    let registration = Registration { claims: true, ..lasting(id, incarnation) };
    backend.register(&registration).await.unwrap();
    registration.record_id()
}

pub(crate) async fn store(backend: &NatsBackend) -> ClaimStore {
    backend.claim_store(&group(), 0).await.unwrap()
}

/// Asks once; what is granted, in order.
pub(crate) async fn granted(backend: &NatsBackend, record_id: &RecordId, wanted: &[Resource]) -> Vec<(Resource, Epoch)> {
    let answers = backend.acquire(record_id, &store(backend).await, wanted).await.unwrap();
    assert_eq!(answers.len(), wanted.len(), "each is answered");
    only_granted(answers)
}

pub(crate) fn only_granted(answers: Vec<(Resource, AcquireOutcome)>) -> Vec<(Resource, Epoch)> {
    let epoch = |acquired| if let AcquireOutcome::Granted(epoch) = acquired { Some(epoch) } else { None };
    let mut granted: Vec<_> = answers.into_iter().filter_map(|(resource, acquired)| Some((resource, epoch(acquired)?))).collect();
    granted.sort_unstable();
    granted
}

/// A watch of claims and what it has delivered.
pub(crate) struct ClaimsFollower {
    stream: ClaimsStream,
    pub(crate) claims: BTreeMap<Resource, Claim>,
}

impl ClaimsFollower {
    pub(crate) fn of(backend: &NatsBackend) -> Self {
        Self { stream: backend.watch_claims(&group(), PACE), claims: BTreeMap::new() }
    }

    async fn next(&mut self) -> Result<()> {
        match self.stream.next().await.unwrap()? {
            ClaimsEvent::All { claims, .. } => self.claims = claims.into_iter().collect(),
            ClaimsEvent::Changed { changes, .. } => {
                for change in changes {
                    match change.claim {
                        Some(claim) => self.claims.insert(change.resource, claim),
                        None => self.claims.remove(&change.resource),
                    };
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads until exactly these are held.
    pub(crate) async fn until_held(&mut self, expected: &[Resource]) {
        let read = async {
            while !self.claims.keys().eq(expected) {
                let _ = self.next().await;
            }
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        assert!(read.is_ok(), "expected {} claims within {PATIENCE:?}, but there are {:?}", expected.len(), self.claims.keys());
    }
}

/// Members that renew like a service does, each third of a TTL and again at once after a failure, and register again when they have lost
/// their record. Counts how often that happens.
pub(crate) struct Fleet {
    tasks: BTreeMap<String, JoinHandle<()>>,
    pub(crate) lost: Arc<AtomicU64>,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        Self { tasks: BTreeMap::new(), lost: Arc::default() }
    }

    /// Registers a member and keeps it alive, by way of that backend.
    pub(crate) async fn join(&mut self, backend: &Arc<NatsBackend>, id: &str, incarnation: u64) {
        let registration = registration(id, incarnation);
        backend.register(&registration).await.unwrap();
        let (backend, lost) = (Arc::clone(backend), Arc::clone(&self.lost));
        let living = tokio::spawn(async move {
            loop {
                let record_id = registration.record_id();
                match tokio::time::timeout(TTL / 3, backend.renew(&record_id, TTL)).await {
                    Ok(Ok(_)) => tokio::time::sleep(TTL / 3).await,
                    Ok(Err(error)) if *error.kind() == ErrorKind::Lost => {
                        lost.fetch_add(1, Ordering::Relaxed);
                        // Until it is granted, as the library's driver does: a life that has begun may lack its record.
                        while !matches!(tokio::time::timeout(TTL, backend.register(&registration)).await, Ok(Ok(_))) {
                            tokio::time::sleep(POLL_EVERY * 5).await;
                        }
                    }
                    _ => tokio::time::sleep(POLL_EVERY * 5).await,
                }
            }
        });
        self.tasks.insert(id.to_owned(), living);
    }

    /// Ends a member without a farewell.
    pub(crate) fn kill(&mut self, id: &str) {
        self.tasks.remove(id).unwrap_or_else(|| panic!("{id} is not a member")).abort();
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}
