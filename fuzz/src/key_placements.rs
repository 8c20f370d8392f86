//! Other fleets' placements: every key has an owner among the members, nothing depends on the order in which members are listed or on
//! the view before, and where there is a ring only the keys of leavers move.

use shardwise_core::{InstanceId, KeyOwners, KeyPlacement, Member, PlacementKind, PlacementParams, Placer, View, ViewPlacement, Weight};

use crate::bytes::Bytes;
use crate::fleet::{Fleet, name};

pub(crate) const KEY_FLEETS: &[&[u8]] = &[
    b"",
    // The rule, its points, a foreign instance, a key, NUL, and a fleet.
    b"\x00\x00\x11tenant-a\x00\x00\x3f\x0f\x00\x33\x00\x00\x12\x01\x01\x11",
    b"\x01\x00\x21\xf0\x9f\xa6\x80\x00\x00\x3f\x0f\x00\x33\x00\x04\x12\x01\x01\x11\x02\x00\x21",
    b"\x02\x07\x11\xff\x00\x00\x3f\x0f\x00\x33\x00\x00\x12\x01\x01\x11\x00\x00\x11\x02\x08\x21",
];

/// Few, since uhashring makes 160 points for each.
const MEMBERS: usize = 4;
/// Its digest takes a while without optimization.
const MEMBERS_OF_UHASHRING: usize = 2;

pub(crate) fn key_placements(input: &[u8]) {
    let mut bytes = Bytes(input);
    let placement = [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring][usize::from(bytes.byte() % 3)];
    let (virtual_nodes, foreign) = (u32::from(bytes.byte() % 8) + 1, name(bytes.byte()));
    let (key, fleet) = bytes.0.split_at(bytes.0.iter().position(|byte| *byte == 0).unwrap_or(bytes.0.len()));
    let mut members = Fleet::read(fleet.get(1..).unwrap_or_default()).members;
    members.truncate(if placement == KeyPlacement::Uhashring { MEMBERS_OF_UHASHRING } else { MEMBERS });
    // Heavy ones only have more points.
    for member in &mut members {
        member.weight = Weight::new(u64::from(member.weight.get()) % 3 + 1).unwrap_or_default();
    }
    let view = View::new(1, members.clone()).with_foreign(foreign.into_iter().collect());
    let Ok(placed) = KeyOwners::of_view(&view, placement, virtual_nodes) else { unreachable!("few points") };

    // Every member counts, draining or not, whatever it lists, and with or without a record.
    let mut there: Vec<_> = view.members().iter().map(|member| (member.instance_id.clone(), member.weight)).collect();
    there.extend(view.foreign().iter().map(|id| (id.clone(), Weight::ONE)));
    there.sort();
    assert_eq!(placed.members(), there);
    let place = |members: &[(InstanceId, Weight)]| KeyOwners::place(members.iter().cloned(), placement, virtual_nodes).ok();
    let reversed: Vec<_> = there.iter().rev().cloned().collect();
    let anew = place(&reversed);
    assert_eq!(anew.as_ref(), Some(&placed), "another order");
    for key in [key, b"", b"tenant-a", &there.len().to_be_bytes()] {
        let owner = placed.owner(key);
        assert_eq!(owner.is_none(), there.is_empty());
        assert!(owner.is_none_or(|owner| there.iter().any(|(id, _)| id == owner)));
        assert_eq!(anew.as_ref().and_then(|anew| anew.owner(key)), owner);
        let explained = placed.explain(key);
        assert_eq!(explained.owner.as_ref(), owner);
        if placement == KeyPlacement::Modulo {
            let at = u32::try_from(there.len()).ok().and_then(|members| fnv1a(key).checked_rem(members));
            assert_eq!(owner, at.map(|at| &there[at as usize].0));
        }
    }
    follows(&members, &view, (&placed, virtual_nodes), key);
}

/// From the view without its first member: the same as from nothing, and on a ring only what that one takes has another owner.
fn follows(members: &[Member], view: &View, (placed, virtual_nodes): (&KeyOwners, u32), key: &[u8]) {
    let Some((first, rest)) = members.split_first() else { return };
    let kind = PlacementKind::Key(placed.placement());
    let placer = Placer::new(PlacementParams { kind, virtual_nodes, ..PlacementParams::default() });
    let without = View::new(0, rest.iter().filter(|member| member.instance_id != first.instance_id).cloned().collect());
    let without = without.with_foreign(view.foreign().to_vec());
    let (Ok(ViewPlacement::Keys(before)), Ok(ViewPlacement::Keys(after))) = (placer.place(&without), placer.place(view)) else {
        unreachable!("a key placement of few points")
    };
    assert_eq!(*after, *placed);
    for key in [key, b"", b"tenant-a"] {
        assert_eq!(after.owner(key), placed.owner(key), "followed from another view");
        let stays = after.owner(key) == before.owner(key) || after.owner(key) == Some(&first.instance_id);
        assert!(stays || placed.placement() == KeyPlacement::Modulo, "{key:?} moved between two who stayed");
    }
}

/// FNV-1a in 32 bits, as its text says it.
fn fnv1a(key: &[u8]) -> u32 {
    key.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
