//! What users of a service see of a change of the placement: work on owned keys, and an observer.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

mod common;
#[path = "common/log.rs"]
mod log;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{World, eventually, policy};
use log::Log;
use shardwise::core::{SLOTS_DEFAULT, ViewPlacement};
use shardwise::discovery::{Discovery, Registration};
use shardwise::{
    ErrorKind, InstanceId, KeyPlacement, LoadMargin, Member, PlacementKind, PlacementParams, Policy, ShardingService, View, Weight,
};
use tokio::task::JoinHandle;

fn under(slots: u32, next: Option<u32>) -> Policy {
    let mut policy = policy();
    policy.placement.slots = slots;
    policy.next = next.map(|slots| PlacementParams { slots, ..policy.placement });
    policy
}

async fn joined(world: &World, id: &str, policy: Policy) -> ShardingService {
    let service = world.factory_of(id, Arc::new(world.store.link()), policy).create("workers").expect("known");
    service.register_self().await.expect("it joins");
    service
}

/// How often work on each key was started and cancelled.
type Runs = Arc<Mutex<BTreeMap<u32, (u32, u32)>>>;

fn at<T>(runs: &Runs, f: impl FnOnce(&mut BTreeMap<u32, (u32, u32)>) -> T) -> T {
    f(&mut runs.lock().expect("not poisoned"))
}

/// Work on a key that stays goes on over the switch where a ring cuts both numbers of slots; where none does, it is started again. In
/// both cases exactly the owned keys are worked on in the end.
#[tokio::test(start_paused = true)]
async fn work_on_owned_keys_follows_the_switch() {
    for (old, next, goes_on) in [(1_024, 1_536, true), (1_024, 1_031, false)] {
        let world = World::new();
        let a = joined(&world, "a", under(old, Some(next))).await;
        let b = joined(&world, "b", under(old, None)).await;
        eventually("both share", || a.owns(&0u32) != b.owns(&0u32) && a.members().members().len() == 2).await;
        assert_eq!(a.ownership().slots().slots(), old);
        let runs = Runs::default();
        let its = Arc::clone(&runs);
        let run = a.run_owned(0..1_000u32, move |key, cancel| {
            let runs = Arc::clone(&its);
            async move {
                at(&runs, |runs| runs.entry(key).or_default().0 += 1);
                cancel.cancelled().await;
                at(&runs, |runs| runs.entry(key).or_default().1 += 1);
            }
        });
        let owned = || (0..1_000u32).filter(|key| a.owns(key)).collect::<BTreeSet<_>>();
        let working =
            || at(&runs, |runs| runs.iter().filter(|(_, (begun, ended))| begun > ended).map(|(key, _)| *key).collect::<BTreeSet<_>>());
        eventually("it works", || !owned().is_empty() && working() == owned()).await;
        let before = owned();

        b.deregister_self().await.expect("it leaves");
        let c = joined(&world, "b", under(old, Some(next))).await;
        eventually("the switch", || a.ownership().slots().slots() == next && c.ownership().slots().slots() == next).await;
        eventually("it works on what it owns now", || a.members().members().len() == 2 && working() == owned()).await;
        assert!((0..1_000u32).all(|key| a.owns(&key) != c.owns(&key)));
        let went_on = at(&runs, |runs| before.iter().filter(|key| runs[key] == (1, 0)).count());
        let stayed = before.intersection(&owned()).count();
        assert!(stayed > before.len() / 2 && stayed < before.len(), "{stayed} of {}", before.len());
        assert_eq!(went_on > stayed / 2, goes_on, "{went_on} of {stayed} went on");
        assert!(goes_on || went_on == 0, "{went_on} went on");
        run.stop().await;
    }
}

/// An observer with `next` sees the owners before and after; one that knows the old placement alone says so.
#[tokio::test(start_paused = true)]
async fn an_observer_follows_the_switch() {
    const OLD: u32 = SLOTS_DEFAULT;
    const NEXT: u32 = 2 * OLD;
    let world = World::new();
    let factory = |policy| world.factory_of("observer", Arc::new(world.store.link()), policy);
    let a = joined(&world, "a", under(OLD, Some(NEXT))).await;
    let b = world.joined("b").await;
    let (both, old) = (factory(under(OLD, Some(NEXT))), factory(policy()));
    let both = both.observe("workers").await.expect("it sees");
    let old = old.observe("workers").await.expect("it sees");
    eventually("the old one", || both.members().members().len() == 2 && both.owners().is_ok_and(|owners| owners.params().slots == OLD))
        .await;
    assert_eq!(old.owners().expect("it can serve that").params().slots, OLD);
    b.deregister_self().await.expect("it leaves");
    let c = joined(&world, "b", under(OLD, Some(NEXT))).await;
    eventually("the new one", || both.members().members().len() == 2 && both.owners().is_ok_and(|owners| owners.params().slots == NEXT))
        .await;
    for key in 0..100u32 {
        let owner = both.owner(&key).expect("it serves that").expect("somebody");
        let service = if owner.as_str() == "a" { &a } else { &c };
        assert!(service.owns(&key), "{owner} owns {key}");
    }
    eventually("it says so", || old.owner(&1u32).is_err_and(|error| error.kind() == ErrorKind::OtherPolicy)).await;
}

/// Operators wait for this line. Another load margin moves nothing between two workers, so no rebalance reports the switch.
#[tokio::test(start_paused = true)]
async fn each_worker_logs_the_switch_once_even_where_nothing_moves() {
    let (log, _logging) = Log::start();
    let world = World::new();
    let old = policy();
    let wider = PlacementParams { load_margin: LoadMargin::parse("0.5").expect("a margin"), ..old.placement };
    let mut changing = old.clone();
    changing.next = Some(wider);
    let [from, to] = changing.fingerprints()[..] else { panic!("two") };
    let b = joined(&world, "b", old).await;
    let a = joined(&world, "a", changing.clone()).await;
    eventually("both are there", || [&a, &b].iter().all(|s| s.members().members().len() == 2)).await;
    let owned = format!(" owned={} ", policy().placement.slots);
    assert!(log.lines_where(|line| line.contains("rebalanced policy=workers") && line.contains(&owned)) > 0, "b was alone");
    assert_eq!(log.lines_with("owned=Some"), 0, "a number, and not how Rust writes it");
    let said = "the group serves placement ring now";
    assert_eq!((log.lines_with(said), a.ownership().policy_fingerprint()), (0, Some(from)));
    b.deregister_self().await.expect("it leaves");
    eventually("it has changed over", || a.ownership().policy_fingerprint() == Some(to)).await;
    assert_eq!(log.lines_with(&format!("{said} policy=workers from={from} to={to} ")), 1);
    let b = joined(&world, "b", changing).await;
    eventually("both have changed over", || [&a, &b].iter().all(|s| s.members().members().len() == 2)).await;
    assert_eq!((log.lines_with(said), log.lines_with("policy_changed")), (2, 0), "one for each worker");
    let c = joined(&world, "c", policy()).await;
    eventually("it is taken back", || [&a, &b, &c].iter().all(|s| s.ownership().policy_fingerprint() == Some(from))).await;
    assert_eq!(log.lines_with(&format!("from={to} to={from} ")), 2);
}

/// The first placement of a heavy fleet takes long, by another fleet's rule and on the ring. No task of the runtime waits for it, neither
/// with a worker nor with an observer. In real time, because that is what it is about.
#[tokio::test]
async fn a_long_placement_holds_no_other_up() {
    for kind in [PlacementKind::Key(KeyPlacement::Uhashring), PlacementKind::Ring] {
        // What it waits for takes long on a machine with much other work.
        let world = World { ttl: Duration::from_mins(1), ..World::new() };
        let mut policy = policy();
        // Another constant for the ring, so that there is something to change over to.
        policy.next = Some(PlacementParams { kind, slots: 4_096, ..policy.placement });
        let [.., serving] = policy.fingerprints()[..] else { panic!("two") };
        let heavy = |i: u32| Member {
            weight: Weight::new(100).expect("allowed"),
            fingerprints: policy.fingerprints(),
            ..Member::named(InstanceId::new(format!("heavy-{i}")).expect("valid"))
        };
        let members: Vec<_> = (0..10).map(heavy).collect();
        let view = View::new(1, members.clone());
        let begun = Instant::now();
        let placed = ViewPlacement::of_view(&view, policy.next.expect("just set"));
        let takes = begun.elapsed();
        assert!(placed.is_ok_and(|placed| placed.members().len() == members.len()));
        for member in members {
            let registration = Registration { group: policy.group.clone(), member, ttl: Duration::from_mins(1), claims: false };
            world.store.register(&registration).await.expect("it is registered");
        }

        let (longest, ticking) = longest_wait();
        let observer =
            world.factory_of("observer", Arc::new(world.store.link()), policy.clone()).observe("workers").await.expect("it sees");
        assert!(observer.owner("key").is_ok_and(|owner| owner.is_some()));
        drop(observer);
        let worker = joined(&world, "worker", policy).await;
        assert_eq!(worker.ownership().policy_fingerprint(), Some(serving));
        ticking.abort();
        let longest = *longest.lock().expect("not poisoned");
        assert!(longest < takes / 2, "{kind:?}: another task waited for {longest:?}; the placement takes {takes:?}");
    }
}

/// How long a task that wants to run each millisecond had to wait at most, until it is ended.
fn longest_wait() -> (Arc<Mutex<Duration>>, JoinHandle<()>) {
    let longest = Arc::new(Mutex::new(Duration::ZERO));
    let its = Arc::clone(&longest);
    let ticking = tokio::spawn(async move {
        loop {
            let begun = Instant::now();
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut longest = its.lock().expect("not poisoned");
            *longest = begun.elapsed().max(*longest);
        }
    });
    (longest, ticking)
}
