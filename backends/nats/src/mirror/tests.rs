//! Messages one after another, and what the mirror shows.

use shardwise_core::{Incarnation, Member, MemberState};
use shardwise_discovery::Record;

use super::*;
use crate::messages::{self, LifeBeat};
use crate::names::Bucket;

const TTL: Duration = Duration::from_secs(3);
const HOUR: u64 = 3_600_000_000_000;

fn group() -> GroupName {
    GroupName::new("g").unwrap()
}

fn id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn subjects() -> GroupSubjects {
    Bucket::new("b").unwrap().group(&group())
}

fn delivery(subject: String, sequence: u64, payload: Vec<u8>) -> StreamDelivery {
    StreamDelivery { subject, sequence, stored_at: sequence, payload: payload.into(), is_marker: false }
}

fn record(name: &str, life: u64, sequence: u64, state: MemberState) -> StreamDelivery {
    let member = Member { state, incarnation: Incarnation::new(life), ..Member::named(id(name)) };
    let payload = messages::member(life, TTL, &Record::encode(&member).unwrap()).unwrap();
    delivery(subjects().member(&id(name)), sequence, payload)
}

fn beat(name: &str, life: u64, sequence: u64) -> StreamDelivery {
    let beat = LifeBeat { incarnation: Incarnation::new(life), life, ttl: TTL, is_away: false };
    delivery(subjects().beat(&id(name)), sequence, messages::beat(&beat))
}

fn claim(slot: u32, holder: &str, life: u64, sequence: u64) -> StreamDelivery {
    let claim = ClaimMessage { holder: id(holder), incarnation: Incarnation::new(life), life, floor: 100, ttl_ms: 3_000 };
    delivery(subjects().claim(&Resource::Slot(slot)), sequence, claim.bytes())
}

fn mirror(deliveries: &[StreamDelivery]) -> BucketMirror {
    let mut mirror = BucketMirror::new(subjects());
    for delivery in deliveries {
        mirror.take(delivery);
    }
    mirror
}

fn ids(mirror: &BucketMirror) -> Vec<String> {
    mirror.view(0, &[]).members().iter().map(|member| member.instance_id.to_string()).collect()
}

fn held(mirror: &BucketMirror) -> Vec<(Resource, u64)> {
    mirror.claim_table().0.iter().map(|(resource, claim)| (resource.clone(), claim.epoch.get())).collect()
}

#[test]
fn only_a_life_that_is_there_holds_claims() {
    let mut mirror = mirror(&[beat("a", 1, 1), record("a", 1, 2, MemberState::Active), claim(7, "a", 1, 5), claim(8, "b", 3, 6)]);
    assert_eq!(held(&mirror), [(Resource::Slot(7), 105)]);
    let (change, _) = mirror.take(&record("a", 1, 7, MemberState::Draining));
    assert_eq!(change, BucketChange { members: true, ..BucketChange::default() }, "it holds what it held");
    let (change, _) = mirror.take(&record("a", 1, 8, MemberState::Away));
    assert!(change.claims && held(&mirror).is_empty(), "stepping away ends its claims");
    mirror.take(&record("a", 9, 10, MemberState::Active));
    assert_eq!((ids(&mirror), held(&mirror)), (vec!["a".to_owned()], vec![]), "another life holds nothing of the former one");
    mirror.take(&delivery(subjects().claim(&Resource::Slot(7)), 11, Vec::new()));
    mirror.take(&claim(7, "a", 9, 12));
    assert_eq!(held(&mirror), [(Resource::Slot(7), 112)]);
}

#[test]
fn revisions_rise_with_records_and_markers_and_with_nothing_else() {
    let mut mirror = mirror(&[beat("a", 1, 1), record("a", 1, 2, MemberState::Active), beat("a", 1, 3), claim(7, "a", 1, 4)]);
    assert_eq!((mirror.revision(), mirror.delivered()), (2, 4));
    mirror.take(&delivery(subjects().member(&id("a")), 5, Vec::new()));
    assert_eq!((mirror.revision(), ids(&mirror)), (5, Vec::new()));
}

#[test]
fn an_observer_sees_beats_records_without_a_beat_and_beats_without_a_record() {
    let mut mirror =
        mirror(&[beat("a", 1, 1), record("a", 1, 2, MemberState::Active), record("b", 4, 5, MemberState::Active), beat("c", 6, 6)]);
    let seen = |mirror: &BucketMirror| {
        mirror.all_seen(&group()).into_iter().map(|seen| (seen.record.instance_id.to_string(), seen.beat)).collect::<Vec<_>>()
    };
    assert_eq!(seen(&mirror), [("a".to_owned(), Some(1)), ("b".to_owned(), None), ("c".to_owned(), Some(6))]);
    // A tombstone without the end of its record: its writer was stopped in between.
    mirror.take(&delivery(subjects().beat(&id("a")), 7, Vec::new()));
    assert_eq!(mirror.half_evicted(), [(id("a"), 7)]);
    assert_eq!(seen(&mirror), [("b".to_owned(), None), ("c".to_owned(), Some(6))]);
    assert!(mirror.has_ended(&id("a"), 1) && !mirror.has_ended(&id("a"), 8) && !mirror.has_ended(&id("c"), 6));
    mirror.take(&delivery(subjects().member(&id("a")), 8, Vec::new()));
    assert!(mirror.half_evicted().is_empty());
}

#[test]
fn what_was_read_apart_replaces_nothing_newer() {
    let mut mirror = mirror(&[beat("a", 1, 5)]);
    mirror.put_beat(&id("a"), Some(StoredBeat::Evicted { sequence: 4 }));
    assert!(!mirror.has_ended(&id("a"), 1));
    mirror.put_beat(&id("a"), Some(StoredBeat::Evicted { sequence: 6 }));
    assert!(mirror.has_ended(&id("a"), 1));
    mirror.put_beat(&id("a"), None);
    assert_eq!(mirror.beat(&id("a")), None);
}

#[test]
fn a_record_that_cannot_be_read_is_no_member_that_left() {
    let mut mirror = mirror(&[record("a", 1, 2, MemberState::Active)]);
    mirror.take(&delivery(subjects().member(&id("a")), 3, b"{\"newer\":1}".to_vec()));
    assert_eq!(mirror.unreadable().map(|(subject, _)| subject.to_owned()), Some(subjects().member(&id("a"))));
    mirror.take(&record("a", 1, 4, MemberState::Active));
    assert_eq!((mirror.unreadable(), ids(&mirror)), (None, vec!["a".to_owned()]));
}

/// Regression: it made the view of the members unusable, so that all of them stopped.
#[test]
fn a_note_that_cannot_be_read_keeps_nothing_else_from_being_read() {
    let name = |name: &str| ClaimName::new(name).unwrap();
    let note = |of: &str, sequence, payload: &[u8]| delivery(subjects().note(&name(of)), sequence, payload.to_vec());
    let mut mirror = mirror(&[record("a", 1, 2, MemberState::Active), note("n", 3, b"\"1\""), note("edited", 4, b"1")]);
    assert_eq!((mirror.unreadable(), ids(&mirror)), (None, vec!["a".to_owned()]));
    assert_eq!(mirror.notes().get(&name("n")), Some(&Ok(Note { text: "1".into(), version: 3 })));
    assert!(matches!(mirror.notes().get(&name("edited")), Some(Err(why)) if why.contains("expected a string")), "{:?}", mirror.notes());
    mirror.take(&note("edited", 5, b"\"2\""));
    assert_eq!(mirror.notes().get(&name("edited")), Some(&Ok(Note { text: "2".into(), version: 5 })));
}

#[test]
fn markers_are_forgotten_after_an_hour_but_for_the_newest() {
    let marker = |name: &str, sequence| delivery(subjects().member(&id(name)), sequence, Vec::new());
    let released = delivery(subjects().claim(&Resource::Slot(1)), 4, Vec::new());
    let mut mirror = mirror(&[marker("a", 2), marker("b", 3), released]);
    assert!(mirror.old_markers(9).is_empty());
    mirror.take(&StreamDelivery { stored_at: 2 * HOUR, ..beat("c", 5, 5) });
    let old = mirror.old_markers(9);
    let expected = [
        (subjects().beat(&id("a")), 2),
        (subjects().member(&id("a")), 2),
        (subjects().beat(&id("b")), 3),
        (subjects().claim(&Resource::Slot(1)), 4),
    ];
    assert_eq!(old.iter().map(|marker| (marker.subject.clone(), marker.sequence)).collect::<Vec<_>>(), expected);
    for marker in &old {
        mirror.forget_marker(marker);
    }
    assert_eq!(mirror.old_markers(9).len(), 1, "the tombstone below the newest marker, which costs one request an hour");
}
