//! The health of workers decides who has a share, over the memory backend in the runtime's time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{World, eventually};
use futures::FutureExt;
use shardwise::{ErrorKind, InstanceId, KeyPlacement, PlacementKind, Policy, ServiceState, ShardingService};
use tokio::time::Instant;

const SLOTS: u32 = shardwise::core::SLOTS_DEFAULT;
/// Three checks every 2 s of at most 1 s each, and the report of it.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

/// A worker whose health is a switch.
struct Watched {
    service: ShardingService,
    works: Arc<AtomicBool>,
    checks: Arc<AtomicUsize>,
}

impl Watched {
    async fn joined(world: &World, id: &str, works: bool) -> Self {
        let service = world.factory(id).create("workers").expect("a known policy");
        let (works, checks) = (Arc::new(AtomicBool::new(works)), Arc::new(AtomicUsize::new(0)));
        let (is_well, counted) = (Arc::clone(&works), Arc::clone(&checks));
        let check = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let works = is_well.load(Ordering::SeqCst);
            async move { if works { Ok(()) } else { Err("it was switched off".to_owned()) } }
        };
        service.health(check).expect("watched once");
        service.register_self().await.expect("it joins");
        Self { service, works, checks }
    }

    fn works(&self, works: bool) {
        self.works.store(works, Ordering::SeqCst);
    }

    fn owned(&self) -> u32 {
        self.service.ownership().slots_owned().expect("a slot placement")
    }
}

fn all_owned(workers: &[Watched]) -> bool {
    workers.iter().map(Watched::owned).sum::<u32>() == SLOTS
}

#[tokio::test(start_paused = true)]
async fn a_worker_has_a_share_from_its_first_success_and_while_it_works() {
    let world = World::new();
    let workers = [Watched::joined(&world, "a", true).await, Watched::joined(&world, "b", false).await];
    let [a, b] = &workers;
    eventually("the one that works has everything", || a.owned() == SLOTS).await;
    assert_eq!((b.owned(), b.service.is_drained()), (0, false), "no operator drained it");
    b.works(true);
    eventually("the first success gives it a share", || b.owned() > 0 && all_owned(&workers)).await;

    b.works(false);
    let begun = Instant::now();
    eventually("its share is taken over", || b.owned() == 0 && all_owned(&workers)).await;
    assert!(begun.elapsed() < NOTICED_WITHIN, "{:?}", begun.elapsed());
    assert!(b.service.worker().borrow().failure.as_deref().is_some_and(|why| why.contains("switched off")));
    b.works(true);
    eventually("it is back", || b.owned() > 0 && all_owned(&workers)).await;
}

#[tokio::test(start_paused = true)]
async fn something_that_all_share_does_not_drain_the_fleet() {
    let world = World::new();
    let mut workers = Vec::new();
    for id in ["a", "b", "c", "d", "e"] {
        workers.push(Watched::joined(&world, id, true).await);
    }
    eventually("all share", || all_owned(&workers) && workers.iter().all(|worker| worker.owned() > 0)).await;
    for worker in &workers {
        worker.works(false);
    }
    eventually("two are drained", || workers.iter().filter(|worker| worker.owned() == 0).count() == 2).await;
    // Longer than any check takes.
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let (with, spared) = (
            workers.iter().filter(|worker| worker.owned() > 0).count(),
            workers.iter().filter(|worker| worker.service.is_spared()).count(),
        );
        assert_eq!((with, spared), (3, 3), "more than half keep their shares, and know why");
        assert!(all_owned(&workers));
    }
    for worker in &workers {
        worker.works(true);
    }
    eventually("all share again", || all_owned(&workers) && workers.iter().all(|worker| worker.owned() > 0)).await;
    assert!(workers.iter().all(|worker| !worker.service.is_spared()));
}

#[tokio::test(start_paused = true)]
async fn suspicion_brings_the_next_check_forward_and_changes_nothing_by_itself() {
    let world = World::new();
    let alone = Watched::joined(&world, "a", true).await;
    eventually("it works", || alone.owned() == SLOTS).await;
    let checked = || alone.checks.load(Ordering::SeqCst);
    let before = checked();
    for _ in 0..20 {
        alone.service.suspect();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!((15..=25).contains(&(checked() - before)), "{} checks in 10 s", checked() - before);
    assert_eq!(alone.owned(), SLOTS);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_check_has_failed_and_checks_end_with_the_service() {
    let world = World::new();
    let service = world.factory("a").create("workers").expect("a known policy");
    let held = Arc::new(());
    let in_check = Arc::clone(&held);
    service
        .health(move || {
            let _held = Arc::clone(&in_check);
            std::future::pending()
        })
        .expect("watched once");
    let error = service.health(|| async { Ok(()) }).expect_err("watched already");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let unwatched = world.joined("b").await;
    service.register_self().await.expect("it joins drained");
    eventually("the unwatched one has everything", || unwatched.ownership().slots_owned() == Some(SLOTS)).await;
    eventually("it is reported", || service.worker().borrow().failure.is_some()).await;
    assert!(service.worker().borrow().failure.as_deref().is_some_and(|why| why.contains("no answer within 1s")));
    service.deregister_self().await.expect("it leaves");
    drop(service);
    eventually("nothing checks any more", || Arc::strong_count(&held) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_gets_no_share_through_an_outage_of_the_backend() {
    let world = World::new();
    let other = world.joined("a").await;
    let link = world.store.link();
    let service = world.factory_of("b", Arc::new(link.clone()), crate::common::policy()).create("workers").expect("a known policy");
    let works = Arc::new(AtomicBool::new(true));
    let is_well = Arc::clone(&works);
    let check = move || {
        let works = is_well.load(Ordering::SeqCst);
        async move { if works { Ok(()) } else { Err("it was switched off".to_owned()) } }
    };
    service.health(check).expect("watched once");
    service.register_self().await.expect("it joins");
    let slots = |service: &ShardingService| service.ownership().slots_owned().unwrap_or_default();
    eventually("both share", || slots(&service) > 0 && slots(&service) + slots(&other) == SLOTS).await;
    works.store(false, Ordering::SeqCst);
    eventually("its share is taken over", || slots(&service) == 0 && slots(&other) == SLOTS).await;
    let mut snapshots = service.snapshots();
    link.set_reachable(false);
    eventually("it is fenced", || service.state() == ServiceState::Fenced).await;
    link.set_reachable(true);
    eventually("it is back", || service.state() == ServiceState::Active && service.members().members().len() == 2).await;
    tokio::time::sleep(world.ttl * 3).await;
    let most = std::iter::from_fn(|| snapshots.recv().now_or_never().flatten()).map(|seen| seen.slots().len()).max();
    assert_eq!((most, slots(&other)), (Some(0), SLOTS), "its dead worker had slots, if only for a moment");
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_has_drained_is_not_counted_and_stays_drained() {
    let world = World::new();
    let workers =
        [Watched::joined(&world, "a", true).await, Watched::joined(&world, "b", true).await, Watched::joined(&world, "c", true).await];
    let [a, b, c] = &workers;
    eventually("all share", || all_owned(&workers) && workers.iter().all(|worker| worker.owned() > 0)).await;
    let operator = world.factory("operator");
    let id = InstanceId::new("a").expect("valid");
    assert!(operator.drain("workers", &id).await.expect("a known member"));
    eventually("it is drained", || a.owned() == 0 && all_owned(&workers)).await;
    a.works(false);
    tokio::time::sleep(NOTICED_WITHIN).await;
    assert!(a.service.is_drained() && !a.service.is_spared(), "its worker was stopped on purpose");
    b.works(false);
    eventually("the other one has everything", || b.owned() == 0 && c.owned() == SLOTS).await;
    b.works(true);
    eventually("it is back", || b.owned() > 0 && all_owned(&workers)).await;
    assert!(operator.undrain("workers", &id).await.expect("a known member"));
    tokio::time::sleep(NOTICED_WITHIN).await;
    assert_eq!((a.owned(), a.service.is_drained()), (0, false), "its worker does not work yet");
    a.works(true);
    eventually("it has a share again", || a.owned() > 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_check_that_panics_has_failed() {
    let world = World::new();
    let service = world.factory("a").create("workers").expect("a known policy");
    let panics = Arc::new(AtomicBool::new(true));
    let does = Arc::clone(&panics);
    service
        .health(move || {
            assert!(!does.load(Ordering::SeqCst), "on purpose");
            async { Ok(()) }
        })
        .expect("watched once");
    service.register_self().await.expect("it joins drained");
    eventually("it is reported", || service.worker().borrow().failure.as_deref() == Some("the check panicked")).await;
    panics.store(false, Ordering::SeqCst);
    eventually("it goes on checking", || service.ownership().slots_owned() == Some(SLOTS)).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_placement_has_no_health() {
    let world = World::new();
    let mut policy: Policy = crate::common::policy();
    policy.placement.kind = PlacementKind::Key(KeyPlacement::Modulo);
    let service = world.factory_of("a", Arc::new(world.store.link()), policy).create("workers").expect("a known policy");
    let error = service.health(|| async { Ok(()) }).expect_err("no drain there");
    assert_eq!(error.kind(), ErrorKind::Settings);
}
