//! Who holds what, as an observer and as a member see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardwise::core::Resource;
use shardwise::settings::InstanceSettings;
use shardwise::{ErrorKind, Holding, InstanceId, Mismatch, Observer, Policy, ShardingService, SlotOwners, VersionRule, Weight};

use super::{SLOTS, World, common, eventually, held, joined, policy, share};

async fn observer(world: &World, policy: Policy) -> Observer {
    let factory = world.factory_of("onlooker", Arc::new(world.store.link()), policy);
    factory.observe("workers").await.expect("the group is there")
}

fn slots(holdings: &[Holding]) -> BTreeMap<u32, (String, u64)> {
    let slot = |holding: &Holding| match (&holding.resource, &holding.held) {
        (Resource::Slot(slot), Some(held)) => Some((*slot, (held.claim.holder.instance_id.to_string(), held.claim.epoch.get()))),
        _ => None,
    };
    holdings.iter().filter_map(slot).collect()
}

/// What these workers hold by their own snapshots.
fn truth(services: &[&ShardingService]) -> BTreeMap<u32, (String, u64)> {
    let of = |service: &&ShardingService| {
        let id = service.instance_id().to_string();
        held(service).into_iter().map(move |(slot, epoch)| (slot, (id.clone(), epoch)))
    };
    services.iter().flat_map(of).collect()
}

fn mismatches(holdings: &[Holding]) -> BTreeMap<Option<Mismatch>, usize> {
    let mut counted = BTreeMap::new();
    for holding in holdings {
        *counted.entry(holding.mismatch).or_default() += 1;
    }
    counted
}

#[tokio::test(start_paused = true)]
async fn holders_are_those_whose_work_is_let_in() {
    let world = World::new();
    let a = joined(&world, "a").await;
    eventually("one alone holds everything", || share(&[&a])).await;
    let observer = observer(&world, policy()).await;
    let seen = observer.holders().expect("exclusive");
    assert_eq!((slots(&seen), seen.len()), (truth(&[&a]), SLOTS as usize));
    assert!(seen.iter().all(|holding| holding.held.as_ref().is_some_and(|held| held.since.is_none())), "since before it looked");

    // A guard keeps its slot while the rest goes to the newcomer.
    let members = ["a", "b"].map(|id| (InstanceId::new(id).expect("a name"), Weight::ONE));
    let of_b = SlotOwners::place(members, policy().placement).slots_of(&InstanceId::new("b").expect("a name"));
    let kept = of_b.iter().next().expect("a share");
    let guard = a.enter(&super::key_in(kept)).expect("a holds everything");
    let b = joined(&world, "b").await;
    eventually("b has the rest of its share", || held(&b).len() + 1 == of_b.len() as usize).await;
    eventually("the observer has seen it", || observer.holders().is_ok_and(|seen| slots(&seen) == truth_with(&a, &b, kept, &seen))).await;
    let seen = observer.holders().expect("exclusive");
    let waiting = &seen[kept as usize];
    assert_eq!((waiting.mismatch, waiting.wanted.as_ref()), (Some(Mismatch::Handover), Some(b.instance_id())));
    assert_eq!(mismatches(&seen), [(None, SLOTS as usize - 1), (Some(Mismatch::Handover), 1)].into());
    let moved = seen.iter().filter(|holding| holding.held.as_ref().is_some_and(|held| held.since.is_some())).count();
    assert_eq!(moved, held(&b).len(), "since when is known for what has moved");
    assert_eq!(observer.holder(&super::key_in(kept)).expect("exclusive"), *waiting);
    assert_eq!(slots(&b.holders().expect("a member")), slots(&seen), "members see the same");
    drop(guard);
    eventually("all agree", || observer.holders().is_ok_and(|seen| mismatches(&seen).keys().eq([&None]))).await;
    assert_eq!(slots(&observer.holders().expect("exclusive")), truth(&[&a, &b]));
    b.deregister_self().await.expect("it leaves");
    assert_eq!(b.holders().expect_err("it is not a member").kind(), ErrorKind::Unavailable);
}

/// What both hold, and the slot that `a` drains and that neither serves.
fn truth_with(a: &ShardingService, b: &ShardingService, drained: u32, seen: &[Holding]) -> BTreeMap<u32, (String, u64)> {
    let mut truth = truth(&[a, b]);
    if let Some(held) = slots(seen).remove(&drained).filter(|(holder, _)| *holder == a.instance_id().to_string()) {
        truth.insert(drained, held);
    }
    truth
}

#[tokio::test(start_paused = true)]
async fn holders_that_cannot_be_read_are_an_error_and_not_those_of_before() {
    let world = World::new();
    let cut = world.store.link();
    let factory = world.factory_of("a", Arc::new(cut.clone()), policy());
    let a = factory.create("workers").expect("a known policy");
    a.register_self().await.expect("it joins");
    let observer = factory.observe("workers").await.expect("the group is there");
    eventually("both have read the claims", || slots(&observer.holders().unwrap_or_default()) == truth(&[&a]) && share(&[&a])).await;
    eventually("the member has read its own", || a.holders().is_ok_and(|seen| slots(&seen) == truth(&[&a]))).await;
    let seen = observer.claims_seen();

    cut.set_reachable(false);
    eventually("neither shows what was", || observer.holders().is_err() && a.holders().is_err()).await;
    assert_eq!(observer.holders().expect_err("cut off").kind(), ErrorKind::Unavailable);
    let failing = observer.claims_seen();
    assert!(failing > seen, "a reader that waits for a change asks again: {failing:?} after {seen:?}");
    cut.set_reachable(true);
    eventually("both are current again", || observer.holders().is_ok() && a.holders().is_ok()).await;
    assert!(observer.claims_seen() > failing);
}

#[tokio::test(start_paused = true)]
async fn in_a_rolling_upgrade_holders_keep_what_they_have_and_the_reason_is_the_versions() {
    let world = World::new();
    let mut newest = policy();
    newest.version_rule = VersionRule::Newest;
    let started = async |id: &str, version: &str| {
        let mut instance = InstanceSettings::default();
        instance.version = Some(version.to_owned());
        let factory = world.factory_with(instance, id, Arc::new(world.store.link()), newest.clone());
        let service = factory.create("workers").expect("a known policy");
        service.register_self().await.expect("it joins");
        service
    };
    let old = started("old", "1").await;
    eventually("one alone holds everything", || share(&[&old])).await;
    let _new = started("new", "2").await;
    let observer = observer(&world, newest.clone()).await;
    let seen = observer.holders().expect("exclusive");
    let reasons = mismatches(&seen);
    assert!(reasons.keys().eq([&None, &Some(Mismatch::VersionRule)]), "{reasons:?}");
    let key = super::key_in(
        seen.iter().position(|holding| holding.mismatch.is_some()).and_then(|slot| u32::try_from(slot).ok()).expect("a slot"),
    );
    assert_eq!(observer.owner(&key).expect("a placement").as_ref(), Some(old.instance_id()), "the owner is the one that holds it");
}

#[tokio::test(start_paused = true)]
async fn eventual_ownership_has_no_holders() {
    let world = World::new();
    let service = world.joined("a").await;
    let observer = observer(&world, common::policy()).await;
    for error in [observer.holders().err(), service.holders().err(), observer.holder("key").err()] {
        let error = error.expect("no claims, no holders");
        assert_eq!(error.kind(), ErrorKind::Settings);
        assert!(error.to_string().contains("ownership is eventual"), "{error}");
    }
}
