//! Readings one after another, and what the mirror shows.

use std::time::Duration;

use shardwise_core::{Incarnation, Member};

use super::*;
use crate::sql::position::LogPosition;
use crate::sql::reads::{ClaimRow, Head};

fn id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn member(name: &str, life: i64, beat: u64) -> MirroredMember {
    let member = Member { incarnation: Incarnation::new(life.unsigned_abs()), ..Member::named(id(name)) };
    MirroredMember { member, beat: Beat { life, count: beat, ttl: Duration::from_secs(3) } }
}

fn claim(slot: u32, holder: Option<i64>, epoch: u64) -> ClaimRow {
    ClaimRow { resource: Resource::Slot(slot), holder, epoch: Epoch::new(epoch).unwrap() }
}

fn changes(revision: i64, claimed: i64, trimmed: i64) -> GroupChanges {
    let position = LogPosition { is_replica: false, origin: "s/1".into(), lsn: 1 };
    GroupChanges { head: Head { position, revision, claimed, trimmed }, members: Vec::new(), departed: Vec::new(), claims: None }
}

fn ids(mirror: &GroupMirror) -> Vec<String> {
    mirror.view(0).members().iter().map(|member| member.instance_id.to_string()).collect()
}

fn held(mirror: &GroupMirror) -> Vec<(u32, String)> {
    let table = mirror.claim_table().unwrap();
    let slot = |(resource, claim): (&Resource, &Claim)| match resource {
        Resource::Slot(slot) => (*slot, claim.holder.instance_id.to_string()),
        Resource::Name(name) => (u32::MAX, name.to_string()),
    };
    table.0.iter().map(slot).collect()
}

/// A mirror with the members a and b, and slots 1 and 2 of a.
fn mirror() -> GroupMirror {
    let mut mirror = GroupMirror::default();
    mirror.read_claims(true);
    let known = mirror.known();
    assert_eq!(known, KnownNumbers { members: NOTHING_KNOWN, claims: Some(NOTHING_KNOWN) });
    let members = vec![member("a", 1, 5), member("b", 2, 5)];
    let claims = Some(vec![claim(1, Some(1), 3), claim(2, Some(1), 3), claim(3, None, 2), claim(4, Some(77), 2)]);
    let change = mirror.take(known, GroupChanges { members, claims, ..changes(2, 3, 0) });
    assert_eq!(change, Some(MirrorChange { members: true, claims: true }));
    mirror
}

#[test]
fn only_a_life_that_is_there_holds_claims() {
    let mut mirror = mirror();
    assert_eq!(held(&mirror), [(1, "a".into()), (2, "a".into())], "slot 3 was released, and life 77 is not there");
    let known = mirror.known();
    let change = mirror.take(known, GroupChanges { departed: vec![(id("a"), 1)], claims: Some(vec![]), ..changes(4, 3, 0) });
    assert_eq!(change, Some(MirrorChange { members: true, claims: true }));
    assert_eq!((ids(&mirror), held(&mirror)), (vec!["b".to_owned()], vec![]));
    let known = mirror.known();
    let claims = Some(vec![claim(1, Some(2), 5)]);
    mirror.take(known, GroupChanges { claims, ..changes(4, 5, 0) });
    assert_eq!(held(&mirror), [(1, "b".into())]);
}

#[test]
fn another_life_of_a_member_holds_nothing_of_the_former_one() {
    let mut mirror = mirror();
    let known = mirror.known();
    // It stepped away, which ends its life; its id never leaves the view.
    mirror.take(
        known,
        GroupChanges { members: vec![member("a", 6, 6)], departed: vec![(id("a"), 1)], claims: Some(vec![]), ..changes(6, 3, 0) },
    );
    assert_eq!((ids(&mirror), held(&mirror)), (vec!["a".to_owned(), "b".to_owned()], vec![]));
    assert_eq!((mirror.life(&id("a")), mirror.record_of_life(&GroupName::new("g").unwrap(), 1)), (Some(6), None));
}

#[test]
fn who_knows_less_than_is_kept_reads_everything() {
    let mut mirror = mirror();
    let known = mirror.known();
    assert_eq!(mirror.take(known, changes(9_000, 3, 800)), None);
    mirror.forget();
    let known = mirror.known();
    assert_eq!(known, KnownNumbers { members: NOTHING_KNOWN, claims: Some(NOTHING_KNOWN) });
    let all = GroupChanges { members: vec![member("b", 2, 9)], claims: Some(vec![]), ..changes(9_000, 3, 800) };
    assert!(mirror.take(known, all).is_some());
    assert_eq!((ids(&mirror), held(&mirror)), (vec!["b".to_owned()], vec![]));
}

#[test]
fn numbers_say_whether_something_has_changed() {
    let mut mirror = mirror();
    assert!(!mirror.is_behind(2, 3) && mirror.is_behind(3, 3) && mirror.is_behind(2, 4));
    mirror.read_claims(false);
    assert!(!mirror.is_behind(2, 4) && mirror.claim_table().is_none(), "claims that are not read are no changes");
    mirror.read_claims(true);
    assert!(mirror.is_behind(2, 3));
}

#[test]
fn beats_that_were_read_are_changes_if_they_differ() {
    let mut mirror = mirror();
    let beat = |life, count| Beat { life, count, ttl: Duration::from_secs(3) };
    assert_eq!(mirror.take_beats(&[1, 2], &[beat(1, 5), beat(2, 6)]), Some(vec![id("b")]));
    assert_eq!(mirror.take_beats(&[1, 2], &[beat(1, 5), beat(2, 6)]), Some(vec![]));
    let longer = Beat { ttl: Duration::from_secs(9), ..beat(1, 5) };
    assert_eq!(mirror.take_beats(&[1], &[longer]), Some(vec![id("a")]), "another TTL");
    assert_eq!(mirror.take_beats(&[1, 9], &[]), None, "a row was deleted by hand");
    assert_eq!(mirror.take_beats(&[9], &[]), Some(vec![]), "a life that is not known any more");
    let seen = mirror.seen(&GroupName::new("g").unwrap(), &id("b")).unwrap();
    assert_eq!((seen.beat, seen.ttl), (Some(6), Duration::from_secs(3)));
    assert_eq!(mirror.least_ttl(), Some(Duration::from_secs(3)));
}
