//! What the memory backend keeps and lets go of, beside the contract.

use std::time::Duration;

use futures::StreamExt;
use shardwise_core::mistakes::{Mistake, make};
use shardwise_core::{GroupName, Incarnation, InstanceId, Member, Resource};
use shardwise_discovery::{Claims, Clock, Discovery, ErrorKind, MemoryBackend, Registration, ViewSnapshot, WatchEvent, WatchStream};

const GROUPS_MAX: u32 = 1_024;
const TTL: Duration = Duration::from_secs(3);

fn group(number: u32) -> GroupName {
    GroupName::new(format!("group {number}")).expect("a valid name")
}

fn registration(number: u32) -> Registration {
    let member = Member { incarnation: Incarnation::new(1), ..Member::named(InstanceId::new("a").expect("a valid name")) };
    Registration { group: group(number), member, ttl: TTL, claims: false }
}

async fn next(watch: &mut WatchStream) -> WatchEvent {
    let event = tokio::time::timeout(TTL, watch.next()).await.expect("no silence").expect("the stream goes on");
    event.expect("no error")
}

async fn view(watch: &mut WatchStream) -> ViewSnapshot {
    match next(watch).await {
        WatchEvent::View(snapshot) => snapshot,
        other => panic!("a view is expected, not {other:?}"),
    }
}

/// A store that holds as many groups as it can.
async fn full() -> MemoryBackend {
    let store = MemoryBackend::new(Clock::tokio());
    for number in 0..GROUPS_MAX {
        store.register(&registration(number)).await.expect("there is room");
    }
    store
}

#[tokio::test(start_paused = true)]
async fn reading_and_watching_a_name_takes_no_room() {
    let store = MemoryBackend::new(Clock::tokio());
    let mut watches = Vec::new();
    for number in 0..2 * GROUPS_MAX {
        assert!(store.members(&group(number)).await.expect("a read").view.members().is_empty());
        let record_id = registration(number).record_id();
        assert_eq!(store.renew(&record_id, TTL).await.expect_err("no record").kind(), &ErrorKind::Lost);
        store.deregister(&record_id).await.expect("no error without a record");
        let mut watch = store.watch(&group(number), TTL / 3);
        view(&mut watch).await;
        watches.push(watch);
    }
    store.register(&registration(9_999)).await.expect("no member, no group: there is room");
}

#[tokio::test(start_paused = true)]
async fn the_room_of_a_group_is_free_once_its_members_have_left_or_died() {
    let store = full().await;
    let late = registration(GROUPS_MAX);
    let error = store.register(&late).await.expect_err("one too many");
    assert_eq!(error.kind(), &ErrorKind::TooLarge);
    let text = "register: the memory backend already holds 1024 groups with members; let the members of one leave";
    assert_eq!(error.to_string(), text);
    store.register(&registration(7)).await.expect("a group that is there takes members all the same");
    store.deregister(&registration(7).record_id()).await.expect("leaves");
    store.register(&late).await.expect("one has left");
    store.register(&registration(7)).await.expect_err("full again");
    tokio::time::sleep(TTL).await;
    store.register(&registration(7)).await.expect("all others have died, though nobody has looked at their groups since");
}

#[tokio::test(start_paused = true)]
async fn a_watch_on_a_name_beyond_the_limit_sees_it_and_what_becomes_of_it() {
    let store = full().await;
    let mut watch = store.watch(&group(GROUPS_MAX), TTL / 3);
    assert!(view(&mut watch).await.view.members().is_empty());
    assert!(matches!(next(&mut watch).await, WatchEvent::Proven(_)), "proven, not silent");
    store.deregister(&registration(7).record_id()).await.expect("leaves");
    store.register(&registration(GROUPS_MAX)).await.expect("there is room");
    assert_eq!(view(&mut watch).await.view.members().len(), 1, "what other groups do is not reported here");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_gone_goes_on_above_its_former_self() {
    let store = MemoryBackend::new(Clock::tokio());
    let mut watch = store.watch(&group(0), TTL / 3);
    let mut shown = vec![view(&mut watch).await.view];
    for round in 0..4 {
        store.register(&registration(0)).await.expect("registers");
        shown.push(view(&mut watch).await.view);
        match round % 2 {
            0 => store.deregister(&registration(0).record_id()).await.expect("leaves"),
            _ => tokio::time::sleep(TTL).await,
        }
        while shown.last().is_some_and(|last| !last.members().is_empty()) {
            if let WatchEvent::View(snapshot) = next(&mut watch).await {
                shown.push(snapshot.view);
            }
        }
    }
    assert!(shown.is_sorted_by(|a, b| a.revision() < b.revision()), "{shown:?}");
    let joined: Vec<_> = shown.iter().flat_map(|view| view.members()).map(|member| member.joined).collect();
    assert!(joined.is_sorted_by(|a, b| a < b), "{joined:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_opened_on_a_cut_connection_says_so_once() {
    let store = MemoryBackend::new(Clock::tokio());
    store.set_reachable(false);
    let mut watch = store.watch(&group(0), TTL / 3);
    let first = tokio::time::timeout(TTL, watch.next()).await.expect("no silence").expect("the stream goes on");
    assert_eq!(first.expect_err("cut").kind(), &ErrorKind::Unavailable);
    let silence = tokio::time::timeout(3 * TTL, watch.next()).await;
    assert!(silence.is_err(), "one error for one cut: {silence:?}");
    store.set_reachable(true);
    assert!(view(&mut watch).await.view.members().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wiped_backend_has_another_store_of_claims_and_none_of_the_old_records() {
    let backend = MemoryBackend::new(Clock::tokio());
    let before = backend.claim_store(&group(1), 0).await.expect("claim_store");
    backend.register(&registration(1)).await.expect("register");
    let revision = backend.members(&group(1)).await.expect("members").view.revision();
    let granted = backend.acquire(&registration(1).record_id(), &before, &[Resource::Slot(0)]).await.expect("acquire");
    backend.wipe();
    let after = backend.claim_store(&group(1), 0).await.expect("claim_store");
    assert_ne!(after.id, before.id);
    let view = backend.members(&group(1)).await.expect("members").view;
    assert!(view.members().is_empty() && view.revision() > revision);
    backend.register(&registration(1)).await.expect("register");
    let again = backend.acquire(&registration(1).record_id(), &after, &[Resource::Slot(0)]).await.expect("acquire");
    assert_eq!(again, granted, "epochs begin anew, which is why the store has an id and a floor");
}

/// Renews over a connection that stalls before the look at whether the renewal came too late, and gives the call up.
async fn renews_slowly(store: &MemoryBackend, stalls_for: Duration) {
    let stalls = std::sync::atomic::AtomicBool::new(false);
    let slow = store.clone().stalling(move || {
        let after = stalls.fetch_xor(true, std::sync::atomic::Ordering::Relaxed);
        if after { stalls_for } else { Duration::ZERO }
    });
    let given_up = tokio::time::timeout(TTL / 8, slow.renew(&registration(0).record_id(), TTL)).await;
    assert!(given_up.is_err(), "the store stalls, and yet {given_up:?}");
}

async fn holds(store: &MemoryBackend) -> bool {
    !store.members(&group(0)).await.expect("members").view.members().is_empty()
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_looked_at_too_late_is_undone_when_its_caller_has_given_up() {
    let store = MemoryBackend::new(Clock::tokio());
    store.register(&registration(0)).await.expect("register");
    tokio::time::sleep(TTL / 2).await;
    renews_slowly(&store, TTL).await;
    tokio::time::sleep(TTL * 3 / 4).await;
    assert!(holds(&store).await, "renewed, and nobody has looked yet");
    tokio::time::sleep(TTL / 8).await;
    assert!(!holds(&store).await, "undone before the renewed record ends");
}

/// Whether a registration that comes between a renewal and the look at it outlives that look.
async fn outlives_an_earlier_renewal(registered_after: Duration) -> bool {
    let store = MemoryBackend::new(Clock::tokio());
    store.register(&registration(0)).await.expect("register");
    tokio::time::sleep(TTL / 2).await;
    renews_slowly(&store, TTL * 3 / 2).await;
    tokio::time::sleep(registered_after).await;
    store.register(&registration(0)).await.expect("register");
    // Until a moment behind the poll.
    tokio::time::sleep((TTL * 23 / 16).saturating_sub(registered_after)).await;
    holds(&store).await
}

#[tokio::test(start_paused = true)]
async fn a_registration_outlives_an_earlier_renewal_that_came_too_late() {
    assert!(outlives_an_earlier_renewal(TTL * 3 / 4).await, "the same life goes on");
    assert!(outlives_an_earlier_renewal(TTL * 5 / 4).await, "another life, after the renewed record has ended");
    make(Some(Mistake::UndoByIncarnation));
    let outlives = outlives_an_earlier_renewal(TTL * 3 / 4).await;
    make(None);
    assert!(!outlives, "the mistake is made, and this test cannot see it");
}

#[tokio::test(start_paused = true)]
async fn a_cut_connection_is_an_error_and_never_an_empty_view() {
    let store = MemoryBackend::new(Clock::tokio());
    let cut = store.link();
    store.register(&registration(0)).await.expect("register");
    let mut watch = cut.watch(&group(0), Duration::from_secs(1));
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::View(_)))));
    cut.set_reachable(false);
    assert_eq!(cut.members(&group(0)).await.expect_err("cut").kind(), &ErrorKind::Unavailable);
    assert!(watch.next().await.expect("the stream goes on").is_err());
    let silence = tokio::time::timeout(Duration::from_secs(9), watch.next()).await;
    assert!(silence.is_err(), "nothing is proven while it is cut: {silence:?}");
    cut.set_reachable(true);
    let Some(Ok(WatchEvent::View(snapshot))) = watch.next().await else { panic!("a full view after the cut") };
    assert!(snapshot.view.members().is_empty(), "the member died in the meantime, and this was read");
}
