use super::*;
use crate::{Incarnation, Loss, MemberState, Missing, SlotOwners};
use proptest::prelude::*;

fn id(name: impl AsRef<str>) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn member(name: &str, version: &str) -> Member {
    Member { version: Some(version.to_owned()), ..Member::named(id(name)) }
}

fn held_by(name: &str, slots: impl IntoIterator<Item = u32>) -> Vec<(Resource, Holder)> {
    let holder = Holder { instance_id: id(name), incarnation: Incarnation::new(0) };
    slots.into_iter().map(|slot| (Resource::Slot(slot), holder.clone())).collect()
}

fn params(slots: u32) -> PlacementParams {
    PlacementParams { slots, virtual_nodes: 16, ..PlacementParams::default() }
}

fn succession(view: &View, params: PlacementParams, names: &BTreeSet<ClaimName>, holders: &[(Resource, Holder)]) -> Succession {
    Succession::of_view(view, params, names, holders.iter().map(|(resource, holder)| (resource, holder)))
}

fn names(count: usize) -> BTreeSet<ClaimName> {
    (0..count).map(|i| ClaimName::new(format!("daemon/{i}")).unwrap()).collect()
}

/// Every slot and every name.
fn everything(slots: u32, names: &BTreeSet<ClaimName>) -> Vec<Resource> {
    (0..slots).map(Resource::Slot).chain(names.iter().cloned().map(Resource::Name)).collect()
}

#[test]
fn what_is_held_stays_and_what_is_free_goes_to_the_newest_that_has_room() {
    // Each has room for 35 of 100: old-1 holds more, and the new ones have room for 30 together.
    let view = View::new(1, vec![member("new-1", "1.10"), member("new-2", "1.10"), member("old-1", "1.9")]);
    let holders = [held_by("old-1", 0..50), held_by("new-1", 50..70), held_by("new-2", 70..90)].concat();
    let placed = succession(&view, params(100), &names(0), &holders);
    assert!(holders.iter().all(|(resource, holder)| placed.owner(resource) == Some(&holder.instance_id)), "it stays where it is");
    let free: Vec<_> = (90..100).map(|slot| placed.owner(&Resource::Slot(slot)).unwrap().as_str()).collect();
    assert!(free.iter().all(|owner| owner.starts_with("new")), "{free:?}");
    assert_eq!(placed.slots_of(&id("old-1")), SlotSet::from_slots(100, 0..50));
    assert_eq!(placed.slots_of(&id("stranger")), SlotSet::empty(100));
}

#[test]
fn what_the_newest_has_no_room_for_goes_to_the_next_older() {
    let view = View::new(1, vec![member("a", "3"), member("b", "2"), member("c", "1")]);
    // Each has room for 35 of 100.
    let none = succession(&view, params(100), &names(0), &[]);
    assert_eq!(["a", "b", "c"].map(|name| none.slots_of(&id(name)).len()), [35, 35, 30]);
    let placed = succession(&view, params(100), &names(0), &held_by("a", 0..34));
    assert_eq!(["a", "b", "c"].map(|name| placed.slots_of(&id(name)).len()), [35, 35, 30]);
    assert_eq!(placed.owner(&Resource::Slot(34)), Some(&id("a")), "in ascending order: the first one gets the last place");
}

#[test]
fn a_member_that_is_not_active_in_this_very_life_holds_nothing() {
    let mut members = vec![member("here", "2"), member("leaving", "1"), member("again", "1")];
    members[1].state = MemberState::Draining;
    members[2].incarnation = Incarnation::new(9);
    let view = View::new(1, members);
    let holders = [held_by("leaving", 0..10), held_by("again", 10..20), held_by("gone", 20..30)].concat();
    let placed = succession(&view, params(30), &names(0), &holders);
    assert_eq!(placed, succession(&view, params(30), &names(0), &[]));
    assert!(placed.slots_of(&id("leaving")).is_empty() && !placed.slots_of(&id("here")).is_empty());
}

#[test]
fn while_members_are_missing_what_is_free_stays_free() {
    let mut here = member("here", "2");
    here.loss = Some(Loss::Missing(vec![Missing { instance_id: id("lost"), weight: Weight::ONE }]));
    let view = View::new(1, vec![here, member("other", "1")]);
    let placed = succession(&view, params(30), &names(3), &held_by("here", 0..4));
    assert_eq!(placed.slots_of(&id("here")), SlotSet::from_slots(30, 0..4));
    assert_eq!((placed.slots_of(&id("other")).len(), placed.names_of(&id("here")).count()), (0, 0));
}

/// In a rolling restart with `rejoin_grace` the worker returns with the new version to its former share.
#[test]
fn what_belongs_to_an_away_member_stays_free_until_it_has_returned() {
    let members = ["a", "b", "c"].map(|name| member(name, "1"));
    let plain = SlotOwners::of_view(&View::new(1, members.to_vec()), params(30));
    let had = |name: &str| held_by(name, plain.slots_of(&id(name)).iter());
    let holders = [had("a"), had("c")].concat();
    for state in [MemberState::Pausing, MemberState::Away] {
        let mut members = members.clone();
        members[0].version = Some("2".to_owned());
        members[1].state = state;
        // Claims that it has not released yet are reserved like the rest of its share.
        for holders in [holders.clone(), [holders.clone(), had("b")].concat()] {
            let away = succession(&View::new(2, members.to_vec()), params(30), &names(4), &holders);
            assert!(["a", "c"].iter().all(|name| away.slots_of(&id(name)) == plain.slots_of(&id(name))), "nobody takes them");
            let by_name = crate::NameOwners::of_view(&View::new(1, members.to_vec()), params(30), &names(4));
            for name in names(4) {
                let is_kept = by_name.owner(&name) == Some(&id("b"));
                assert_eq!(away.owner(&Resource::Name(name)).is_none(), is_kept);
            }
        }
    }
    let mut back = members;
    (back[0].version, back[1].version) = (Some("2".to_owned()), Some("2".to_owned()));
    let back = succession(&View::new(3, back.to_vec()), params(30), &names(0), &holders);
    let moved = plain.slots_of(&id("b")).minus(&back.slots_of(&id("b")));
    assert!(moved.len() <= 1, "but for what the other new one has room for: {moved:?}");
}

#[test]
fn without_members_no_member_owns() {
    let nobody = succession(&View::default(), params(30), &names(2), &held_by("gone", 0..4));
    assert!(everything(30, &names(2)).iter().all(|resource| nobody.owner(resource).is_none()));
}

#[test]
fn what_was_not_to_come_is_noticed() {
    let view = View::new(1, vec![member("a", "2"), member("b", "1")]);
    let mut placed = succession(&view, params(10), &names(0), &held_by("b", 0..5));
    let [slot, held] = [Resource::Slot(9), Resource::Slot(0)];
    let holder = |name| Some(held_by(name, [0]).remove(0).1);
    assert_eq!(placed.owner(&slot), Some(&id("a")));
    let before = placed.clone();
    assert!(placed.follows(&slot, None) && placed.follows(&slot, holder("stranger").as_ref()), "it is free as before");
    assert!(placed.follows(&held, holder("b").as_ref()) && placed == before);
    assert!(!placed.follows(&slot, holder("b").as_ref()), "somebody else has taken it");
    assert!(!placed.follows(&held, None) && !placed.follows(&held, holder("a").as_ref()), "it was not to move");
    assert!(placed.follows(&slot, holder("a").as_ref()));
    assert!(!placed.follows(&slot, None), "it was taken and given up");
    assert!(placed.follows(&Resource::Slot(10), holder("b").as_ref()), "no such slot");
}

/// Members with weights and versions, and the holder of each slot and name.
#[derive(Debug, Clone)]
struct Fleet {
    members: Vec<Member>,
    params: PlacementParams,
    names: BTreeSet<ClaimName>,
    holders: Vec<(Resource, Holder)>,
}

fn fleet() -> impl Strategy<Value = Fleet> {
    let members = proptest::collection::vec((1u8..5, 0u8..4), 1..7);
    let holders = proptest::collection::vec(0usize..14, 60);
    (members, 1u32..50, 0usize..10, 0u32..200, holders).prop_map(|(members, slots, count, margin, holders)| {
        let one = |(i, (weight, version)): (usize, &(u8, u8))| Member {
            weight: Weight::new(u64::from(*weight)).unwrap(),
            version: (*version > 0).then(|| format!("1.{version}")),
            ..Member::named(id(format!("m{i}")))
        };
        let members: Vec<_> = members.iter().enumerate().map(one).collect();
        let names = names(count);
        // Some have no holder, some an unknown one.
        let holder = |i: &usize| (*i < 9).then(|| held_by(&format!("m{i}"), [0]).remove(0).1);
        let holders = everything(slots, &names).into_iter().zip(&holders).filter_map(|(resource, i)| Some((resource, holder(i)?)));
        let holders = holders.collect();
        let params = PlacementParams { load_margin: crate::LoadMargin::Thousandths(margin), ..params(slots) };
        Fleet { members, params, names, holders }
    })
}

impl Fleet {
    fn view(&self) -> View {
        View::new(1, self.members.clone())
    }

    fn placed(&self) -> Succession {
        succession(&self.view(), self.params, &self.names, &self.holders)
    }

    /// Rule 8 taken literally, for slots or for names: `items` are resources with their places, in order.
    fn as_written(&self, items: &[(Resource, u64)]) -> Vec<InstanceId> {
        let sorted = self.view().members().to_vec();
        let sum: u64 = sorted.iter().map(|m| u64::from(m.weight.get())).sum();
        let crate::LoadMargin::Thousandths(margin) = self.params.load_margin else { unreachable!() };
        let most = |m: &Member| {
            (items.len() as u64 * u64::from(m.weight.get()) * (1_000 + u64::from(margin))).div_ceil(1_000 * sum).min(items.len() as u64)
        };
        let holder = |resource: &Resource| {
            let held = self.holders.iter().find(|(held, _)| held == resource);
            held.map(|(_, holder)| holder.instance_id.clone()).filter(|id| sorted.iter().any(|m| m.instance_id == *id))
        };
        let mut owners: Vec<Option<InstanceId>> = items.iter().map(|(resource, _)| holder(resource)).collect();
        let mut points = Vec::new();
        for m in &sorted {
            for i in 0..self.params.virtual_nodes * u32::from(m.weight.get()) {
                points.push((hash_bytes(&[m.instance_id.as_str().as_bytes(), &i.to_le_bytes()].concat()), m));
            }
        }
        points.sort_by(|a, b| (a.0, &a.1.instance_id).cmp(&(b.0, &b.1.instance_id)));
        for at in 0..items.len() {
            if owners[at].is_some() {
                continue;
            }
            let has_room = |m: &Member| (owners.iter().flatten().filter(|owner| **owner == m.instance_id).count() as u64) < most(m);
            let newest = sorted.iter().filter(|m| has_room(m)).map(|m| Version::of(m.version.as_deref())).max().unwrap();
            let clockwise =
                points.iter().filter(|(hash, _)| *hash >= items[at].1).chain(points.iter().filter(|(hash, _)| *hash < items[at].1));
            let taker = clockwise.map(|(_, m)| m).find(|m| has_room(m) && Version::of(m.version.as_deref()) == newest).unwrap();
            owners[at] = Some(taker.instance_id.clone());
        }
        owners.into_iter().flatten().collect()
    }
}

proptest! {
    #[test]
    fn it_is_the_text(fleet in fleet()) {
        let placed = fleet.placed();
        let slots: Vec<_> = (0..fleet.params.slots).map(|slot| (Resource::Slot(slot), slot_start(slot, fleet.params.slots))).collect();
        let names: Vec<_> = fleet.names.iter().map(|name| (Resource::Name(name.clone()), hash_bytes(name.as_str().as_bytes()))).collect();
        for items in [slots, names] {
            let expected = fleet.as_written(&items);
            prop_assert_eq!(expected.len(), items.len());
            for ((resource, _), owner) in items.iter().zip(&expected) {
                prop_assert_eq!(placed.owner(resource), Some(owner), "{}", resource);
            }
        }
    }

    #[test]
    fn the_order_of_the_members_has_no_influence(fleet in fleet(), turn in 0usize..7) {
        let mut turned = fleet.clone();
        let by = turn % turned.members.len();
        turned.members.rotate_left(by);
        turned.members[by..].reverse();
        prop_assert_eq!(turned.placed(), fleet.placed());
    }

    /// So members that know different parts of it agree on the rest, and nothing is recomputed while all goes as assigned.
    #[test]
    fn whatever_part_of_it_is_done_the_rest_stays_as_it_was(fleet in fleet(), done in proptest::collection::vec(any::<bool>(), 60)) {
        let mut placed = fleet.placed();
        let mut after = fleet.clone();
        for (resource, done) in everything(fleet.params.slots, &fleet.names).into_iter().zip(done) {
            if done {
                let holder = held_by(placed.owner(&resource).unwrap().as_str(), [0]).remove(0).1;
                prop_assert!(placed.follows(&resource, Some(&holder)));
                after.holders.retain(|(held, _)| *held != resource);
                after.holders.push((resource, holder));
            }
        }
        prop_assert_eq!(after.placed(), placed);
    }

    /// With one version and everything free it equals the placement.
    #[test]
    fn equal_versions_without_claims_are_the_plain_placement(fleet in fleet()) {
        let mut same = fleet;
        same.members.iter_mut().for_each(|m| m.version = Some("7".to_owned()));
        same.holders.clear();
        prop_assert!(!same.view().versions_differ());
        let (placed, plain) = (same.placed(), SlotOwners::of_view(&same.view(), same.params));
        let by_name = crate::NameOwners::of_view(&same.view(), same.params, &same.names);
        for slot in 0..same.params.slots {
            prop_assert_eq!(placed.owner(&Resource::Slot(slot)), plain.owner_of_slot(slot));
        }
        for name in &same.names {
            prop_assert_eq!(placed.owner(&Resource::Name(name.clone())), by_name.owner(name));
        }
    }

    #[test]
    fn no_member_gets_more_than_its_most_unless_it_has_more(fleet in fleet()) {
        let placed = fleet.placed();
        let weighed: Vec<_> = fleet.view().members().iter().map(|m| (m.instance_id.clone(), m.weight)).collect();
        let most = ring::capacities(&weighed, fleet.params.slots, fleet.params.load_margin);
        for ((id, _), most) in weighed.iter().zip(most) {
            let had = fleet.holders.iter().filter(|(resource, holder)| matches!(resource, Resource::Slot(_)) && holder.instance_id == *id).count();
            prop_assert!(placed.slots_of(id).len() <= most.max(u32::try_from(had).unwrap()));
        }
    }
}
