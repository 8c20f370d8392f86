//! How a worker behaves while its backend refuses it or has bugs: it reports why, once, and recovers by itself afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt, future, stream};
use shardwise::discovery::{self, Capabilities, Discovery, Grant, MemoryBackend, RecordId, Registration, ViewSnapshot, WatchStream};
use shardwise::{ErrorKind, GroupName, ServiceState, ShardingService};

use crate::common::{World, eventually, policy};
use crate::log::Log;

const FINE: u8 = 0;
const DENIES: u8 = 1;
const PANICS: u8 = 2;
const SILENT: u8 = 3;
/// It answers, but admits no member.
const FULL: u8 = 4;

/// It takes calls and never answers.
const HANGS: u8 = 6;
/// It admits every member, and shows each of them only itself.
const BLINDS: u8 = 5;
/// No call, no farewell and no watch is ever answered.
const DEAF: u8 = 7;

/// How the backends of one test behave just now, and how many calls have failed.
#[derive(Clone, Default)]
struct Mood(Arc<(AtomicU8, AtomicUsize)>);

impl Mood {
    fn set(&self, mood: u8) {
        self.0.0.store(mood, Ordering::SeqCst);
    }

    fn failed(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }

    /// Never, where the backend does not answer that.
    async fn answers(&self, without: &[u8]) {
        if without.contains(&self.0.0.load(Ordering::SeqCst)) {
            future::pending::<()>().await;
        }
    }

    fn check(&self, operation: &'static str) -> Result<(), discovery::Error> {
        let mood = self.0.0.load(Ordering::SeqCst);
        self.0.1.fetch_add(usize::from(mood != FINE), Ordering::SeqCst);
        assert!(mood != PANICS, "{operation}: a bug of the backend");
        match mood {
            DENIES => Err(discovery::Error::new(discovery::ErrorKind::Denied, operation, "the token has expired; renew it")),
            SILENT => Err(discovery::Error::new(discovery::ErrorKind::Unavailable, operation, "cannot reach it; check `address`")),
            BLINDS if matches!(operation, "members" | "watch") => {
                Err(discovery::Error::new(discovery::ErrorKind::Denied, operation, "no right to read; grant it"))
            }
            FULL if operation == "register" => Err(discovery::Error::new(discovery::ErrorKind::Unavailable, operation, "no room now")),
            _ => Ok(()),
        }
    }
}

/// A store whose operator takes the workers' rights away and gives them back, or whose client panics for a while.
struct Moody {
    inner: MemoryBackend,
    mood: Mood,
}

impl Moody {
    fn service(world: &World, id: &str, mood: &Mood) -> ShardingService {
        let backend = Self { inner: world.store.link(), mood: mood.clone() };
        world.factory_of(id, Arc::new(backend), policy()).create("workers").expect("known")
    }
}

#[async_trait::async_trait]
impl Discovery for Moody {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant, discovery::Error> {
        self.mood.check("register")?;
        self.mood.answers(&[HANGS, DEAF]).await;
        self.inner.register(registration).await
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant, discovery::Error> {
        self.mood.check("renew")?;
        self.inner.renew(record_id, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<(), discovery::Error> {
        self.mood.check("update")?;
        self.inner.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<(), discovery::Error> {
        self.mood.check("deregister")?;
        self.mood.answers(&[DEAF]).await;
        self.inner.deregister(record_id).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot, discovery::Error> {
        self.mood.check("members")?;
        self.inner.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        let mood = self.mood.clone();
        if mood.0.0.load(Ordering::SeqCst) == DEAF {
            return stream::pending().boxed();
        }
        if let Err(error) = mood.check("watch") {
            return stream::iter([Err(error)]).boxed();
        }
        let watch = self.inner.watch(group, prove_every).scan(false, move |over, event| {
            let event = (!*over).then(|| mood.check("watch").and(event));
            *over = matches!(event, Some(Err(_)));
            future::ready(event)
        });
        watch.boxed()
    }
}

/// A fleet whose token expired was refused for good: only restarting every worker brought it back.
#[tokio::test(start_paused = true)]
async fn a_fleet_that_was_denied_for_ten_minutes_comes_back_by_itself() {
    let (log, _logging) = Log::start();
    let world = World::new();
    let spared = world.joined("spared").await;
    let mood = Mood::default();
    let fleet = ["a", "b"].map(|id| Moody::service(&world, id, &mood));
    for service in &fleet {
        service.register_self().await.expect("joins");
    }
    mood.set(DENIES);
    eventually("both are refused", || fleet.iter().all(|s| s.state() == ServiceState::Refused)).await;
    eventually("who is not denied does the work", || (0..100u32).all(|key| spared.owns(&key))).await;
    let before = mood.failed();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        for service in &fleet {
            let reported = service.try_filter_owned_items(&["k"]).expect_err("owns nothing");
            assert_eq!((reported.state, reported.hint.as_str()), (ServiceState::Refused, "register: the token has expired; renew it"));
        }
    }
    let calls = mood.failed() - before;
    assert!((400..=801).contains(&calls), "{calls} calls of two workers in ten minutes with a TTL of 3 s");
    let said = log.lines_with("the discovery backend failed");
    assert_eq!(said, 2, "each worker says once that it was denied");
    mood.set(FINE);
    let mended = world.clock.now();
    let active = |s: &ShardingService| s.state() == ServiceState::Active && s.members().members().len() == 3;
    eventually("both are back", || fleet.iter().all(active)).await;
    let took = world.clock.now().since(mended);
    assert!(took < Duration::from_millis(3_200), "back after {took:?} with a TTL of 3 s");
    mood.set(DENIES);
    eventually("both are refused again", || fleet.iter().all(|s| s.state() == ServiceState::Refused)).await;
    assert_eq!(log.lines_with("the discovery backend failed"), 4, "after a success it is logged again");
}

/// The reason for a refusal at the first try is the user's at once, and nothing goes on behind his back.
#[tokio::test(start_paused = true)]
async fn a_first_registration_that_is_denied_is_an_error_at_once_and_is_not_repeated() {
    let world = World::new();
    let mood = Mood::default();
    mood.set(DENIES);
    let service = Moody::service(&world, "a", &mood);
    let before = world.clock.now();
    let error = service.register_self().await.expect_err("denied");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Backend, false));
    // It reads the group and joins at once; the error is from the call that is refused first.
    let said = error.to_string();
    assert!(["register", "watch"].map(|call| format!("{call}: the token has expired; renew it")).contains(&said), "{said}");
    assert!(world.clock.now().since(before) < Duration::from_millis(500), "at once");
    assert_eq!(service.state(), ServiceState::Left);
    let calls = mood.failed();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(mood.failed(), calls, "nothing is tried any more");
}

/// A worker that may register but not read got its error only after the TTL and five seconds.
#[tokio::test(start_paused = true)]
async fn a_group_that_may_not_be_seen_is_an_error_of_the_first_registration_at_once() {
    let world = World::new();
    let mood = Mood::default();
    mood.set(BLINDS);
    let service = Moody::service(&world, "a", &mood);
    let before = world.clock.now();
    let error = service.register_self().await.expect_err("it sees nobody");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Backend, false));
    assert_eq!(error.to_string(), "watch: no right to read; grant it");
    assert!(world.clock.now().since(before) < Duration::from_millis(500), "at once");
    assert_eq!(service.state(), ServiceState::Left);
    // Regression: an operator, who calls no operation of the backend, got its name too.
    let backend = Moody { inner: world.store.link(), mood: mood.clone() };
    let operator = world.factory_of("operator", Arc::new(backend), policy());
    for denied in [operator.observe("workers").await.map(drop), operator.confirm_loss("workers").await.map(drop)] {
        let denied = denied.expect_err("an operator sees nobody either");
        let said = "no right to read; grant it".to_owned();
        assert_eq!((denied.to_string(), format!("{denied:?}")), (said.clone(), said));
    }
    mood.set(FINE);
    service.register_self().await.expect("it has the right now");
    assert_eq!(service.members().members().len(), 1, "and no former self is in the way");
    mood.set(BLINDS);
    let half = world.clock.now().plus(Duration::from_secs(2));
    eventually("time passes", || world.clock.now() >= half).await;
    assert!(service.owns("k"), "who is a member already goes by the view it has, for two TTLs");
}

/// The driver ends a call that takes longer than the lease; in the backend's place it names the settings to look at.
#[tokio::test(start_paused = true)]
async fn a_backend_that_takes_longer_than_the_lease_is_named() {
    let world = World::new();
    let mood = Mood::default();
    mood.set(HANGS);
    let error = Moody::service(&world, "a", &mood).register_self().await.expect_err("nobody gets in");
    let said =
        "not a member after 8.05s: register: no answer within 3s; check discovery.memory, and that nothing between is slow or silent";
    assert!(error.to_string().starts_with(said), "{error}");
}

/// With a wrong address, a worker got its error only after the TTL and five seconds, 15 s with the default TTL. Without any server there,
/// its attempt to deregister took two seconds more.
#[tokio::test(start_paused = true)]
async fn a_backend_that_never_answers_is_reported_within_seven_seconds_whatever_the_ttl() {
    let moods = [(SILENT, "cannot reach it; check `address`", "7s"), (DEAF, "no answer within 3s", "7s"), (FULL, "no room now", "8.05s")];
    for (mood, reason, limit) in moods {
        let world = World::new();
        let moody = Mood::default();
        moody.set(mood);
        let service = Moody::service(&world, "a", &moody);
        let before = world.clock.now();
        let error = service.register_self().await.expect_err("nobody gets in");
        let took = world.clock.now().since(before);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
        let said = error.to_string();
        assert!(said.starts_with(&format!("not a member after {limit}: ")) && said.contains(reason), "{said}");
        assert_eq!(took.as_secs(), if mood == FULL { 8 } else { 7 }, "{said}");
    }
}

/// A panic in a backend's code took the answer with it that the worker waited for: no renewal, no new registration, no end of leaving.
#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_is_like_one_out_of_reach() {
    let (log, _logging) = Log::start();
    let world = World::new();
    let mood = Mood::default();
    let service = Moody::service(&world, "a", &mood);
    service.register_self().await.expect("joins");
    mood.set(PANICS);
    eventually("it is fenced", || service.state() == ServiceState::Fenced).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(mood.failed() > 10, "it goes on trying");
    assert_eq!(log.lines_with("the discovery backend failed"), 1);
    mood.set(FINE);
    eventually("it owns again", || service.owns("k")).await;
    let other = world.joined("b").await;
    eventually("it watches again", || service.members().members().len() == 2).await;
    mood.set(PANICS);
    let left = tokio::time::timeout(Duration::from_secs(5), service.deregister_self()).await;
    left.expect("leaving ends").expect("it has left");
    eventually("its record dies", || other.members().members().len() == 1).await;
}

/// A worker that was killed and started again logged `retryable=false` and joined all the same.
#[tokio::test(start_paused = true)]
async fn a_worker_that_waits_for_its_former_record_says_so_and_a_duplicate_is_refused() {
    let (log, _logging) = Log::start();
    let world = World::new();
    let link = world.store.link();
    let former = world.factory_of("a", Arc::new(link.clone()), policy()).create("workers").expect("known");
    former.register_self().await.expect("joins");
    link.set_reachable(false);
    let waits = "this worker joins when that record has expired";
    let again = world.joined("a").await;
    assert_eq!((log.lines_with(waits), log.lines_with("retryable=false")), (1, 0));
    let twin = world.factory("a").create("workers").expect("known");
    let error = twin.register_self().await.expect_err("the other one lives");
    assert_eq!(error.kind(), ErrorKind::InstanceIdInUse);
    assert_eq!((log.lines_with(waits), log.lines_with("refused: this worker owns nothing"), log.lines_with("retryable=false")), (2, 1, 0));
    assert!(again.owns("k"));
}

/// Every poll of an observer that was denied was logged, five times a second.
#[tokio::test(start_paused = true)]
async fn an_observer_that_is_denied_says_so_once_and_asks_at_most_once_a_second() {
    let (log, _logging) = Log::start();
    let world = World::new();
    let _a = world.joined("a").await;
    let mood = Mood::default();
    let backend = Moody { inner: world.store.link(), mood: mood.clone() };
    let factory = world.factory_of("watcher", Arc::new(backend), policy());
    let mut observer = factory.observe("workers").await.expect("reachable");
    mood.set(DENIES);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!((55..=65).contains(&mood.failed()), "{} polls in a minute", mood.failed());
    assert_eq!(log.lines_with("the group cannot be seen"), 1);
    mood.set(FINE);
    let _b = world.joined("b").await;
    let seen = async { while observer.members().members().len() != 2 && observer.changed().await {} };
    tokio::time::timeout(Duration::from_secs(2), seen).await.expect("it sees again");
}
