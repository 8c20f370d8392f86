//! What the tests share.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use shardwise_backend_postgres::{PostgresBackend, PostgresBackendConfig, TTL_MIN};
use shardwise_core::{Claim, ClaimStore, Epoch, GroupName, Incarnation, InstanceId, Member, Resource, View};
use shardwise_discovery::conformance::Scope;
use shardwise_discovery::{
    AcquireOutcome, Claims, ClaimsEvent, ClaimsStream, Clock, Discovery, Error, ErrorKind, RecordId, Registration, Result, WatchStream,
    conformance,
};
use shardwise_testkit::{Database, Postgres, PostgresOptions};
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
pub(crate) async fn durable() -> Arc<Postgres> {
    Postgres::start(PostgresOptions::default().durable()).await.unwrap()
}

/// The server that the tests of one program share.
pub(crate) async fn shared() -> Arc<Postgres> {
    static SHARED: OnceCell<Arc<Postgres>> = OnceCell::const_new();
    SHARED.get_or_init(durable).await.clone()
}

/// A new database of that server, with the tables.
pub(crate) async fn prepared(server: &Arc<Postgres>) -> Database {
    let database = server.database().await.unwrap();
    PostgresBackend::init(&PostgresBackendConfig::new(database.url())).await.unwrap();
    database
}

/// A new database of the shared server, with the tables.
pub(crate) async fn database() -> Database {
    prepared(&shared().await).await
}

pub(crate) fn open(config: &PostgresBackendConfig) -> Arc<PostgresBackend> {
    Arc::new(PostgresBackend::open(config, Clock::system()).unwrap())
}

pub(crate) fn backend(url: &str) -> Arc<PostgresBackend> {
    open(&PostgresBackendConfig::new(url))
}

/// A scope whose group no other case uses.
pub(crate) fn scope_of(url: &str) -> Scope {
    static GROUPS: AtomicU64 = AtomicU64::new(0);
    let group = GroupName::new(format!("conformance {}", GROUPS.fetch_add(1, Ordering::Relaxed))).unwrap();
    Scope { backend: backend(url), peer: backend(url), group, ttl: TTL_MIN, clock: Clock::system(), guard: Box::new(()) }
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
pub(crate) async fn claimant(backend: &PostgresBackend, id: &str, incarnation: u64) -> RecordId {
    let registration = Registration { claims: true, ..lasting(id, incarnation) };
    backend.register(&registration).await.unwrap();
    registration.record_id()
}

/// The store of claims, asked for again while a failure may pass.
pub(crate) async fn store(backend: &PostgresBackend) -> ClaimStore {
    let ask = async || match backend.claim_store(&group(), 0).await {
        Ok(store) => Some(store),
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            None
        }
    };
    eventually("the store of claims is known", ask).await
}

/// Asks once; what is granted, in order.
pub(crate) async fn granted(backend: &PostgresBackend, record_id: &RecordId, wanted: &[Resource]) -> Vec<(Resource, Epoch)> {
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
    pub(crate) fn of(backend: &PostgresBackend) -> Self {
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

/// Renews until it is aborted; ends with the error that is not worth trying again.
pub(crate) async fn live(backend: Arc<PostgresBackend>, a: Registration) -> ErrorKind {
    loop {
        match tokio::time::timeout(a.ttl / 3, backend.renew(&a.record_id(), a.ttl)).await {
            Ok(Ok(_)) => tokio::time::sleep(a.ttl / 3).await,
            Ok(Err(error)) if !error.is_retryable() => return error.kind().clone(),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
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
    pub(crate) async fn join(&mut self, backend: &Arc<PostgresBackend>, id: &str, incarnation: u64) {
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
