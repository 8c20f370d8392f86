//! What a refused worker does: say why, once, and come back by itself when the cause is gone.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, stream};
use shardwise::discovery::{self, Capabilities, Discovery, Grant, MemoryBackend, Registration, Seat, Snapshot, WatchStream};
use shardwise::{ErrorKind, GroupName, ServiceState, ShardingService};
use tracing::subscriber::DefaultGuard;

use common::{World, eventually, policy};

/// A store whose operator takes the workers' rights away and gives them back.
struct Guarded {
    inner: MemoryBackend,
    denied: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Guarded {
    fn check(&self, operation: &'static str) -> Result<(), discovery::Error> {
        if !self.denied.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        Err(discovery::Error::new(discovery::ErrorKind::Denied, operation, "the token has expired; renew it"))
    }
}

#[async_trait::async_trait]
impl Discovery for Guarded {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant, discovery::Error> {
        self.check("register")?;
        self.inner.register(registration).await
    }
    async fn renew(&self, seat: &Seat, ttl: Duration) -> Result<Grant, discovery::Error> {
        self.check("renew")?;
        self.inner.renew(seat, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<(), discovery::Error> {
        self.check("update")?;
        self.inner.update(registration).await
    }
    async fn deregister(&self, seat: &Seat) -> Result<(), discovery::Error> {
        self.check("deregister")?;
        self.inner.deregister(seat).await
    }
    async fn members(&self, group: &GroupName) -> Result<Snapshot, discovery::Error> {
        self.check("members")?;
        self.inner.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        match self.check("watch") {
            Ok(()) => self.inner.watch(group, prove_every),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }
}

/// What is logged on this thread, as text. Each test of this file keeps one: a thread without any could switch the same line off for the
/// others (it registers the line as wanted by nobody).
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let to_log = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to_log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn lines_with(&self, part: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().expect("not poisoned")).lines().filter(|line| line.contains(part)).count()
    }
}

/// A fleet whose token expired was refused for good: only restarting every worker brought it back.
#[tokio::test(start_paused = true)]
async fn a_fleet_that_was_denied_for_ten_minutes_comes_back_by_itself() {
    let (log, _logging) = Log::start();
    let world = World::new();
    let spared = world.joined("spared").await;
    let (denied, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut fleet = Vec::new();
    for id in ["a", "b"] {
        let backend = Guarded { inner: world.store.link(), denied: Arc::clone(&denied), refused: Arc::clone(&refused) };
        let service = world.factory_of(id, Arc::new(backend), policy()).create("workers").expect("known");
        service.register_self().await.expect("joins");
        fleet.push(service);
    }
    denied.store(true, Ordering::SeqCst);
    eventually("both are refused", || fleet.iter().all(|s| s.state() == ServiceState::Refused)).await;
    eventually("who is not denied does the work", || (0..100u32).all(|key| spared.owns(&key))).await;
    let before = refused.load(Ordering::SeqCst);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        for service in &fleet {
            let told = service.try_filter_owned_items(&["k"]).expect_err("owns nothing");
            assert_eq!((told.state, told.hint.as_str()), (ServiceState::Refused, "register: the token has expired; renew it"));
        }
    }
    let calls = refused.load(Ordering::SeqCst) - before;
    assert!((400..=801).contains(&calls), "{calls} calls of two workers in ten minutes with a TTL of 3 s");
    let said = log.lines_with("the discovery backend failed");
    assert_eq!(said, 2, "each worker says once that it was denied");
    denied.store(false, Ordering::SeqCst);
    let mended = world.clock.now();
    let active = |s: &ShardingService| s.state() == ServiceState::Active && s.members().members().len() == 3;
    eventually("both are back", || fleet.iter().all(active)).await;
    let took = world.clock.now().since(mended);
    assert!(took < Duration::from_millis(3_200), "back after {took:?} with a TTL of 3 s");
    denied.store(true, Ordering::SeqCst);
    eventually("both are refused again", || fleet.iter().all(|s| s.state() == ServiceState::Refused)).await;
    assert_eq!(log.lines_with("the discovery backend failed"), 4, "after a success it is news again");
}

/// The reason for a refusal at the first try is the user's at once, and nothing goes on behind his back.
#[tokio::test(start_paused = true)]
async fn a_first_registration_that_is_denied_is_an_error_at_once_and_is_not_repeated() {
    let (_log, _logging) = Log::start();
    let world = World::new();
    let (denied, refused) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let backend = Guarded { inner: world.store.link(), denied: Arc::clone(&denied), refused: Arc::clone(&refused) };
    let service = world.factory_of("a", Arc::new(backend), policy()).create("workers").expect("known");
    let before = world.clock.now();
    let error = service.register_self().await.expect_err("denied");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Backend, false));
    assert_eq!(error.to_string(), "register: the token has expired; renew it");
    assert!(world.clock.now().since(before) < Duration::from_millis(500), "at once");
    assert_eq!(service.state(), ServiceState::Left);
    let calls = refused.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(refused.load(Ordering::SeqCst), calls, "nothing is tried any more");
}
