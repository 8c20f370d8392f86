//! Placement: every slot has a living owner within its capacity, and nothing depends on the order in which members are listed.

use std::collections::BTreeSet;

use shardwise_core::{
    Circle, InstanceId, LoadMargin, Member, PlacementParams, REPLICAS_MAX, Replicas, SLOTS_MAX, SlotOwners, VIRTUAL_NODES_MAX, View, Weight,
};

use crate::bytes::Bytes;

pub(crate) const PARAMETERS: &[&[u8]] =
    &[&[0; 12], &[0, 0, 64, 0, 0, 0, 4, 0, 0, 0, 0, 50], &[0xff; 12], &[0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 39, 17]];
pub(crate) const FLEETS: &[&[u8]] = &[
    b"",
    // Slots, points and margin; then members of a weight, a zone and a name of up to seven letters.
    &[0, 63, 15, 0, 51, 0, 0, 0x12, 0, 0, 0x11, 99, 1, 0x21],
    // Ids that are prefixes of each other, equal ids, and all weights.
    &[1, 0, 3, 0, 51, 0, 0, 0x01, 0, 0, 0x02, 9, 1, 0x03, 99, 2, 0x01, 0, 0, 0x01],
    // No limit, one slot.
    &[0, 0, 0, 0, 0, 0, 0, 0x13, 0, 0, 0x14],
    // The tightest limit, and few points.
    &[1, 43, 0, 0, 1, 9, 0, 0x31, 8, 0, 0x32, 99, 0, 0x33, 0, 0, 0x34],
];

/// Numbers of any size are refused or are within what is promised.
pub(crate) fn parameters(input: &[u8]) {
    let mut bytes = Bytes(input);
    let (slots, virtual_nodes, margin) = (bytes.word(), bytes.word(), bytes.word());
    let params = PlacementParams { slots, virtual_nodes, load_margin: LoadMargin::Thousandths(margin), ..PlacementParams::default() };
    let within = (1..=SLOTS_MAX).contains(&slots) && (1..=VIRTUAL_NODES_MAX).contains(&virtual_nodes) && margin <= 10_000;
    assert_eq!(params.validated().is_ok(), within, "{params:?}");
}

/// A small circle and who stands on it, out of any bytes.
struct Fleet {
    params: PlacementParams,
    members: Vec<Member>,
}

impl Fleet {
    fn read(input: &[u8]) -> Self {
        let mut bytes = Bytes(input);
        let (slots, virtual_nodes) = (bytes.short() % 500 + 1, u32::from(bytes.byte() % 40) + 1);
        // 0 stands for no limit.
        let load_margin = bytes.short().checked_sub(1).map_or(LoadMargin::None, |margin| LoadMargin::Thousandths(margin % 10_001));
        let mut members = Vec::new();
        while !bytes.is_empty() && members.len() < 16 {
            let (weight, zone, name) = (u64::from(bytes.byte() % 100) + 1, bytes.byte() % 4, bytes.byte());
            // Few letters and short: equal ids, and ids that are the beginnings of others.
            let letter = ['a', 'b', 'é', '🦀'][usize::from(name >> 4 & 3)];
            let id = InstanceId::new(String::from(letter).repeat(usize::from(name % 8) + 1));
            members.extend(id.ok().zip(Weight::new(weight)).map(|(id, weight)| Member {
                weight,
                zone: (zone > 0).then(|| zone.to_string()),
                ..Member::named(id)
            }));
        }
        Self { params: PlacementParams { slots, virtual_nodes, load_margin, ..PlacementParams::default() }, members }
    }
}

fn inputs(members: &[Member]) -> Vec<(InstanceId, Weight)> {
    members.iter().map(|member| (member.instance_id.clone(), member.weight)).collect()
}

/// The most slots that a member of that weight takes (rule 5).
fn capacity(params: &PlacementParams, weight: Weight, sum: u64) -> u64 {
    let slots = u64::from(params.slots);
    match params.load_margin {
        LoadMargin::None => slots,
        LoadMargin::Thousandths(margin) => (slots * u64::from(weight.get()) * (1_000 + u64::from(margin))).div_ceil(1_000 * sum),
    }
}

pub(crate) fn placement(input: &[u8]) {
    let Fleet { params, mut members } = Fleet::read(input);
    let mut circle = Circle::new(params);
    // An id that comes twice counts with its first weight, in both ways to place.
    assert_eq!(circle.place(inputs(&members)), SlotOwners::place(inputs(&members), params));
    let mut seen = BTreeSet::new();
    members.retain(|member| seen.insert(member.instance_id.clone()));
    let placed = SlotOwners::place(inputs(&members), params);
    owned(&placed, &members);

    let half = members.len() / 2;
    circle.place(inputs(&members[half..]));
    let view = View::new(1, members.clone());
    members.rotate_left(half);
    assert_eq!(circle.place(inputs(&members)), placed, "a circle that was another before, and another order");
    members.reverse();
    assert_eq!(SlotOwners::place(inputs(&members), params), placed, "another order");
    replicas(&view, &placed);
}

/// Every slot has an owner among the members, and nobody more than it takes.
fn owned(placed: &SlotOwners, members: &[Member]) {
    let params = placed.params();
    let sum = members.iter().map(|member| u64::from(member.weight.get())).sum();
    let mut all = 0;
    for member in members {
        let mine = u64::from(placed.slots_of(&member.instance_id).len());
        assert!(mine <= capacity(params, member.weight, sum), "{member:?} has {mine} slots");
        all += mine;
    }
    assert_eq!(all, if members.is_empty() { 0 } else { u64::from(params.slots) });
    assert!((0..params.slots).all(|slot| placed.owner_of_slot(slot).is_none() == members.is_empty()));
    assert_eq!(placed.owner_of_slot(params.slots), None);
}

/// Different members, the owner first, and as many zones as there can be.
fn replicas(view: &View, placed: &SlotOwners) {
    let params = placed.params();
    let replicas = Replicas::of_view(view, *params, 3);
    let zones = |ids: &[&InstanceId]| ids.iter().map(|id| view.member(id).map(|member| member.zone.clone())).collect::<BTreeSet<_>>().len();
    let all: Vec<_> = view.members().iter().map(|member| &member.instance_id).collect();
    for slot in 0..params.slots {
        let list: Vec<_> = replicas.owners_of_slot(slot, REPLICAS_MAX).collect();
        assert_eq!(list.first().copied(), placed.owner_of_slot(slot));
        assert_eq!(list.iter().collect::<BTreeSet<_>>().len(), all.len().min(3));
        assert_eq!(zones(&list), zones(&all).min(3));
    }
}
