//! What the tests share.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt;
use serde_json::{Value, json};
use shardwise_backend_etcd::{EtcdBackend, EtcdConfig};
use shardwise_core::{Claim, ClaimStore, Epoch, GroupName, Incarnation, InstanceId, Member, Resource, View};
use shardwise_discovery::conformance::Scope;
use shardwise_discovery::{
    AcquireOutcome, Claims, ClaimsEvent, ClaimsStream, Clock, Discovery, Error, ErrorKind, RecordId, Registration, Result, WatchEvent,
    WatchStream, conformance,
};
use shardwise_testkit::{Etcd, EtcdCluster, EtcdOptions, KeyAccess};
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

pub(crate) fn config(addresses: &[String]) -> EtcdConfig {
    EtcdConfig { endpoints: addresses.to_vec(), ..EtcdConfig::default() }
}

pub(crate) fn with_user(addresses: &[String], username: &str, password: &str) -> EtcdConfig {
    EtcdConfig { username: Some(username.into()), password: Some(password.into()), ..config(addresses) }
}

pub(crate) fn open(config: &EtcdConfig) -> Arc<EtcdBackend> {
    Arc::new(EtcdBackend::open(config, Clock::system()).unwrap())
}

pub(crate) fn backend(addresses: &[String]) -> Arc<EtcdBackend> {
    open(&config(addresses))
}

/// Waits in place: starting a server is no future that may change threads.
pub(crate) fn waited_for<T>(starting: impl Future<Output = T>) -> T {
    block_in_place(|| Handle::current().block_on(starting))
}

/// Two backends of different members of a cluster, which all tests of a program share, with a password and no more rights than needed.
pub(crate) async fn members_with_passwords() -> (Arc<EtcdBackend>, Arc<EtcdBackend>) {
    static SHARED: OnceCell<EtcdCluster> = OnceCell::const_new();
    let start = async || {
        let cluster = EtcdCluster::start(3, EtcdOptions::default().with_auth()).await?;
        cluster.members()[0].add_user("worker", "right", &[(KeyAccess::ReadWrite, "/shardwise/")]).await?;
        Ok::<_, shardwise_testkit::Error>(cluster)
    };
    let mut addresses = SHARED.get_or_try_init(start).await.unwrap().addresses();
    let here = open(&with_user(&addresses, "worker", "right"));
    addresses.rotate_left(1);
    (here, open(&with_user(&addresses, "worker", "right")))
}

/// A scope whose group no other case uses.
pub(crate) fn scope_of((backend, peer): (Arc<EtcdBackend>, Arc<EtcdBackend>), ttl: Duration) -> Scope {
    static GROUPS: AtomicU64 = AtomicU64::new(0);
    let group = GroupName::new(format!("conformance {}", GROUPS.fetch_add(1, Ordering::Relaxed))).unwrap();
    Scope { backend, peer, group, ttl, clock: Clock::system(), guard: Box::new(()) }
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

pub(crate) fn group() -> GroupName {
    GroupName::new("workers").unwrap()
}

pub(crate) fn registration(id: &str, incarnation: u64) -> Registration {
    let member = Member { incarnation: Incarnation::new(incarnation), ..Member::named(InstanceId::new(id).unwrap()) };
    Registration { group: group(), member, ttl: TTL, claims: false }
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
    view_where(stream, &format!("{expected:?}"), |view| ids(view) == expected).await
}

pub(crate) async fn view_where(stream: &mut WatchStream, what: &str, wanted: impl Fn(&View) -> bool) -> Arc<View> {
    conformance::view_where(stream, PATIENCE, what, wanted).await
}

/// The next error.
pub(crate) async fn next_error(stream: &mut WatchStream) -> Error {
    conformance::next_error(stream, PATIENCE).await
}

/// The next proof, or view, whose read began after now.
pub(crate) async fn next_proof(stream: &mut WatchStream) {
    let now = Clock::system().now();
    let read = async {
        loop {
            match stream.next().await {
                Some(Ok(WatchEvent::View(snapshot))) if snapshot.proven >= now => return,
                Some(Ok(WatchEvent::Proven(proven))) if proven >= now => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("no proof within {PATIENCE:?}"));
}

/// Checks kind, operation and the whole text; and that the text is one line.
pub(crate) fn expect_error<T: std::fmt::Debug>(answer: Result<T>, kind: &ErrorKind, text: &str) {
    let error = answer.unwrap_err();
    assert_eq!(error.to_string(), text);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(!text.contains('\n'));
}

/// The slots of a range as resources.
pub(crate) fn slots(range: std::ops::Range<u32>) -> Vec<Resource> {
    range.map(Resource::Slot).collect()
}

/// A member that claims, and lives for long without renewals.
pub(crate) async fn claimant(backend: &EtcdBackend, id: &str, incarnation: u64) -> RecordId {
    let registration = Registration { ttl: Duration::from_mins(1), claims: true, ..registration(id, incarnation) };
    backend.register(&registration).await.unwrap();
    registration.record_id()
}

pub(crate) async fn store(backend: &EtcdBackend) -> ClaimStore {
    backend.claim_store(&group(), 0).await.unwrap()
}

/// Asks once; what is granted, in order.
pub(crate) async fn granted(backend: &EtcdBackend, record_id: &RecordId, wanted: &[Resource]) -> Vec<(Resource, Epoch)> {
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
    pub(crate) fn of(backend: &EtcdBackend) -> Self {
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

    /// Reads until `wanted`, over errors.
    pub(crate) async fn until(&mut self, what: &str, wanted: impl Fn(&BTreeMap<Resource, Claim>) -> bool) {
        let read = async {
            loop {
                let _ = self.next().await;
                if wanted(&self.claims) {
                    return;
                }
            }
        };
        assert!(
            tokio::time::timeout(PATIENCE, read).await.is_ok(),
            "no event with {what} within {PATIENCE:?}, but {} claims: {:?}",
            self.claims.len(),
            self.claims.keys().take(9)
        );
    }

    /// Reads until exactly these are held.
    pub(crate) async fn until_held(&mut self, expected: &[Resource]) {
        self.until(&format!("{} claims", expected.len()), |claims| claims.keys().eq(expected)).await;
    }

    pub(crate) async fn next_error(&mut self) -> Error {
        let read = async {
            loop {
                if let Err(error) = self.next().await {
                    return error;
                }
            }
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("no error within {PATIENCE:?}"))
    }
}

/// etcd as a user of etcdctl sees it.
pub(crate) struct ByHand<'a>(pub(crate) &'a Etcd);

impl ByHand<'_> {
    async fn ask(&self, path: &str, mut body: Value, key: &str) -> Value {
        body["key"] = BASE64_STANDARD.encode(key).into();
        self.0.api(path, &body).await.unwrap()
    }

    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        let answer = self.ask("/v3/kv/range", json!({}), key).await;
        let value = answer["kvs"].get(0)?["value"].as_str()?.to_owned();
        Some(String::from_utf8(BASE64_STANDARD.decode(value).unwrap()).unwrap())
    }

    pub(crate) async fn put(&self, key: &str, value: &str) {
        self.put_under(key, value, 0).await;
    }

    pub(crate) async fn put_under(&self, key: &str, value: &str, lease: i64) {
        self.ask("/v3/kv/put", json!({ "value": BASE64_STANDARD.encode(value), "lease": lease }), key).await;
    }

    pub(crate) async fn delete(&self, key: &str) {
        self.ask("/v3/kv/deleterange", json!({}), key).await;
    }

    pub(crate) async fn lease(&self) -> i64 {
        let answer = self.0.api("/v3/lease/grant", &json!({ "TTL": 600 })).await.unwrap();
        answer["ID"].as_str().unwrap().parse().unwrap()
    }

    /// The revision of the store: it rises with every write.
    pub(crate) async fn revision(&self) -> i64 {
        let answer = self.ask("/v3/kv/range", json!({}), "x").await;
        answer["header"]["revision"].as_str().unwrap().parse().unwrap()
    }

    /// Compacts all history up to now. "Already compacted" is an error of etcd's, and all the same here.
    pub(crate) async fn compact(&self) {
        let revision = self.revision().await.to_string();
        let _ = self.0.api("/v3/kv/compaction", &json!({ "revision": revision, "physical": true })).await;
    }
}

/// Reads a watch all the time: revisions never fall, equal ones show the same, and nothing is proven in the future.
pub(crate) struct Reader {
    task: JoinHandle<()>,
    seen: Arc<std::sync::Mutex<Vec<Arc<View>>>>,
}

impl Reader {
    pub(crate) fn of(mut watch: WatchStream) -> Self {
        let seen: Arc<std::sync::Mutex<Vec<Arc<View>>>> = Arc::default();
        let kept = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Some(event) = watch.next().await {
                if let Ok(WatchEvent::View(snapshot)) = event {
                    assert!(snapshot.proven <= Clock::system().now());
                    let mut kept = kept.lock().unwrap();
                    if let Some(before) = kept.last() {
                        assert!(snapshot.view.revision() >= before.revision(), "{} after {}", snapshot.view.revision(), before.revision());
                        let same = snapshot.view.revision() == before.revision();
                        assert!(!same || snapshot.view.members() == before.members(), "one revision, two views");
                    }
                    kept.push(snapshot.view);
                }
            }
        });
        Self { task, seen }
    }

    pub(crate) async fn until(&self, expected: &[&str]) {
        eventually(&format!("a view of {expected:?}"), async || {
            assert!(!self.task.is_finished(), "the reader has found something wrong");
            self.seen.lock().unwrap().last().is_some_and(|view| ids(view) == expected).then_some(())
        })
        .await;
    }

    /// Whether every view so far had all of these.
    pub(crate) fn always(&self, expected: &[&str]) -> bool {
        self.seen.lock().unwrap().iter().all(|view| expected.iter().all(|id| ids(view).contains(id)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Members that renew like a service does, each third of a TTL and again at once after a failure, and register again when they have lost
/// their record; and how often each of that has happened.
pub(crate) struct Fleet {
    tasks: BTreeMap<String, JoinHandle<()>>,
    backend: Arc<dyn Discovery>,
}

impl Fleet {
    pub(crate) fn new(backend: Arc<dyn Discovery>) -> Self {
        Self { tasks: BTreeMap::new(), backend }
    }

    /// Registers a member and keeps it alive.
    pub(crate) async fn join(&mut self, id: &str, incarnation: u64) {
        let registration = registration(id, incarnation);
        self.backend.register(&registration).await.unwrap();
        let backend = Arc::clone(&self.backend);
        let living = tokio::spawn(async move {
            loop {
                let record_id = registration.record_id();
                let renewal = tokio::time::timeout(TTL / 3, backend.renew(&record_id, TTL)).await;
                match renewal {
                    Ok(Ok(_)) => tokio::time::sleep(TTL / 3).await,
                    Ok(Err(error)) if *error.kind() == ErrorKind::Lost => {
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
        self.tasks.remove(id).unwrap().abort();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}
