//! What records say of the missing and of who drains, over a backend that takes changes
//! late or not at all, and what the log says of work that keeps a drain waiting.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwise::discovery::{Discovery, ErrorKind, MemoryBackend, Record};
use shardwise::{Guard, MaxLoss, MemberState, OwnershipMode, Policy, ServiceState, ShardKey, ShardingService, slot_of};

use crate::common::{World, eventually, policy};
use crate::log::Log;
use crate::scripted::{How, Scripted};

const TTL: Duration = Duration::from_secs(3);
/// How long leaving may take beyond the drain, and what a busy runtime adds.
const LEAVES_WITHIN: Duration = Duration::from_millis(2_050);

type Worker = (ShardingService, MemoryBackend);

fn guarded(percent: u32) -> Policy {
    let mut policy = policy();
    policy.max_loss = MaxLoss::percent(percent);
    policy
}

async fn joined(world: &World, id: &str, backend: impl Discovery + 'static, policy: Policy) -> ShardingService {
    let service = world.factory_of(id, Arc::new(backend), policy).create("workers").expect("a known policy");
    service.register_self().await.expect("it joins");
    service
}

/// Without `max_loss`, so that only others' records show missing members.
async fn plain(world: &World, ids: impl IntoIterator<Item = String>) -> Vec<Worker> {
    let mut workers = Vec::new();
    for id in ids {
        let link = world.store.link();
        workers.push((joined(world, &id, link.clone(), policy()).await, link));
    }
    workers
}

/// How many slots have two owners, and how many one or more.
fn owned(services: &[&ShardingService]) -> (u32, u32) {
    let shares: Vec<_> = services.iter().map(|service| service.ownership()).collect();
    let twice = |n: usize| shares[n + 1..].iter().map(|other| shares[n].slots().intersection(other.slots()).len()).sum::<u32>();
    ((0..shares.len()).map(twice).sum(), shares.iter().map(|share| share.slots().len()).sum())
}

/// Two changes close upon each other: the first is taken late, the second not at all for a while.
#[tokio::test(start_paused = true)]
async fn a_change_that_fails_behind_one_that_does_not_is_tried_again() {
    let world = World::new();
    let mut updates = 0;
    let shaky = Scripted::new(world.store.link(), move |(operation, _)| {
        updates += u32::from(operation == "update");
        match updates {
            _ if operation != "update" => How::Now,
            1 => How::After(Duration::from_millis(900)),
            2..=4 => How::Fails(ErrorKind::Unavailable),
            _ => How::Now,
        }
    });
    let a = joined(&world, "a", shaky, guarded(50)).await;
    let others = plain(&world, ["b", "c", "d", "e"].map(String::from)).await;
    eventually("five members", || a.members().members().len() == 5).await;
    others[1..].iter().for_each(|(_, link)| link.set_reachable(false));
    eventually("a stands still", || a.ownership().rebalancing_frozen()).await;
    others[1..].iter().for_each(|(_, link)| link.set_reachable(true));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(others[0].0.members().members()[0].loss, None, "everybody is back for 30 s");

    // One of five is no loss beyond half.
    others[1].1.set_reachable(false);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(owned(&[&a, &others[0].0, &others[2].0, &others[3].0]), (0, 16_384));
}

/// Marks in the record are not written again with every renewal: the snapshot's view stays the same while a member drains, the group's
/// view does not.
#[tokio::test(start_paused = true)]
async fn a_drain_writes_its_mark_once_however_long_it_takes() {
    for policy in [policy(), guarded(50)] {
        let world = World::new();
        let updates = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&updates);
        let counting = Scripted::new(world.store.link(), move |(operation, _)| {
            count.fetch_add(usize::from(operation == "update"), Ordering::Relaxed);
            How::Now
        });
        let a = joined(&world, "a", counting, policy).await;
        let others = plain(&world, [String::from("b")]).await;
        eventually("two members", || a.members().members().len() == 2 && others[0].0.members().members().len() == 2).await;
        let _run = a.run_owned(0..10u32, |_, cancel| async move {
            cancel.cancelled().await;
            tokio::time::sleep(TTL * 6).await;
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begun = a.now();
        a.deregister_self().await.expect("it leaves");
        assert!(a.now().since(begun) >= TTL * 6, "it renewed its record meanwhile");
        assert_eq!(updates.load(Ordering::Relaxed), 1);
    }
}

/// Each renewal tries again and says nothing new, until it has worked in between.
#[tokio::test(start_paused = true)]
async fn a_mark_that_is_not_taken_is_complained_about_once_until_one_is() {
    const SAYS: &str = "could not publish which members are missing";
    let (log, _logging) = Log::start();
    let world = World::new();
    let refused = Arc::new(AtomicBool::new(true));
    let is_refused = Arc::clone(&refused);
    let updates = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&updates);
    let backend = Scripted::new(world.store.link(), move |(operation, _)| {
        count.fetch_add(usize::from(operation == "update"), Ordering::Relaxed);
        let refused = operation == "update" && is_refused.load(Ordering::Relaxed);
        if refused { How::Fails(ErrorKind::Unavailable) } else { How::Now }
    });
    let me = joined(&world, "me", backend, guarded(50)).await;
    let others = plain(&world, ["b", "c", "d", "e"].map(String::from)).await;
    let (stays, goes) = (&others[0].0, &others[1..]);
    let is_published = || stays.members().members().iter().any(|member| member.loss.is_some());
    for complaints in 1..=2 {
        eventually("five members", || me.members().members().len() == 5).await;
        for (_, link) in goes {
            link.set_reachable(false);
        }
        eventually("it stands still", || me.ownership().rebalancing_frozen()).await;
        let before = updates.load(Ordering::Relaxed);
        tokio::time::sleep(TTL * 5).await;
        assert!(updates.load(Ordering::Relaxed) > before + 10, "it is tried again");
        assert_eq!(log.lines_with(SAYS), complaints);
        refused.store(false, Ordering::Relaxed);
        eventually("it is published", is_published).await;
        for (_, link) in goes {
            link.set_reachable(true);
        }
        eventually("it is withdrawn", || !is_published()).await;
        refused.store(true, Ordering::Relaxed);
    }
}

/// A renewal that was answered while the record was being deleted wrote what registering had written, and the leaver was taken for dead.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_being_deleted_is_not_made_active_once_more() {
    let world = World::new();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let called = Arc::clone(&calls);
    let backend = Scripted::new(world.store.link(), move |(operation, registration)| {
        called.lock().expect("no panic").push((operation, registration.map(|registration| registration.member.state)));
        if operation == "deregister" { How::After(Duration::from_millis(1_900)) } else { How::Now }
    });
    let service = joined(&world, "a", backend, policy()).await;
    service.deregister_self().await.expect("it leaves");
    let calls = calls.lock().expect("no panic");
    let deleting = calls.iter().position(|(operation, _)| *operation == "deregister").expect("it deregisters");
    assert!(calls[..deleting].contains(&("update", Some(MemberState::Draining))), "{calls:?}");
    assert!(calls[deleting..].iter().any(|(operation, _)| *operation == "renew"), "{calls:?}");
    assert!(!calls[deleting..].iter().any(|(operation, _)| *operation == "update"), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn leaving_a_silent_backend_takes_what_the_documentation_says() {
    // For a TTL it waits to see itself drain.
    for (policy, within) in [(policy(), TTL + LEAVES_WITHIN), (guarded(50), TTL + LEAVES_WITHIN)] {
        let world = World::new();
        let silent = Arc::new(AtomicBool::new(false));
        let is_silent = Arc::clone(&silent);
        let backend = Scripted::new(world.store.link(), move |_| if is_silent.load(Ordering::Relaxed) { How::Never } else { How::Now });
        let service = joined(&world, "a", backend, policy).await;
        silent.store(true, Ordering::Relaxed);
        let begun = service.now();
        service.deregister_self().await.expect("it leaves");
        let took = service.now().since(begun);
        assert!(took <= within, "{took:?}, {within:?} are allowed");
    }
}

/// The views change with every death, and none of the lists can be written.
#[tokio::test(start_paused = true)]
async fn changes_that_are_not_taken_give_no_slot_two_owners_and_keep_no_leaver() {
    let world = World::new();
    let silent = Arc::new(AtomicBool::new(false));
    let is_silent = Arc::clone(&silent);
    let mut others = Vec::new();
    for i in 0..20 {
        others.extend(plain(&world, [format!("w{i:02}")]).await);
        // So that they expire one after another.
        tokio::time::sleep(Duration::from_millis(37)).await;
    }
    let backend =
        Scripted::new(
            world.store.link(),
            move |(operation, _)| {
                if operation == "update" && is_silent.load(Ordering::Relaxed) { How::Never } else { How::Now }
            },
        );
    let me = joined(&world, "me", backend, guarded(30)).await;
    silent.store(true, Ordering::Relaxed);
    others[..16].iter().for_each(|(_, link)| link.set_reachable(false));
    eventually("it stands still", || me.ownership().rebalancing_frozen() && me.members().members().len() == 5).await;
    let alive: Vec<_> = others[16..].iter().map(|(service, _)| service).chain([&me]).collect();
    eventually("the others do not", || alive[..4].iter().all(|service| service.members().members().len() == 5)).await;
    for _ in 0..20 {
        assert_eq!(owned(&alive).0, 0, "slots have two owners");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let begun = me.now();
    me.deregister_self().await.expect("it leaves");
    let took = me.now().since(begun);
    assert!(took <= TTL + LEAVES_WITHIN, "leaving took {took:?}");
}

/// The most that a record may have on Consul, and ids nearly as long as they may be.
#[tokio::test(start_paused = true)]
async fn the_list_of_the_missing_fits_and_a_new_record_begins_without_one() {
    const RECORD_BYTES_MAX: usize = 28_504;
    let world = World::new();
    let others = plain(&world, (0..140).map(|i| format!("{i:0>215}"))).await;
    let link = world.store.link();
    let listed = Arc::new(AtomicBool::new(false));
    let was_listed = Arc::clone(&listed);
    let backend = Scripted::new(link.clone(), move |(operation, registration)| {
        let Some(registration) = registration else { return How::Now };
        was_listed.fetch_or(registration.member.loss.is_some(), Ordering::Relaxed);
        let bytes = Record::encode(&registration.member).expect("it has a form").len();
        let begins_without = operation == "update" || registration.member.loss.is_none();
        if begins_without && bytes <= RECORD_BYTES_MAX { How::Now } else { How::Fails(ErrorKind::TooLarge) }
    });
    let me = joined(&world, "me", backend, guarded(50)).await;
    eventually("all of them", || me.members().members().len() == 141).await;
    others[10..].iter().for_each(|(_, link)| link.set_reachable(false));
    eventually("the others hear of it", || others[..10].iter().all(|(service, _)| service.ownership().rebalancing_frozen())).await;
    assert!(listed.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let alive: Vec<_> = others[..10].iter().map(|(service, _)| service).chain([&me]).collect();
    let (twice, all) = owned(&alive);
    assert_eq!(twice, 0);
    // Of 141 eleven are left, and of the missing 38 are listed.
    assert!((3_000..4_500).contains(&all), "{all} of 16,384 slots are owned by 11 of 49");

    link.set_reachable(false);
    eventually("it is cut off", || me.state() == ServiceState::Fenced).await;
    link.set_reachable(true);
    eventually("it is back", || me.state() == ServiceState::Active).await;
}

/// Under exclusive ownership a slot that moves waits for its work, so the log must name that work.
#[tokio::test(start_paused = true)]
async fn work_that_does_not_end_within_drain_timeout_is_named_with_its_slot_and_its_age() {
    let (log, _logging) = Log::start();
    let world = World::new();
    let mut policy = policy();
    (policy.ownership, policy.placement.slots, policy.drain_timeout) = (OwnershipMode::Exclusive, 4, Duration::from_secs(2));
    let a = joined(&world, "a", world.store.link(), policy.clone()).await;
    eventually("it holds all", || a.ownership().slots().len() == 4).await;
    let key_in = |slot: u32| (0..u64::MAX).find(|key| slot_of(key.key_hash(), 4) == slot).expect("some key");
    let guards: Vec<_> = (0..4).map(|slot| a.enter(&key_in(slot)).expect("held")).collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let _b = joined(&world, "b", world.store.link(), policy).await;
    eventually("some are to go", || guards.iter().any(Guard::is_asked_to_finish)).await;
    assert_eq!(log.lines_with("work did not end"), 0, "it has time to finish");
    let asked: Vec<_> = (0_u32..).zip(&guards).filter(|(_, guard)| guard.is_asked_to_finish()).map(|(slot, _)| slot).collect();
    tokio::time::sleep(Duration::from_secs(4)).await;
    for slot in &asked {
        let said = format!("on_drain_timeout decides who has the slot policy=workers resource=slot {slot} in_flight=1 age=7");
        assert_eq!(log.lines_with(&said), 1, "5 s before it was to end, and 2 s to drain");
    }
    assert_eq!(log.lines_with("work did not end"), asked.len());
}
