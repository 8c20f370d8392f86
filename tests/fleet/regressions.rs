//! One test for each fixed bug of the library.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures::{StreamExt, stream};
use shardwise::discovery::{
    self, Capabilities, Clock, Discovery, FaultRates, Faults, Grant, MemoryBackend, RecordId, Registration, ViewSnapshot, WatchStream,
};
use shardwise::testing::TestFleet;
use shardwise::{ErrorKind, GroupName, KeyPlacement, NotHeld, PlacementKind, Settings, ShardingFactory, ShardingService};

use crate::common::{World, eventually, policy};

fn real_service() -> ShardingService {
    let text = "[default.resilience.sharding]\npolicies.w.group_name = \"g\"\ndiscovery.backend = \"memory\"";
    let settings = Settings::from_toml_str(text).expect("valid settings");
    ShardingFactory::from_settings(settings).expect("a known backend").create("w").expect("a known policy")
}

/// Joining while the service drained opened the count of work in flight again, and leaving waited for the whole drain timeout.
#[tokio::test(start_paused = true)]
async fn a_wish_to_join_during_a_drain_does_not_prolong_it() {
    let fleet = TestFleet::start(1).await;
    let service = fleet.service(0).clone();
    let _run = service.run_owned(["k"], |_, cancel| async move {
        cancel.cancelled().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = service.now();
    let (left, _joined) = tokio::join!(service.deregister_self(), service.register_self());
    left.expect("it leaves");
    assert!(service.now().since(before) < Duration::from_secs(10), "it took {:?}", service.now().since(before));
}

/// A panic outside the closure's future ended the runner, and with it the work on all other keys.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_closure_itself_ends_one_key_only() {
    let fleet = TestFleet::start(1).await;
    let started = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&started);
    let run = fleet.service(0).run_owned(0..20u32, move |key, cancel| {
        assert!(key != 7, "this key's closure panics");
        count.fetch_add(1, Ordering::SeqCst);
        async move { cancel.cancelled().await }
    });
    eventually("the other nineteen run", || started.load(Ordering::SeqCst) == 19).await;
    run.set_keys(100..110u32);
    eventually("later keys run", || started.load(Ordering::SeqCst) == 29).await;
}

/// Each of many cancelled tasks looked through all of them.
#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_are_let_go_without_counting_each_against_all() {
    let fleet = TestFleet::start(1).await;
    let service = fleet.service(0);
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let _run = service.run_owned(0..10_000u32, move |_, cancel| {
        let count = Arc::clone(&count);
        async move {
            cancel.cancelled().await;
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = service.now();
    service.deregister_self().await.expect("it leaves");
    assert_eq!(ended.load(Ordering::SeqCst), 10_000);
    assert!(service.now().since(before) < Duration::from_secs(1), "on paused time only waiting costs");
}

/// The service waited for a state that no task was left to report.
#[test]
fn leaving_a_runtime_that_is_gone_is_an_error_and_no_wait_for_ever() {
    let theirs = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let service = theirs.block_on(async {
        let service = real_service();
        service.register_self().await.expect("it joins");
        service
    });
    let _run = theirs.block_on(async { service.run_owned(["k"], |_, _| std::future::pending()) });
    let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let leaving = service.clone();
    // Its only thread is kept busy until the test frees it, or the leave might be carried out before.
    let (busy, is_busy) = mpsc::channel::<()>();
    let (free, gate) = mpsc::channel::<()>();
    theirs.spawn(async move {
        drop(busy);
        gate.recv().expect_err("nothing is sent");
    });
    is_busy.recv().expect_err("nothing is sent");
    let left = ours.block_on(async move {
        let end = std::thread::spawn(move || {
            theirs.shutdown_background();
            drop(free);
        });
        let left = tokio::time::timeout(Duration::from_secs(20), leaving.deregister_self()).await;
        end.join().expect("no panic");
        left
    });
    let error = left.expect("an answer in time").expect_err("nobody is left who could deregister");
    assert_eq!(error.kind(), ErrorKind::Closed);
}

/// A slow callback was called once for every change of long ago.
#[tokio::test(start_paused = true)]
async fn a_slow_callback_gets_what_it_missed_in_one_call() {
    let mut fleet = TestFleet::start(1).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (open, gate) = mpsc::channel::<()>();
    let (log, gate) = (Arc::clone(&seen), Mutex::new(gate));
    fleet.service(0).on_rebalance(move |r| {
        log.lock().expect("not poisoned").push(r.members_total);
        // Waits until the other end is dropped; from then on it does not wait.
        gate.lock().expect("not poisoned").recv().expect_err("nothing is sent");
    });
    for _ in 0..5 {
        fleet.join().await;
    }
    // No timer: the paused clock does not advance while a callback blocks its thread.
    let mut changes = fleet.service(0).ownership_changes();
    changes.wait_for(|ownership| ownership.view().members().len() == 6).await.expect("the service lives");
    drop(open);
    eventually("the last change is told", || seen.lock().is_ok_and(|seen| seen.last() == Some(&6))).await;
    let calls = seen.lock().expect("not poisoned").len();
    assert!(calls <= 3, "{calls} calls for five changes");
}

/// What a killed member ran went on for ever.
#[tokio::test(start_paused = true)]
async fn what_a_killed_member_ran_ends_with_it() {
    let mut fleet = TestFleet::start(2).await;
    let running = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&running);
    let _run = fleet.service(0).run_owned(0..100u32, move |_, cancel| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            cancel.cancelled().await;
            count.fetch_sub(1, Ordering::SeqCst);
        }
    });
    eventually("it works", || running.load(Ordering::SeqCst) > 20).await;
    fleet.kill(0);
    eventually("its work has ended", || running.load(Ordering::SeqCst) == 0).await;
    assert!((0..100u32).all(|key| !fleet.owners(&key).contains(&0)), "a dead member owns nothing");
}

/// The first wait for a change was answered at once with the view that had been there from the beginning.
#[tokio::test(start_paused = true)]
async fn an_observer_waits_for_a_change_and_not_for_what_it_has_shown() {
    let world = World::new();
    let _a = world.joined("a").await;
    let mut observer = world.factory("watcher").observe("workers").await.expect("reachable");
    assert_eq!(observer.members().members().len(), 1);
    let early = tokio::time::timeout(Duration::from_secs(10), observer.changed()).await;
    assert!(early.is_err(), "nothing has changed");
    let _b = world.joined("b").await;
    let notified = tokio::time::timeout(Duration::from_secs(1), observer.changed()).await;
    assert_eq!((notified, observer.members().members().len()), (Ok(true), 2));
}

/// The runner of `run_owned` kept what it shares with the service alive, and with it every stream.
#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_leaves_and_ends_every_stream_though_an_owned_run_lives() {
    for reachable in [true, false] {
        let world = World::new();
        let link = world.store.link();
        let service = world.factory_of("a", Arc::new(link.clone()), policy()).create("workers").expect("known");
        service.register_self().await.expect("joins");
        let running = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&running);
        let _run = service.run_owned(0..10u32, move |_, cancel| {
            let count = Arc::clone(&count);
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                cancel.cancelled().await;
                count.fetch_sub(1, Ordering::SeqCst);
            }
        });
        eventually("it works", || running.load(Ordering::SeqCst) == 10).await;
        let (mut members, mut rebalances, mut snapshots) = (service.watch_members(), service.rebalances(), service.snapshots());
        link.set_reachable(reachable);
        let dropped = world.clock.now();
        drop(service);
        let ended = tokio::time::timeout(Duration::from_secs(5), async {
            while members.next().await.is_some() {}
            while rebalances.recv().await.is_some() {}
            while snapshots.recv().await.is_some() {}
        });
        ended.await.expect("the streams end with the service");
        assert_eq!(running.load(Ordering::SeqCst), 0, "the work was cancelled and waited for");
        let took = world.clock.now().since(dropped);
        // A service that cannot reach its backend waits until its record would no longer be seen; the record expires with its TTL.
        assert_eq!(took < Duration::from_secs(2), reachable, "with a TTL of 3 s it was gone after {took:?}");
        let left = world.store.members(&policy().group).await.expect("a read").view;
        assert!(left.members().is_empty(), "deregistered, or its lease has ended");
    }
}

/// The clock of the deadlines runs on while a machine is suspended, the timers do not: after an hour of sleep, owned work ran on until
/// the next timer that had been set before it.
#[tokio::test(start_paused = true)]
async fn owned_work_is_cancelled_soon_after_a_suspended_machine_wakes_up() {
    let slept = Arc::new(AtomicU64::new(0));
    let (hours, awake) = (Arc::clone(&slept), Clock::tokio());
    let clock = Clock::custom(move || awake.now().plus(Duration::from_hours(hours.load(Ordering::SeqCst))));
    let world = World { store: MemoryBackend::new(clock.clone()), clock, ..World::new() };
    let service = world.joined("a").await;
    let running = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&running);
    let _run = service.run_owned(["k"], move |_, cancel| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            cancel.cancelled().await;
            count.fetch_sub(1, Ordering::SeqCst);
        }
    });
    eventually("it works", || running.load(Ordering::SeqCst) == 1).await;
    let mut rebalances = service.rebalances();
    slept.store(1, Ordering::SeqCst);
    assert!(!service.owns("k"), "reads know at once");
    let notified = tokio::time::timeout(Duration::from_millis(300), rebalances.recv()).await;
    let notified = notified.expect("it is noticed soon").expect("the service lives");
    assert_eq!(notified.lost.len(), policy().placement.slots, "all is lost, though it may be back already");
    eventually("it works again", || running.load(Ordering::SeqCst) == 1 && service.owns("k")).await;
}

/// A store whose watches fail so many times at once before they work.
struct Failing {
    inner: MemoryBackend,
    times: usize,
    read: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl Discovery for Failing {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant, discovery::Error> {
        self.inner.register(registration).await
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant, discovery::Error> {
        self.inner.renew(record_id, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<(), discovery::Error> {
        self.inner.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<(), discovery::Error> {
        self.inner.deregister(record_id).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot, discovery::Error> {
        self.inner.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        let read = Arc::clone(&self.read);
        let errors = stream::repeat_with(move || {
            read.fetch_add(1, Ordering::SeqCst);
            Err(discovery::Error::new(discovery::ErrorKind::Unavailable, "watch", "cannot read it; check `address`"))
        });
        errors.take(self.times).chain(self.inner.watch(group, prove_every)).boxed()
    }
}

/// A watch that yields one error after the other was read without a pause, and kept a processor busy.
#[tokio::test(start_paused = true)]
async fn a_watch_that_only_fails_is_read_in_steps() {
    let world = World::new();
    let read = Arc::new(AtomicUsize::new(0));
    // More than is read in the time below; an endless stream would keep the clock from going on at all.
    let backend = Failing { inner: world.store.link(), times: 5_000, read: Arc::clone(&read) };
    let service = world.factory_of("a", Arc::new(backend), policy()).create("workers").expect("known");
    let ten_seconds = tokio::time::sleep(Duration::from_secs(10));
    // Whether it joins without a view is not the matter here.
    let (_, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(9), service.register_self()), ten_seconds);
    let read = read.load(Ordering::SeqCst);
    assert!((6..=20).contains(&read), "it is read {read} times in ten seconds");
}

/// What follows a few errors is not delayed by the pauses of a watch that only fails.
#[tokio::test(start_paused = true)]
async fn a_view_after_a_few_errors_is_not_delayed() {
    let world = World::new();
    let backend = Failing { inner: world.store.link(), times: 4, read: Arc::default() };
    let service = world.factory_of("a", Arc::new(backend), policy()).create("workers").expect("known");
    let before = world.clock.now();
    service.register_self().await.expect("it joins");
    eventually("it owns", || service.owns("k")).await;
    assert!(world.clock.now().since(before) < Duration::from_millis(100), "it took {:?}", world.clock.now().since(before));
}

/// A deregistration that the backend carried out only after its caller had given it up and had joined again deleted the new registration:
/// until its next renewal a worker served what another one was given meanwhile.
#[tokio::test(start_paused = true)]
async fn a_deregistration_that_comes_late_does_not_end_the_membership_that_was_made_after_it() {
    let world = World::new();
    let late = FaultRates { execute_late: 1.0, execute_late_max: Duration::from_secs(5), ..FaultRates::NONE };
    for seed in 0..20 {
        let id = format!("a{seed}");
        let faults = Faults::new(Arc::new(world.store.link()), seed, FaultRates::NONE);
        let service = world.factory_of(&id, Arc::new(faults.clone()), policy()).create("workers").expect("known");
        service.register_self().await.expect("it joins");
        faults.set_rates(late);
        service.deregister_self().await.expect("it leaves, whatever the backend answers");
        faults.set_rates(FaultRates::NONE);
        // A renewal that comes late makes its former life look alive, once.
        while let Err(error) = service.register_self().await {
            assert_eq!(error.kind(), ErrorKind::InstanceIdInUse, "seed {seed}: {error}");
        }
        let is_member = || async {
            let members = world.store.members(&policy().group).await.expect("a read").view;
            members.members().iter().any(|member| member.instance_id.as_str() == id)
        };
        let joined = world.clock.now();
        while faults.pending() > 0 || world.clock.now().since(joined) < world.ttl {
            assert!(is_member().await, "seed {seed}: its record is gone {:?} after it joined", world.clock.now().since(joined));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        service.deregister_self().await.expect("it leaves");
    }
}

/// A guard that was refused under a key placement named slot 0, and such a placement has no slots.
#[tokio::test(start_paused = true)]
async fn a_guard_refused_under_a_key_placement_names_the_placement() {
    let (world, mut by_key) = (World::new(), policy());
    by_key.placement.kind = PlacementKind::Key(KeyPlacement::Modulo);
    let services = ["a", "b"].map(|id| {
        let factory = world.factory_of(id, Arc::new(world.store.link()), by_key.clone());
        factory.create("workers").expect("known")
    });
    for service in &services {
        service.register_self().await.expect("it joins");
    }
    let [a, b] = &services;
    eventually("they share", || (0..100_u32).all(|key| a.owns(&key) != b.owns(&key))).await;
    let theirs = (0..100_u32).find(|key| b.owns(key)).expect("one of a hundred");
    let placement = by_key.placement.kind;
    let refused = [a.enter(&theirs).map(drop), a.run_exclusive(&theirs, async {}).await];
    assert_eq!(refused, [Err(NotHeld::KeyElsewhere { placement }); 2]);
    assert_eq!(
        NotHeld::KeyElsewhere { placement }.to_string(),
        "the key is not held by this worker: placement modulo gives it to another member"
    );
}
