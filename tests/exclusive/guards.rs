//! Work in flight: what it keeps, and which signals it gets and when.

use std::time::Duration;

use shardwise::core::holdings::OnDrainTimeout;
use shardwise::{Guard, InstanceId, NotHeld, ServiceState, ShardingService, SlotOwners, Weight};

use super::{SLOTS, World, eventually, held, joined, key_in, policy, service, share};

/// A worker alone with a guard on each slot.
async fn working(world: &World, policy: shardwise::Policy) -> (ShardingService, Vec<Guard>) {
    let a = service(world, "a", policy);
    a.register_self().await.expect("joins");
    eventually("it holds everything", || share(&[&a])).await;
    let guards = (0..SLOTS).map(|slot| a.enter(&key_in(slot)).expect("held")).collect();
    (a, guards)
}

/// Whether a key is that one's once it has joined the other.
fn goes_to(newcomer: &InstanceId, key: &str, other: &ShardingService) -> bool {
    let members = [newcomer, other.instance_id()].map(|id| (id.clone(), Weight::ONE));
    SlotOwners::place(members, other.policy().placement).owner(key) == Some(newcomer)
}

#[tokio::test(start_paused = true)]
async fn a_slot_moves_once_its_work_is_done_and_takes_no_new_work_before() {
    let world = World::new();
    let (a, mut guards) = working(&world, policy()).await;
    let b = joined(&world, "b").await;
    let leaving: Vec<u32> = {
        eventually("some are to go", || held(&a).len() < SLOTS as usize).await;
        (0..SLOTS).filter(|slot| !held(&a).contains_key(slot)).collect()
    };
    let slot = leaving[0];
    assert!(guards[slot as usize].is_asked_to_finish() && guards[slot as usize].is_held(), "it may finish");
    assert_eq!(a.enter(&key_in(slot)).err(), Some(NotHeld::Elsewhere { slot }), "nothing new");
    assert!(!a.owns(&key_in(slot)) && !b.owns(&key_in(slot)), "nobody's until the work is done");
    guards.clear();
    eventually("it is the other's", || share(&[&a, &b]) && b.owns(&key_in(slot))).await;
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_end_is_cancelled_and_keeps_its_slot_or_loses_it() {
    for rule in [OnDrainTimeout::Hold, OnDrainTimeout::Release] {
        let world = World::new();
        let mut policy = policy();
        policy.on_drain_timeout = rule;
        let (a, guards) = working(&world, policy).await;
        let b = joined(&world, "b").await;
        eventually("some are to go", || held(&a).len() < SLOTS as usize).await;
        let began = world.clock.now();
        let slot = (0..SLOTS).find(|slot| !held(&a).contains_key(slot)).expect("one is to go");
        let guard = usize::try_from(slot).expect("small");
        guards[guard].lost().await;
        let waited = world.clock.now().since(began);
        assert!((1_900..2_200).contains(&waited.as_millis()), "drain_timeout is 2 s, waited {waited:?}");
        match rule {
            OnDrainTimeout::Hold => {
                tokio::time::sleep(Duration::from_secs(20)).await;
                assert!(!held(&b).contains_key(&slot), "held as long as the work lives");
                assert!(guards.iter().filter(|guard| guard.is_asked_to_finish()).all(|guard| !guard.is_held()));
                drop(guards);
            }
            OnDrainTimeout::Release => {
                eventually("it is given away all the same", || held(&b).contains_key(&slot)).await;
                assert!(!guards[guard].is_held());
            }
        }
        eventually("all is shared in the end", || share(&[&a, &b])).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_fenced_notifies_its_work_at_once() {
    let world = World::new();
    let cut = world.store.link();
    let a = world.factory_of("a", std::sync::Arc::new(cut.clone()), policy()).create("workers").expect("known");
    a.register_self().await.expect("joins");
    eventually("it holds everything", || share(&[&a])).await;
    let guard = a.enter("k").expect("held");
    let run = a.run_exclusive("other", std::future::pending::<()>());
    cut.set_reachable(false);
    let outcome = run.await;
    assert_eq!(outcome, Err(NotHeld::NotLive(ServiceState::Fenced)));
    assert!(!guard.is_held());
    guard.lost().await;
    cut.set_reachable(true);
    eventually("it is back", || share(&[&a])).await;
    assert!(!guard.is_held(), "regained is not held without a gap");
    assert!(a.enter("k").expect("held").is_held());
}

#[tokio::test(start_paused = true)]
async fn leaving_waits_for_work_and_a_leaked_guard_keeps_the_slots_until_the_lease_ends() {
    let world = World::new();
    let (a, mut guards) = working(&world, policy()).await;
    let b = joined(&world, "b").await;
    let leaked = guards.swap_remove(7);
    let fence = leaked.fence().expect("a claim");
    drop(guards);
    let began = world.clock.now();
    let leaving = a.clone();
    let left = tokio::spawn(async move { leaving.deregister_self().await });
    eventually("the rest goes over at once", || held(&b).len() == SLOTS as usize - 1).await;
    assert!(world.clock.now().since(began) < Duration::from_secs(1));
    left.await.expect("no panic").expect("left");
    let took = world.clock.now().since(began);
    assert!(took > Duration::from_millis(2_900) && took < Duration::from_secs(6), "2 s to drain and the rest of a lease of 3 s: {took:?}");
    assert!(!leaked.is_held());
    eventually("the last one is free with the lease", || share(&[&b])).await;
    assert!(held(&b)[&fence.slot] > fence.epoch.get());
}

#[tokio::test(start_paused = true)]
async fn exclusive_work_runs_to_its_end_or_is_dropped() {
    let world = World::new();
    let a = joined(&world, "a").await;
    eventually("it holds everything", || share(&[&a])).await;
    assert_eq!(a.run_exclusive("k", async { 7 }).await, Ok(7));
    let b = joined(&world, "b").await;
    eventually("they share", || share(&[&a, &b])).await;
    let theirs = (0..100).map(|n: u32| n.to_string()).find(|key| b.owns(key)).expect("one");
    assert!(matches!(a.run_exclusive(&theirs, async { 7 }).await, Err(NotHeld::Elsewhere { .. })));
}

/// The panic is the caller's, and the slot is not kept from anybody by it.
#[tokio::test(start_paused = true)]
async fn exclusive_work_that_panics_is_over() {
    let world = World::new();
    let a = joined(&world, "a").await;
    eventually("it holds everything", || share(&[&a])).await;
    let b = service(&world, "b", policy());
    let key = (0..SLOTS).map(key_in).find(|key| goes_to(b.instance_id(), key, &a)).expect("some slot goes to the other");
    let worker = a.clone();
    let of = key.clone();
    let mistake: Result<(), _> = tokio::spawn(async move {
        let done = worker.run_exclusive(&of, async { panic!("a mistake in the user's code") }).await;
        done.expect("held");
    })
    .await;
    assert!(mistake.is_err_and(|error| error.is_panic()));
    assert!(a.owns(&key) && a.enter(&key).is_ok(), "it is held as before");
    b.register_self().await.expect("joins");
    let joined = world.clock.now();
    eventually("it goes over at once", || b.owns(&key)).await;
    assert!(world.clock.now().since(joined) < Duration::from_secs(1), "nothing is in flight, so drain_timeout is not waited for");
}

#[tokio::test(start_paused = true)]
async fn exclusive_work_in_a_slot_that_goes_to_another_is_dropped_once_drain_timeout_is_over() {
    for rule in [OnDrainTimeout::Hold, OnDrainTimeout::Release] {
        let (world, mut policy) = (World::new(), policy());
        policy.on_drain_timeout = rule;
        let a = service(&world, "a", policy.clone());
        a.register_self().await.expect("joins");
        eventually("it holds everything", || share(&[&a])).await;
        let b = service(&world, "b", policy);
        let key = (0..SLOTS).map(key_in).find(|key| goes_to(b.instance_id(), key, &a)).expect("some slot goes to the other");
        let (worker, of) = (a.clone(), key.clone());
        let work = tokio::spawn(async move { worker.run_exclusive(&of, std::future::pending::<()>()).await });
        tokio::task::yield_now().await;
        b.register_self().await.expect("joins");
        eventually("it is to go", || !a.owns(&key)).await;
        let began = world.clock.now();
        assert!(!work.is_finished(), "it has time to finish");
        let outcome = work.await.expect("no panic");
        let waited = world.clock.now().since(began);
        assert!(matches!(outcome, Err(NotHeld::Elsewhere { .. })), "{outcome:?}");
        assert!((1_900..2_200).contains(&waited.as_millis()), "drain_timeout is 2 s, waited {waited:?}");
        eventually("what is dropped holds nothing back", || b.owns(&key)).await;
    }
}

/// Under eventual ownership a guard has no epoch, but still reports a gap.
#[tokio::test(start_paused = true)]
async fn under_eventual_ownership_a_guard_reports_when_its_key_is_lost() {
    let world = World::new();
    let a = world.joined("a").await;
    let guards: Vec<_> = (0..200u32).map(|key| (key, a.enter(&key).expect("mine"))).collect();
    assert!(guards.iter().all(|(_, guard)| guard.is_held() && guard.fence().is_none()));
    assert_eq!(a.fence(&7u32), Err(NotHeld::NoEpochs));
    let b = world.joined("b").await;
    eventually("b owns some", || (0..200u32).any(|key| b.owns(&key))).await;
    eventually("a has heard", || (0..200u32).all(|key| a.owns(&key) != b.owns(&key))).await;
    for (key, guard) in &guards {
        assert_eq!(guard.is_held(), a.owns(key), "{key}");
    }
    b.deregister_self().await.expect("left");
    eventually("all are back", || (0..200u32).all(|key| a.owns(&key))).await;
    assert!(guards.iter().any(|(_, guard)| !guard.is_held()), "with a gap");
}
