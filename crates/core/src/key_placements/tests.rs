//! Each placement against its reference implementation or the literal text of its rule. `tests/other_fleets.rs` of the library compares
//! with the real Python package.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};

use ::hashring::HashRing;
use proptest::prelude::*;

use super::points::RingPosition;
use super::*;
use crate::{Fingerprint, Member, MemberState};

const ALL: [KeyPlacement; 3] = [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring];

fn id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn fleet(members: &[(&str, u64)]) -> Vec<(InstanceId, Weight)> {
    members.iter().map(|(name, weight)| (id(name), Weight::new(*weight).unwrap())).collect()
}

fn placed(members: &[(InstanceId, Weight)], placement: KeyPlacement, virtual_nodes: u32) -> KeyOwners {
    KeyOwners::place(members.iter().cloned(), placement, virtual_nodes).unwrap()
}

/// Members with ids in any script, some of them prefixes of others, and weights.
fn members() -> impl Strategy<Value = Vec<(InstanceId, Weight)>> {
    let id = "[a-c]{1,2}|[ -~éß🦀\u{301}]{1,8}";
    let fleet = proptest::collection::btree_map(id, 1u64..6, 1..9);
    fleet.prop_map(|fleet| fleet.iter().map(|(name, weight)| (InstanceId::new(name).unwrap(), Weight::new(*weight).unwrap())).collect())
}

#[test]
fn uhashring_gives_keys_to_whom_python_gives_them() {
    let owners = placed(&fleet(&[("worker-1", 1), ("worker-2", 1), ("worker-3", 1)]), KeyPlacement::Uhashring, 1);
    let keys = [("tenant-a", "worker-2"), ("tenant-b", "worker-3"), ("order-42", "worker-2"), ("", "worker-3"), ("é", "worker-2")];
    for (key, owner) in keys {
        assert_eq!(owners.owner(key), Some(&id(owner)), "{key:?}");
    }
    let KeyTable::Uhashring(points) = &owners.table else { panic!("another table: {owners:?}") };
    let on_a_point = uhashring::UhashringPosition::of(b"worker-1-0");
    let behind = points.find(on_a_point).unwrap();
    assert!(behind.0 > on_a_point, "a key on a point goes to the next");
    assert_eq!(owners.owner("worker-1-0"), Some(&owners.members()[behind.1 as usize].0));
}

#[test]
fn fnv_1a_is_fnv_1a() {
    let known = [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968), ("tenant-a", 0x9333_2d7b), ("order-42", 0x5724_46f4)];
    for (text, hash) in known {
        assert_eq!(modulo::fnv1a(text.as_bytes()), hash, "{text:?}");
    }
    let owners = placed(&fleet(&[("b", 9), ("a", 1), ("c", 1)]), KeyPlacement::Modulo, 1);
    assert_eq!(owners.owner("tenant-a").unwrap().as_str(), ["a", "b", "c"][0x9333_2d7b % 3]);
    assert_eq!(owners.owner("order-42").unwrap().as_str(), ["a", "b", "c"][0x5724_46f4 % 3]);
}

#[test]
fn an_integer_is_its_decimal_text() {
    for placement in ALL {
        let owners = placed(&fleet(&[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]), placement, 16);
        for number in [0i64, 7, 42, -1, i64::MIN, i64::MAX] {
            assert_eq!(owners.owner(&number), owners.owner(&number.to_string()), "{placement} {number}");
        }
        assert_eq!(owners.owner(&7u8), owners.owner(&7u128));
        assert!(owners.owner(&[0xffu8, 0xfe][..]).is_some(), "bytes that are no text have an owner too");
    }
}

#[test]
fn without_members_no_member_owns() {
    for placement in ALL {
        let nobody = Arc::new(placed(&[], placement, 16));
        assert_eq!((nobody.owner("key"), nobody.explain("key").owner), (None, None));
        assert!(!nobody.share_of(&id("a")).holds("key"));
    }
    assert!(!KeyShare::nothing().holds("key") && KeyShare::everything().holds("key"));
}

#[test]
fn more_points_than_can_be_kept_are_an_error() {
    let members: Vec<_> = (0..263).map(|i| (id(&format!("w{i}")), Weight::new(100).unwrap())).collect();
    let error = KeyOwners::place(members.iter().cloned(), KeyPlacement::Uhashring, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "placement uhashring with these weights has 4208000 points on its ring, at most 4194304 are allowed; lower the weights"
    );
    let error = KeyOwners::place(members.iter().cloned(), KeyPlacement::Hashring, 160).unwrap_err();
    assert!(error.to_string().ends_with("lower the weights or virtual_nodes"), "{error}");
    assert!(KeyOwners::place(members[1..].iter().cloned(), KeyPlacement::Modulo, 1_000).is_ok());
}

#[test]
fn all_in_the_view_count_and_those_beside_it_do_not() {
    let serving =
        |name: &str, policy: &str, state| Member { fingerprints: vec![Fingerprint::of(policy)], state, ..Member::named(id(name)) };
    let members = vec![
        Member { weight: Weight::new(3).unwrap(), ..serving("a", "ours", MemberState::Active) },
        serving("c", "ours", MemberState::Draining),
        serving("e", "another", MemberState::Active),
    ];
    let view = View::new(7, members).with_foreign(vec![id("d"), id("b")]);
    for placement in ALL {
        let owners = KeyOwners::of_view(&view, placement, 16).unwrap();
        assert_eq!(owners.members(), fleet(&[("a", 3), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]));
        assert!(owners.is_of(&view));
        assert!(!owners.is_of(&view.clone().with_foreign(vec![id("b")])));
    }
}

/// With four million points allowed, padding would take tens of megabytes.
#[test]
fn a_point_takes_its_hash_and_four_bytes() {
    assert_eq!((size_of::<(uhashring::UhashringPosition, u32)>(), size_of::<(hashring::HashringPosition, u32)>()), (20, 12));
}

/// Points at one place: uhashring keeps the node added last, the crate `hashring` whichever its search finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Few(u8);

impl RingPosition for Few {
    fn each_point(id: &str, points: u32, mut put: impl FnMut(Self)) {
        (0..points).for_each(|i| put(Self((crate::hash_bytes(format!("{id}{i}").as_bytes()) % 8) as u8)));
    }

    fn find(points: &[(Self, u32)], key: Self) -> Option<(Self, u32)> {
        uhashring::last_behind(points, key)
    }
}

proptest! {
    #[test]
    fn of_points_at_one_place_the_last_counts(members in members(), per_weight in 1u32..4) {
        // As the package does it: a dictionary, filled in the order of the nodes, and its keys sorted.
        let mut ring = BTreeMap::new();
        for (member, (id, weight)) in (0u32..).zip(&members) {
            Few::each_point(id.as_str(), per_weight * u32::from(weight.get()), |place| {
                ring.insert(place, member);
            });
        }
        let points = Points::<Few>::new(&members, per_weight);
        for key in 0..10 {
            let bisect = ring.range(Few(key + 1)..).next().or_else(|| ring.iter().next()).map(|(place, member)| (*place, *member));
            prop_assert_eq!(points.find(Few(key)), bisect);
        }
    }

    #[test]
    fn hashring_is_the_crate(members in members(), virtual_nodes in 1u32..40, keys in proptest::collection::vec(".{0,12}", 1..40)) {
        let mut ring: HashRing<(String, u32)> = HashRing::new();
        for (id, weight) in &members {
            ring.batch_add((0..virtual_nodes * u32::from(weight.get())).map(|i| (id.to_string(), i)).collect());
        }
        let owners = placed(&members, KeyPlacement::Hashring, virtual_nodes);
        for key in &keys {
            prop_assert_eq!(owners.owner(key).map(InstanceId::as_str), ring.get(&key.as_str()).map(|(id, _)| id.as_str()), "{:?}", key);
        }
    }

    #[test]
    fn following_the_members_is_placing_them_anew(before in members(), after in members(), keys in proptest::collection::vec(".{0,6}", 20)) {
        for placement in ALL {
            let last = placed(&before, placement, 8);
            let followed = KeyOwners::follow(Some(&last), after.iter().cloned(), placement, 8).unwrap();
            let anew = placed(&after, placement, 8);
            prop_assert_eq!(format!("{:?}", followed), format!("{:?}", anew), "every point is the same");
            // A placement by another rule cannot be reused, and does no harm.
            let other = KeyOwners::follow(Some(&last), after.iter().cloned(), placement, 9).unwrap();
            prop_assert_eq!(format!("{:?}", other), format!("{:?}", placed(&after, placement, 9)));
            for key in &keys {
                prop_assert!(followed.owner(key).is_some());
            }
        }
    }

    #[test]
    fn shares_are_whom_the_keys_belong_to_and_the_explanation_says_so(members in members(), keys in proptest::collection::vec(".{0,6}", 1..9)) {
        for placement in ALL {
            let owners = Arc::new(placed(&members, placement, 8));
            for key in &keys {
                let holders: Vec<_> = members.iter().filter(|(id, _)| owners.share_of(id).holds(key)).map(|(id, _)| id).collect();
                prop_assert_eq!(&holders[..], &[owners.owner(key).unwrap()]);
                let explained = owners.explain(key);
                prop_assert_eq!(explained.owner.as_ref(), owners.owner(key));
                prop_assert_eq!(explained.position.map(|at| &members[at].0), owners.owner(key));
                let others: Vec<_> = members.iter().filter(|(id, _)| Some(id) != explained.owner.as_ref()).cloned().collect();
                let without = placed(&others, placement, 8);
                prop_assert_eq!(explained.next.as_ref(), without.owner(key));
            }
        }
    }
}

/// The hash as computed by the crate itself.
#[test]
fn the_hash_of_a_key_is_the_crates() {
    for key in ["", "tenant-a", "é", "🦀"] {
        let mut hasher = ::hashring::DefaultHashBuilder.build_hasher();
        std::hash::Hash::hash(key, &mut hasher);
        assert_eq!(hashring::HashringPosition::of(key.as_bytes()).number(), hasher.finish());
    }
}
