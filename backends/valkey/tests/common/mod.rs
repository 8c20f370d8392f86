//! What the tests share.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use shardwise_backend_valkey::{TTL_MIN, ValkeyBackend, ValkeyConfig};
use shardwise_core::{GroupName, Incarnation, InstanceId, Member, View};
use shardwise_discovery::conformance::Scope;
use shardwise_discovery::{Clock, Discovery, Error, ErrorKind, Registration, WatchEvent, WatchStream, conformance};
use shardwise_testkit::{Redis, RedisOptions};
use tokio::runtime::Handle;
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

pub(crate) async fn valkey() -> Redis {
    Redis::start(RedisOptions::default().valkey()).await.unwrap()
}

pub(crate) fn open(config: &ValkeyConfig) -> Arc<ValkeyBackend> {
    Arc::new(ValkeyBackend::open(config, Clock::system()).unwrap())
}

pub(crate) fn backend(url: &str) -> Arc<ValkeyBackend> {
    open(&ValkeyConfig::new(url))
}

/// A scope whose group no other case uses.
pub(crate) fn scope_of(url: &str) -> Scope {
    static GROUPS: AtomicU64 = AtomicU64::new(0);
    let group = GroupName::new(format!("conformance {{{}}}", GROUPS.fetch_add(1, Ordering::Relaxed))).unwrap();
    Scope { backend: backend(url), peer: backend(url), group, ttl: TTL_MIN, clock: Clock::system(), guard: Box::new(()) }
}

pub(crate) fn group() -> GroupName {
    GroupName::new("workers").unwrap()
}

/// A key of that group.
pub(crate) fn key(what: &str) -> String {
    format!("shardwise:v1:{{workers}}:{what}")
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
pub(crate) async fn refused_for_good(config: &ValkeyConfig) -> (Instant, Error) {
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

/// Reads a watch all the time; its end fails if a revision fell. Gives back the last view's members and revision.
pub(crate) struct Watching {
    task: JoinHandle<()>,
    last: Arc<std::sync::Mutex<(Vec<String>, u64)>>,
}

impl Watching {
    pub(crate) fn of(mut watch: WatchStream) -> Self {
        let last = Arc::<std::sync::Mutex<(Vec<String>, u64)>>::default();
        let shown = Arc::clone(&last);
        let task = tokio::spawn(async move {
            while let Some(event) = watch.next().await {
                if let Ok(WatchEvent::View(snapshot)) = event {
                    let mut shown = shown.lock().unwrap();
                    assert!(snapshot.view.revision() >= shown.1, "{} after {}", snapshot.view.revision(), shown.1);
                    *shown = (ids(&snapshot.view).into_iter().map(str::to_owned).collect(), snapshot.view.revision());
                }
            }
        });
        Self { task, last }
    }

    /// Waits until it shows exactly these members; the revision.
    pub(crate) async fn shows(&self, expected: &[&str]) -> u64 {
        eventually(&format!("{expected:?}"), async || {
            assert!(!self.task.is_finished(), "the watch has ended, or a revision fell");
            let last = self.last.lock().unwrap().clone();
            (last.0 == expected).then_some(last.1)
        })
        .await
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Members that renew like a service does, each third of a TTL and again soon after a failure, and register again when they have lost
/// their record. Counts how often that happens.
pub(crate) struct Fleet {
    tasks: BTreeMap<String, JoinHandle<()>>,
    lost: Arc<AtomicU64>,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        Self { tasks: BTreeMap::new(), lost: Arc::default() }
    }

    /// Registers a member and keeps it alive, by way of that backend.
    pub(crate) async fn join(&mut self, backend: &Arc<ValkeyBackend>, id: &str, incarnation: u64) {
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
