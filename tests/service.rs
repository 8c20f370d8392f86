//! The service from outside: joining, leaving, listeners, runners, and the errors that a user sees.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use allocation_counter::measure;
use futures::StreamExt;
use shardwise::discovery::{Clock, Discovery, MemoryBackend};
use shardwise::{ErrorKind, LoadMargin, ServiceState, Settings, Sharding, ShardingFactory, ShardingService};

use common::{World, eventually, policy};

fn keys() -> Vec<String> {
    (0..1_000).map(|n| format!("tenant-{n}")).collect()
}

#[tokio::test(start_paused = true)]
async fn three_workers_share_every_key_exactly_once_and_keep_the_order() {
    let world = World::new();
    let (a, b, c) = (world.joined("a").await, world.joined("b").await, world.joined("c").await);
    let keys = keys();
    let shares = || [&a, &b, &c].map(|s| s.filter_owned_items(&keys));
    eventually("every key has one owner", || shares().iter().map(Vec::len).sum::<usize>() == keys.len()).await;
    let all: BTreeSet<_> = shares().into_iter().flatten().collect();
    assert_eq!(all.len(), keys.len());
    for share in shares() {
        assert!(share.is_sorted_by_key(|key| keys.iter().position(|k| k == *key)), "the order is kept");
        assert!(share.len() > 200, "{} of 1,000", share.len());
    }
}

#[tokio::test(start_paused = true)]
async fn before_joining_and_after_leaving_nothing_is_owned_and_the_hint_says_why() {
    let world = World::new();
    let service = world.factory("a").create("workers").expect("known");
    let hint = |service: &ShardingService| service.try_filter_owned_items(&["k"]).expect_err("owns nothing");
    assert_eq!((hint(&service).state, hint(&service).hint.as_str()), (ServiceState::Created, "call register_self first"));
    service.register_self().await.expect("joins");
    assert_eq!(service.try_filter_owned_items(&["k"]), Ok(vec![&"k"]));
    service.deregister_self().await.expect("leaves");
    assert_eq!(hint(&service).state, ServiceState::Left);
    assert!(service.filter_owned_items(&["k"]).is_empty());
    service.register_self().await.expect("joins again");
    assert!(service.owns("k"));
}

/// Every way to ask about a list, of the service itself and through the trait.
#[tokio::test(start_paused = true)]
async fn all_ways_to_ask_about_a_list_agree() {
    fn through_the_trait(service: &impl Sharding, keys: &[String]) -> Vec<String> {
        service.filter_owned_items(keys).into_iter().cloned().collect()
    }
    let world = World::new();
    let (a, b) = (world.joined("a").await, world.joined("b").await);
    let keys = keys();
    eventually("both have their share", || !b.filter_owned_items(&keys).is_empty() && a.filter_owned_items(&keys).len() < keys.len()).await;
    for service in [&a, &b] {
        let mine: Vec<_> = service.filter_owned_items(&keys).into_iter().cloned().collect();
        let indices = service.filter_owned_indices(&keys);
        assert!(indices.iter().map(|at| &keys[*at]).eq(&mine));
        assert_eq!(service.count_owned_items(&keys), mine.len());
        #[cfg(feature = "parallel")]
        assert!(service.par_filter_owned_items(&keys).into_iter().eq(&mine));
        assert_eq!(through_the_trait(service, &keys), mine);
    }
}

/// Counted by the allocator.
#[tokio::test(start_paused = true)]
async fn owns_allocates_nothing() {
    let service = World::new().joined("a").await;
    let keys = keys();
    // The first look at the snapshot from a thread sets the thread up.
    assert!(service.owns("tenant-0"));
    let mut owned = 0;
    let asked = measure(|| owned = keys.iter().filter(|key| service.owns(*key)).count());
    assert_eq!((asked.count_total, owned), (0, 1_000));
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_gives_an_empty_list() {
    let service = World::new().joined("a").await;
    assert!(service.filter_owned_items::<String>(&[]).is_empty());
    assert_eq!(service.try_filter_owned_items::<u64>(&[]), Ok(vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_creating_at_once_get_one_service() {
    let clock = Clock::system();
    let world = World { store: MemoryBackend::new(clock.clone()), clock, ..World::new() };
    let factory = world.factory("a");
    let made = futures::future::join_all((0..64).map(|_| {
        let factory = factory.clone();
        tokio::spawn(async move {
            let service = factory.create("workers").expect("known");
            service.register_self().await.expect("joins");
            service
        })
    }));
    let services: Vec<_> = made.await.into_iter().map(|s| s.expect("no panic")).collect();
    assert_eq!(services[0].members().members().len(), 1);
    let same = services.iter().all(|s| Arc::ptr_eq(&s.ownership().view().clone(), services[0].ownership().view()));
    assert!(same, "all read one snapshot");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_policy_lists_the_known_ones() {
    let error = World::new().factory("a").create("wokers").expect_err("unknown");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::UnknownPolicy, false));
    assert_eq!(error.to_string(), r#"there is no policy "wokers"; known: workers (did you mean workers?)"#);
}

#[tokio::test(start_paused = true)]
async fn clear_makes_new_services_and_lets_the_old_ones_leave() {
    let world = World::new();
    let factory = world.factory("a");
    let group = policy().group;
    factory.create("workers").expect("known").register_self().await.expect("joins");
    assert_eq!(world.store.members(&group).await.expect("reachable").view.members().len(), 1);
    factory.clear();
    for _ in 0..1_000 {
        if world.store.members(&group).await.expect("reachable").view.members().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the last handle is gone, but the member is still there after a second");
}

#[tokio::test(start_paused = true)]
async fn switched_off_one_worker_owns_everything() {
    let text = "[default.resilience.sharding]\nenabled = false\npolicies.workers.group_name = \"g\"\ndiscovery.backend = \"memory\"";
    let factory = ShardingFactory::from_settings(Settings::from_toml_str(text).expect("valid")).expect("valid");
    let service = factory.create("workers").expect("known");
    service.register_self().await.expect("nothing to do");
    assert_eq!((service.state(), service.filter_owned_items(&keys()).len()), (ServiceState::Unsharded, 1_000));
    service.deregister_self().await.expect("nothing to do");
    assert_eq!((service.state(), service.owns("k")), (ServiceState::Left, false));
}

/// Leaving without anybody to leave is the end of the work all the same, and joining again its beginning.
#[tokio::test(start_paused = true)]
async fn switched_off_leaving_ends_the_work_and_waits_for_it() {
    let text = "[default.resilience.sharding]\nenabled = false\npolicies.workers = { group_name = \"g\", drain_timeout = \"5s\" }\ndiscovery.backend = \"memory\"";
    let factory = ShardingFactory::from_settings(Settings::from_toml_str(text).expect("valid")).expect("valid");
    let service = factory.create("workers").expect("known");
    service.register_self().await.expect("nothing to do");
    let (running, stubborn) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, deaf) = (Arc::clone(&running), Arc::clone(&stubborn));
    let _run = service.run_owned(["a", "b", "c"], move |_, cancel| {
        let (counted, deaf) = (Arc::clone(&counted), Arc::clone(&deaf));
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            cancel.cancelled().await;
            tokio::time::sleep(Duration::from_secs(if deaf.load(Ordering::SeqCst) { 60 } else { 2 })).await;
            counted.fetch_sub(1, Ordering::SeqCst);
        }
    });
    let works = |count: usize| running.load(Ordering::SeqCst) == count;
    eventually("all are worked on", || works(3)).await;
    for (is_deaf, least, most, left) in [(false, 2, 3, 0), (true, 5, 6, 3)] {
        stubborn.store(is_deaf, Ordering::SeqCst);
        let asked = tokio::time::Instant::now();
        service.deregister_self().await.expect("leaves");
        assert!((least..most).contains(&asked.elapsed().as_secs()), "{:?}", asked.elapsed());
        assert!(works(left) && service.state() == ServiceState::Left && !service.owns("a"));
        assert!(service.filter_owned_items(&keys()).is_empty() && service.enter("a").is_err());
        service.deregister_self().await.expect("once is enough");
        service.register_self().await.expect("joins again");
        assert!(service.state() == ServiceState::Unsharded && service.owns("a"));
        eventually("all are worked on again", || works(3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_living_duplicate_is_refused_with_its_id() {
    let world = World::new();
    let first = world.joined("twin").await;
    let second = world.factory("twin").create("workers").expect("known");
    let error = second.register_self().await.expect_err("the id is in use");
    assert_eq!(error.kind(), ErrorKind::InstanceIdInUse);
    assert_eq!(error.to_string(), r#"instance id "twin" is in use by a living member; stop that one or choose another id"#);
    assert!(second.filter_owned_items(&keys()).is_empty());
    assert_eq!(first.filter_owned_items(&keys()).len(), 1_000, "the first one is not disturbed");
    first.deregister_self().await.expect("leaves");
    second.register_self().await.expect("the id is free now");
}

#[tokio::test(start_paused = true)]
async fn a_dead_former_self_is_waited_out() {
    let world = World::new();
    let link = world.store.link();
    let former = world.factory_of("a", Arc::new(link.clone()), policy()).create("workers").expect("known");
    former.register_self().await.expect("joins");
    link.set_reachable(false);
    let before = world.clock.now();
    world.joined("a").await;
    let waited = world.clock.now().since(before);
    assert!(waited > Duration::from_secs(1) && waited < Duration::from_secs(4), "waited {waited:?} for a TTL of 3 s");
}

#[tokio::test(start_paused = true)]
async fn a_worker_with_other_constants_learns_both_fingerprints() {
    let world = World::new();
    let (a, _b) = (world.joined("a").await, world.joined("b").await);
    let mut other = policy();
    other.placement.load_margin = LoadMargin::None;
    let fingerprints = [other.fingerprint().to_string(), policy().fingerprint().to_string()];
    let odd = world.factory_of("odd", Arc::new(world.store.link()), other).create("workers").expect("known");
    let error = odd.register_self().await.expect_err("other constants");
    assert_eq!(error.kind(), ErrorKind::OtherPolicy);
    assert!(fingerprints.iter().all(|f| error.to_string().contains(f)), "{error}");
    eventually("it does not stay", || a.members().members().len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_backend_out_of_reach_is_a_retryable_error_and_leaves_nothing_behind() {
    let world = World::new();
    let link = world.store.link();
    link.set_reachable(false);
    let service = world.factory_of("a", Arc::new(link.clone()), policy()).create("workers").expect("known");
    let error = service.register_self().await.expect_err("out of reach");
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("is cut"), "the backend's message says what the user must fix: {error}");
    assert_eq!(service.state(), ServiceState::Left);
    link.set_reachable(true);
    service.register_self().await.expect("reachable again");
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_worker_owns_nothing_by_its_deadline_and_comes_back_by_itself() {
    let world = World::new();
    let link = world.store.link();
    let service = world.factory_of("a", Arc::new(link.clone()), policy()).create("workers").expect("known");
    service.register_self().await.expect("joins");
    let deadline = service.ownership().deadline().expect("a lease");
    link.set_reachable(false);
    eventually("it owns nothing", || !service.owns("k")).await;
    assert!(service.now() <= deadline.plus(Duration::from_millis(10)));
    assert_eq!(service.state(), ServiceState::Fenced);
    let healed = service.now();
    link.set_reachable(true);
    eventually("it owns again", || service.owns("k")).await;
    assert!(service.now().since(healed) < Duration::from_secs(2), "back after {:?}", service.now().since(healed));
}

#[tokio::test(start_paused = true)]
async fn callbacks_see_each_change_and_survive_their_own_panics() {
    let world = World::new();
    let service = world.factory("a").create("workers").expect("known");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, calls) = (Arc::clone(&seen), AtomicUsize::new(0));
    service.on_rebalance(move |r| {
        log.lock().expect("not poisoned").push((r.cause.as_str(), r.members_total, r.slots_owned.unwrap_or_default()));
        assert!(calls.fetch_add(1, Ordering::SeqCst) != 0, "the first call panics");
    });
    service.register_self().await.expect("joins");
    eventually("the first callback ran", || seen.lock().is_ok_and(|s| s.len() == 1)).await;
    let other = world.joined("b").await;
    // Delivered before the next change, because changes that wait behind a slow callback are merged.
    eventually("the other's joining is told", || seen.lock().is_ok_and(|s| s.len() == 2)).await;
    other.deregister_self().await.expect("leaves");
    eventually("back to all", || seen.lock().is_ok_and(|s| s.last().is_some_and(|l| l.2 == 16_384) && s.len() == 3)).await;
    let seen = seen.lock().expect("not poisoned").clone();
    assert_eq!((seen[0].0, seen[1].0), ("joined", "members_changed"));
}

#[tokio::test(start_paused = true)]
async fn members_are_watched_from_the_present_on() {
    let world = World::new();
    let a = world.joined("a").await;
    let mut members = a.watch_members();
    assert_eq!(members.next().await.expect("a view").members().len(), 1);
    let b = world.joined("b").await;
    assert_eq!(members.next().await.expect("a view").members().len(), 2);
    b.deregister_self().await.expect("leaves");
    while members.next().await.expect("a view").members().len() != 1 {}
}

#[tokio::test(start_paused = true)]
async fn owned_work_starts_with_a_key_and_is_cancelled_when_it_goes() {
    let world = World::new();
    let a = world.joined("a").await;
    let running: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let log = Arc::clone(&running);
    let run = a.run_owned(keys(), move |key: String, cancel| {
        let log = Arc::clone(&log);
        async move {
            assert!(log.lock().expect("not poisoned").insert(key.clone()), "{key} runs twice");
            cancel.cancelled().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            log.lock().expect("not poisoned").remove(&key);
        }
    });
    let count = || running.lock().expect("not poisoned").len();
    eventually("all run", || count() == 1_000).await;
    let b = world.joined("b").await;
    eventually("only mine run", || count() == a.filter_owned_items(&keys()).len()).await;
    assert!((300..700).contains(&count()), "{}", count());
    b.deregister_self().await.expect("leaves");
    eventually("all run again", || count() == 1_000).await;
    run.set_keys(keys().into_iter().take(10));
    eventually("ten are left", || count() == 10).await;
    a.deregister_self().await.expect("waits for the work to finish");
    assert_eq!(count(), 0, "leaving waits for cancelled work");
    a.register_self().await.expect("joins again");
    eventually("ten run again", || count() == 10).await;
    run.stop().await;
    assert_eq!(count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_owners_and_is_no_member() {
    let world = World::new();
    let (a, b) = (world.joined("a").await, world.joined("b").await);
    let mut observer = world.factory("watcher").observe("workers").await.expect("reachable");
    assert_eq!(observer.members().members().len(), 2);
    eventually("both see both", || a.members().members().len() == 2 && b.members().members().len() == 2).await;
    for key in keys() {
        let owner = observer.owner(&key).expect("same constants").expect("somebody");
        assert_eq!(owner.as_str() == "a", a.owns(&key), "{key}");
    }
    b.deregister_self().await.expect("leaves");
    while observer.members().members().len() != 1 {
        assert!(observer.changed().await);
    }
}

#[tokio::test(start_paused = true)]
async fn generic_code_works_with_a_service_and_a_shared_trait_object() {
    fn count(sharding: &impl Sharding) -> usize {
        sharding.filter_owned_items(&keys()).len()
    }
    let service = World::new().joined("a").await;
    let object: Arc<dyn Sharding> = Arc::new(service.clone());
    assert_eq!((count(&service), count(&object)), (1_000, 1_000));
    assert!(object.owns("x"));
}

/// Ten million items pass through in one call; nothing is copied but references.
#[tokio::test(start_paused = true)]
async fn ten_million_items_are_one_call() {
    let service = World::new().joined("a").await;
    let items: Vec<u32> = (0..10_000_000).collect();
    assert_eq!(service.filter_owned_items(&items).len(), items.len());
}
