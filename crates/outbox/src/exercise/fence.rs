//! Store suite: publishers and slots, by the clauses of [`Store`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use shardwise::{Incarnation, SlotSet};

use super::StoreHarness;
use crate::ErrorKind;
use crate::store::{Hold, PublisherRegistration, Store, TouchReply};

pub(super) const TTL: Duration = Duration::from_secs(10);

pub(super) async fn all<H: StoreHarness, F: Future<Output = H>>(fresh: &impl Fn() -> F) {
    a_slot_has_one_holder_and_epochs_rise(&fresh().await).await;
    a_holder_is_replaced_only_after_its_ttl(&fresh().await).await;
    a_taker_must_be_alive_itself(&fresh().await).await;
    releasing_is_for_current_holds_only(&fresh().await).await;
    leaving_gives_everything_back(&fresh().await).await;
    another_number_of_slots_is_refused_while_a_publisher_lives(&fresh().await).await;
    a_former_holder_under_another_number_of_slots_is_unknown(&fresh().await).await;
    racing_takers_share_without_overlap(&fresh().await).await;
}

pub(super) fn publisher(number: u64, slots: u32) -> PublisherRegistration {
    PublisherRegistration { publisher: format!("worker-{number}"), incarnation: Incarnation::new(number), ttl: TTL, slots }
}

/// A registered publisher and its own store handle.
pub(super) async fn joined(harness: &impl StoreHarness, number: u64, slots: u32) -> (Arc<dyn Store>, PublisherRegistration) {
    let (store, me) = (harness.open().await, publisher(number, slots));
    store.register(&me).await.unwrap();
    (store, me)
}

pub(super) async fn take(store: &dyn Store, me: &PublisherRegistration, members: impl IntoIterator<Item = u32>) -> Vec<Hold> {
    let mut holds = store.take(me, &SlotSet::from_slots(me.slots, members)).await.unwrap();
    holds.sort_unstable();
    holds
}

fn numbers(holds: &[Hold]) -> Vec<u32> {
    holds.iter().map(|hold| hold.slot).collect()
}

async fn a_slot_has_one_holder_and_epochs_rise(harness: &impl StoreHarness) {
    let ((one, a), (two, b)) = (joined(harness, 1, 8).await, joined(harness, 2, 8).await);
    let first = take(&*one, &a, 0..5).await;
    assert_eq!(numbers(&first), [0, 1, 2, 3, 4]);
    assert_eq!(numbers(&take(&*two, &b, 3..8).await), [5, 6, 7], "clause 1: 3 and 4 have a holder");
    let again = take(&*one, &a, 0..2).await;
    assert_eq!(numbers(&again), [0, 1], "clause 2: one's own may be taken again");
    assert!(again.iter().zip(&first).all(|(again, first)| again.epoch > first.epoch), "clause 1: {again:?} after {first:?}");
    assert_eq!(one.touch(&a).await.unwrap(), TouchReply::Seen([&again[..], &first[2..]].concat()), "a touch tells what is held");
}

async fn a_holder_is_replaced_only_after_its_ttl(harness: &impl StoreHarness) {
    let ((one, a), (two, b)) = (joined(harness, 1, 8).await, joined(harness, 2, 8).await);
    let held = take(&*one, &a, [0]).await;
    harness.advance(TTL / 2).await;
    assert!(matches!(one.touch(&a).await.unwrap(), TouchReply::Seen(_)));
    two.touch(&b).await.unwrap();
    harness.advance(Duration::from_millis(9_999)).await;
    two.touch(&b).await.unwrap();
    assert_eq!(take(&*two, &b, [0]).await, [], "clause 2: seen within its TTL");
    harness.advance(Duration::from_millis(2)).await;
    let taken = take(&*two, &b, [0]).await;
    assert_eq!(numbers(&taken), [0], "clause 2: not seen within its TTL");
    assert!(taken[0].epoch > held[0].epoch);
    if let TouchReply::Seen(holds) = one.touch(&a).await.unwrap() {
        assert_eq!(holds, [], "clause 1: the former holder learns that it has nothing");
    }
    assert_eq!(take(&*one, &a, [0]).await, [], "and takes it again only by the same rule");
}

async fn a_taker_must_be_alive_itself(harness: &impl StoreHarness) {
    let (one, a) = joined(harness, 1, 8).await;
    harness.advance(TTL + Duration::from_secs(1)).await;
    assert_eq!(take(&*one, &a, 0..8).await, [], "clause 2: the taker was not seen within its TTL");
    assert_eq!(take(&*one, &publisher(9, 8), 0..8).await, [], "clause 2: the taker is not registered");
    if one.touch(&a).await.unwrap() == TouchReply::Unknown {
        one.register(&a).await.unwrap();
    }
    assert_eq!(take(&*one, &a, 0..8).await.len(), 8);
    assert_eq!(one.touch(&publisher(9, 8)).await.unwrap(), TouchReply::Unknown);
}

async fn releasing_is_for_current_holds_only(harness: &impl StoreHarness) {
    let ((one, a), (two, b)) = (joined(harness, 1, 8).await, joined(harness, 2, 8).await);
    let old = take(&*one, &a, [0]).await;
    let new = take(&*one, &a, [0]).await;
    one.release(&a, &old).await.unwrap();
    two.release(&b, &new).await.unwrap();
    assert_eq!(take(&*two, &b, [0]).await, [], "neither an old epoch nor another's hold was released");
    one.release(&a, &new).await.unwrap();
    one.release(&a, &new).await.unwrap();
    let taken = take(&*two, &b, [0]).await;
    assert!(taken.len() == 1 && taken[0].epoch > new[0].epoch, "clause 1: {taken:?} after {new:?}");
}

async fn leaving_gives_everything_back(harness: &impl StoreHarness) {
    let ((one, a), (two, b)) = (joined(harness, 1, 8).await, joined(harness, 2, 8).await);
    take(&*one, &a, 0..8).await;
    one.leave(&a).await.unwrap();
    assert_eq!(take(&*two, &b, 0..8).await.len(), 8);
    assert_eq!(one.touch(&a).await.unwrap(), TouchReply::Unknown);
    let status = two.status().await.unwrap();
    assert_eq!(status.publishers.iter().map(|p| (p.publisher.as_str(), p.alive, p.slots)).collect::<Vec<_>>(), [("worker-2", true, 8)]);
    assert_eq!((status.slots, status.free_slots), (Some(8), 0));
}

async fn another_number_of_slots_is_refused_while_a_publisher_lives(harness: &impl StoreHarness) {
    let (one, a) = joined(harness, 1, 8).await;
    let highest = take(&*one, &a, 0..8).await.iter().map(|hold| hold.epoch).max().unwrap();
    let two = harness.open().await;
    let mut refused = two.register(&publisher(2, 16)).await.unwrap_err();
    // A busy machine's server may take longer than a call is waited for.
    for _ in 0..10 {
        if refused.kind() == ErrorKind::Unavailable {
            refused = two.register(&publisher(2, 16)).await.unwrap_err();
        }
    }
    assert_eq!(refused.kind(), ErrorKind::OtherSlots, "{refused}");
    assert!(refused.to_string().contains("worker-1") && refused.to_string().contains("16"), "{refused}");
    one.leave(&a).await.unwrap();
    two.register(&publisher(2, 16)).await.unwrap();
    let taken = take(&*two, &publisher(2, 16), 0..16).await;
    assert_eq!(taken.len(), 16);
    assert!(taken.iter().all(|hold| hold.epoch > highest), "clause 1: epochs never fall, {taken:?} after {highest}");
}

async fn a_former_holder_under_another_number_of_slots_is_unknown(harness: &impl StoreHarness) {
    let (one, a) = joined(harness, 1, 8).await;
    take(&*one, &a, 0..8).await;
    harness.advance(TTL + Duration::from_secs(1)).await;
    let (two, b) = joined(harness, 2, 16).await;
    assert_eq!(one.touch(&a).await.unwrap(), TouchReply::Unknown);
    assert_eq!(take(&*one, &a, 0..8).await, []);
    assert_eq!(take(&*two, &b, 0..16).await.len(), 16);
    assert_eq!(one.register(&a).await.unwrap_err().kind(), ErrorKind::OtherSlots);
}

async fn racing_takers_share_without_overlap(harness: &impl StoreHarness) {
    let mut takers = Vec::new();
    for number in 1..=4 {
        takers.push(joined(harness, number, 64).await);
    }
    let taken = futures::future::join_all(takers.iter().map(|(store, me)| take(&**store, me, 0..64))).await;
    let mut all: Vec<u32> = taken.iter().flatten().map(|hold| hold.slot).collect();
    all.sort_unstable();
    assert_eq!(all, (0..64).collect::<Vec<_>>(), "clause 1: each slot once");
}
