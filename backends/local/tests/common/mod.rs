//! What the tests share.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use shardwise_backend_local::{LocalBackend, LocalConfig};
use shardwise_core::{Claim, ClaimStore, Epoch, GroupName, Incarnation, InstanceId, Member, Moment, Resource, View};
use shardwise_discovery::{
    AcquireOutcome, Claims, ClaimsEvent, ClaimsStream, Clock, Discovery, Error, ErrorKind, RecordId, Registration, WatchStream, conformance,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

/// Long enough for the busiest machine; a test that waits this long fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How often a condition is looked at.
const POLL_EVERY: Duration = Duration::from_millis(5);

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

/// A directory that goes away, and a path in it.
pub(crate) struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory().join("members.db")
    }

    pub(crate) fn backend(&self) -> LocalBackend {
        backend(&self.path())
    }

    /// Makes the file, by a member that joins and leaves, and waits until it is closed.
    pub(crate) async fn make(&self) {
        make(&self.backend()).await;
        self.closed().await;
        // Connections that close at once may each leave the -wal file to the other.
        run_sql(&self.path(), "PRAGMA wal_checkpoint(TRUNCATE)").await;
    }

    /// Waits until no connection of this process has the file open: a backend that was dropped closes them behind the caller's back.
    pub(crate) async fn closed(&self) {
        eventually("the file is closed", async || (descriptors(&self.path()) == 0).then_some(())).await;
    }

    pub(crate) async fn sql(&self) -> SqliteConnection {
        sql(&self.path()).await
    }
}

pub(crate) fn backend(path: &Path) -> LocalBackend {
    with_clock(path, Clock::system())
}

pub(crate) fn with_clock(path: &Path, clock: Clock) -> LocalBackend {
    LocalBackend::open(LocalConfig { path: path.to_owned() }, clock).unwrap()
}

/// A connection to the file from outside the backend.
pub(crate) async fn sql(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true).busy_timeout(PATIENCE);
    options.connect().await.unwrap()
}

/// Runs statements on the file from outside the backend, then closes it.
pub(crate) async fn run_sql(path: &Path, statements: &'static str) {
    let mut connection = sql(path).await;
    sqlx::raw_sql(statements).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// A clock that moves only when the test moves it, and counts how often it is read.
#[derive(Clone)]
pub(crate) struct Hand {
    nanos: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
}

impl Hand {
    pub(crate) fn new() -> Self {
        Self { nanos: Arc::new(AtomicU64::new(1_000_000_000_000)), reads: Arc::default() }
    }

    pub(crate) fn clock(&self) -> Clock {
        let Self { nanos, reads } = self.clone();
        Clock::custom(move || {
            reads.fetch_add(1, Ordering::SeqCst);
            Moment::from_nanos(nanos.load(Ordering::SeqCst))
        })
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.nanos.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    /// Waits until the clock has been read again.
    pub(crate) async fn read_after(&self, reads: u64) {
        eventually("the clock is read", async || (self.reads() > reads).then_some(())).await;
    }

    pub(crate) fn backend(&self, scratch: &Scratch) -> LocalBackend {
        with_clock(&scratch.path(), self.clock())
    }
}

pub(crate) fn group() -> GroupName {
    GroupName::new("workers").unwrap()
}

pub(crate) fn registration(id: &str, incarnation: u64, ttl: Duration) -> Registration {
    let member = Member { incarnation: Incarnation::new(incarnation), ..Member::named(InstanceId::new(id).unwrap()) };
    Registration { group: group(), member, ttl, claims: true }
}

/// Registers a member that lives so long.
pub(crate) async fn joined(backend: &LocalBackend, id: &str, ttl: Duration) -> Registration {
    let registration = registration(id, 1, ttl);
    backend.register(&registration).await.unwrap();
    registration
}

/// How often this process has the file open.
pub(crate) fn descriptors(path: &Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path)).count()
}

/// Makes the file, by a member that joins and leaves: looking at a group makes none.
pub(crate) async fn make(backend: &LocalBackend) {
    let record_id = joined(backend, "first", PATIENCE).await.record_id();
    backend.deregister(&record_id).await.unwrap();
}

pub(crate) fn ids(view: &View) -> Vec<&str> {
    view.members().iter().map(|member| member.instance_id.as_str()).collect()
}

/// The next view that has exactly these members.
pub(crate) async fn view_of(stream: &mut WatchStream, expected: &[&str]) -> Arc<View> {
    conformance::view_where(stream, PATIENCE, &format!("{expected:?}"), |view| ids(view) == expected).await
}

/// The next error.
pub(crate) async fn next_error(stream: &mut WatchStream) -> Error {
    conformance::next_error(stream, PATIENCE).await
}

/// Checks kind, whether it may pass, and the whole text.
pub(crate) fn expect_error(error: &Error, kind: &ErrorKind, text: &str) {
    assert_eq!(error.to_string(), text);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(!text.contains('\n'));
}

pub(crate) fn slots(range: Range<u32>) -> Vec<Resource> {
    range.map(Resource::Slot).collect()
}

/// The store of claims in force.
pub(crate) async fn store(backend: &LocalBackend) -> ClaimStore {
    backend.claim_store(&group(), 0).await.unwrap()
}

/// On a busy machine the file may be locked for longer than a call waits; such a call has done nothing, and is made again.
fn is_tried_again(begun: Instant, error: &Error) {
    assert!(error.is_retryable() && begun.elapsed() < Duration::from_mins(2), "{error}");
}

/// Asks until the file is free, and returns what was granted then.
pub(crate) async fn granted(backend: &LocalBackend, record_id: &RecordId, wanted: &[Resource]) -> BTreeMap<Resource, Epoch> {
    let (begun, group) = (Instant::now(), group());
    let answers = loop {
        let asked = async { backend.acquire(record_id, &backend.claim_store(&group, 0).await?, wanted).await };
        match asked.await {
            Ok(answers) => break answers,
            Err(error) => is_tried_again(begun, &error),
        }
    };
    let epoch = |acquired| if let AcquireOutcome::Granted(epoch) = acquired { Some(epoch) } else { None };
    answers.into_iter().filter_map(|(resource, acquired)| Some((resource, epoch(acquired)?))).collect()
}

pub(crate) async fn release(backend: &LocalBackend, record_id: &RecordId, held: &BTreeMap<Resource, Epoch>) {
    let held: Vec<_> = held.iter().map(|(resource, epoch)| (resource.clone(), *epoch)).collect();
    let begun = Instant::now();
    while let Err(error) = backend.release(record_id, &held).await {
        is_tried_again(begun, &error);
    }
}

/// A follower of the group's claims.
pub(crate) struct Follower {
    pub(crate) stream: ClaimsStream,
    pub(crate) held: BTreeMap<Resource, Claim>,
}

impl Follower {
    pub(crate) fn of(backend: &LocalBackend, prove_every: Duration) -> Self {
        Self { stream: backend.watch_claims(&group(), prove_every), held: BTreeMap::new() }
    }

    /// The next event, taken in; errors are handed back.
    pub(crate) async fn next(&mut self) -> Result<ClaimsEvent, Error> {
        let event = tokio::time::timeout(PATIENCE, self.stream.next()).await.expect("an event in time").expect("the watch goes on")?;
        match &event {
            ClaimsEvent::All { claims, .. } => self.held = claims.iter().cloned().collect(),
            ClaimsEvent::Changed { changes, .. } => {
                for change in changes {
                    match &change.claim {
                        Some(claim) => self.held.insert(change.resource.clone(), claim.clone()),
                        None => self.held.remove(&change.resource),
                    };
                }
            }
            _ => {}
        }
        Ok(event)
    }

    /// Reads until these slots are held and nothing else; errors on the way are allowed.
    pub(crate) async fn until(&mut self, expected: Range<u32>) {
        let expected = slots(expected);
        let started = Instant::now();
        loop {
            let is_event = self.next().await.is_ok();
            if is_event && self.held.keys().eq(&expected) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain for {} slots, {} are held", expected.len(), self.held.len());
        }
    }

    /// The next error.
    pub(crate) async fn error(&mut self) -> Error {
        loop {
            if let Err(error) = self.next().await {
                return error;
            }
        }
    }
}
