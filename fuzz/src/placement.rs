//! Placement: every slot has a living owner within its capacity, and nothing depends on the order in which members are listed.

use std::collections::{BTreeMap, BTreeSet};

use shardwise_core::{
    IncrementalRing, InstanceId, LoadMargin, Loss, Member, MemberState, PlacementKind, PlacementParams, REPLICAS_MAX, Replicas, SLOTS_MAX,
    SlotOwners, VIRTUAL_NODES_MAX, View, Weight,
};

use crate::bytes::Bytes;
use crate::fleet::Fleet;

pub(crate) const PARAMETERS: &[&[u8]] =
    &[&[0; 12], &[0, 0, 64, 0, 0, 0, 4, 0, 0, 0, 0, 50], &[0xff; 12], &[0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 39, 17]];
pub(crate) const FLEETS: &[&[u8]] = &[
    b"",
    // Slots, points and margin; then members of a weight, a zone with what else there is to say, and a name of up to eight letters.
    &[0, 63, 15, 0, 51, 0, 0, 0x12, 0, 0, 0x11, 99, 1, 0x21],
    // Ids that are prefixes of each other, equal ids, and all weights.
    &[1, 0, 3, 0, 51, 0, 0, 0x01, 0, 0, 0x02, 9, 1, 0x03, 99, 2, 0x01, 0, 0, 0x01],
    // No limit, one slot.
    &[0, 0, 0, 0, 0, 0, 0, 0x13, 0, 0, 0x14],
    // The tightest limit, and few points.
    &[1, 43, 0, 0, 1, 9, 0, 0x31, 8, 0, 0x32, 99, 0, 0x33, 0, 0, 0x34],
    // One drains; one lists nothing, one something foreign, two the change to come; all drain.
    &[0, 63, 15, 0, 51, 0, 4, 0x12, 0, 0, 0x11, 9, 1, 0x21],
    &[0, 63, 15, 0, 51, 0, 8, 0x12, 0, 16, 0x11, 9, 24, 0x21, 9, 44, 0x22],
    &[0, 63, 15, 0, 51, 0, 4, 0x12, 0, 5, 0x11],
    // Two have vanished and keep their share: one of them is here under the same id. The second time the loss is confirmed.
    &[0, 63, 15, 0, 51, 0, 128, 0x12, 5, 0x31, 2, 0x11, 0, 0, 0x11],
    &[0, 63, 15, 0, 51, 0, 128, 0x12, 5, 0x31, 2, 0x11, 0, 64, 0x11],
];

/// Numbers of any size are refused or are within what is promised.
pub(crate) fn parameters(input: &[u8]) {
    let mut bytes = Bytes(input);
    let (slots, virtual_nodes, margin) = (bytes.word(), bytes.word(), bytes.word());
    let params = PlacementParams { slots, virtual_nodes, load_margin: LoadMargin::Thousandths(margin), ..PlacementParams::default() };
    let within = (1..=SLOTS_MAX).contains(&slots) && (1..=VIRTUAL_NODES_MAX).contains(&virtual_nodes) && margin <= 10_000;
    assert_eq!(params.validated().is_ok(), within, "{params:?}");
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
    for kind in [PlacementKind::Ring, PlacementKind::Quota] {
        let Fleet { params, members } = Fleet::read(input);
        placed_by(PlacementParams { kind, ..params }, members);
    }
}

fn placed_by(params: PlacementParams, mut members: Vec<Member>) {
    let mut ring = IncrementalRing::new(params);
    // An id that comes twice counts with its first weight, in both ways to place.
    assert_eq!(ring.place(inputs(&members)), SlotOwners::place(inputs(&members), params));
    let mut seen = BTreeSet::new();
    members.retain(|member| seen.insert(member.instance_id.clone()));
    let everybody = inputs(&members);
    let placed = SlotOwners::place(everybody.clone(), params);
    owned(&placed, &everybody);

    let half = members.len() / 2;
    ring.place(inputs(&members[half..]));
    let view = View::new(1, members.clone());
    members.rotate_left(half);
    assert_eq!(ring.place(inputs(&members)), placed, "a ring that was another before, and another order");
    members.reverse();
    assert_eq!(SlotOwners::place(inputs(&members), params), placed, "another order");
    seen_by_a_member(&view, params, ring);
}

/// The members that count in a view, by `docs/reference/placement.md`: of those that list the group's fingerprint the active ones, or all
/// if every one drains; and vanished members that are not here, unless the loss was confirmed.
fn counted(view: &View) -> Vec<(InstanceId, Weight)> {
    let group = view.group_fingerprint();
    let serving: Vec<_> = view.members().iter().filter(|m| group.is_none_or(|group| m.fingerprints.contains(&group))).collect();
    let active: Vec<_> = serving.iter().copied().filter(|m| m.state == MemberState::Active).collect();
    let living = if active.is_empty() { serving } else { active };
    let mut counted: Vec<_> = living.into_iter().map(|m| (m.instance_id.clone(), m.weight)).collect();
    let marks: Vec<_> = view.members().iter().filter_map(|m| m.loss.as_ref()).collect();
    if !marks.contains(&&Loss::Confirmed) {
        // Of several weights of one id the smallest counts.
        let mut vanished = BTreeMap::new();
        for missing in marks.iter().flat_map(|mark| if let Loss::Missing(missing) = mark { missing.as_slice() } else { &[] }) {
            let least = vanished.entry(missing.instance_id.clone()).or_insert(missing.weight);
            *least = missing.weight.min(*least);
        }
        vanished.retain(|id, _| view.member(id).is_none());
        counted.extend(vanished);
    }
    counted
}

/// The placement of a view is that of whom it counts, both ways, and no slot is with anybody else.
fn seen_by_a_member(view: &View, params: PlacementParams, mut ring: IncrementalRing) {
    let counted = counted(view);
    let placed = SlotOwners::of_view(view, params);
    assert_eq!(placed, SlotOwners::place(counted.clone(), params), "{view:?}");
    assert_eq!(ring.place_view(view), placed, "{view:?}");
    assert!(placed.is_of(view));
    owned(&placed, &counted);
    replicas(view, &placed);
}

/// Every slot has an owner among the members, and no member owns more than its bound.
fn owned(placed: &SlotOwners, members: &[(InstanceId, Weight)]) {
    let params = placed.params();
    let sum = members.iter().map(|(_, weight)| u64::from(weight.get())).sum();
    let mut all = 0;
    for (id, weight) in members {
        let mine = u64::from(placed.slots_of(id).len());
        assert!(mine <= capacity(params, *weight, sum), "{id:?} has {mine} slots");
        all += mine;
    }
    if params.kind == PlacementKind::Quota {
        by_weight(placed, sum);
    }
    assert_eq!(all, if members.is_empty() { 0 } else { u64::from(params.slots) });
    assert!((0..params.slots).all(|slot| placed.owner_of_slot(slot).is_none() == members.is_empty()));
    assert_eq!(placed.owner_of_slot(params.slots), None);
}

/// The members of each weight together are less than one slot from their share, or within 1 % of it (rule 9).
fn by_weight(placed: &SlotOwners, sum: u64) {
    let mut together = BTreeMap::<Weight, (u64, u64)>::new();
    for (id, weight) in placed.members() {
        let (has, entitled) = together.entry(*weight).or_default();
        *has += u64::from(placed.slots_of(id).len()) * sum;
        *entitled += u64::from(placed.params().slots) * u64::from(weight.get());
    }
    for (weight, (has, entitled)) in together {
        let off = has.abs_diff(entitled);
        assert!(off < sum || off * 100 <= entitled, "weight {weight:?} has {has} of {entitled}, both times {sum}");
    }
}

/// Different members, the owner first, and as many zones as there can be.
fn replicas(view: &View, placed: &SlotOwners) {
    let params = placed.params();
    let replicas = Replicas::of_view(view, *params, 3);
    // Members that name no zone, or have vanished, count as one unknown zone.
    let zone = |id: &&InstanceId| view.member(id).and_then(|member| member.zone.clone());
    let zones = |ids: &[&InstanceId]| ids.iter().map(zone).collect::<BTreeSet<_>>().len();
    let all: Vec<_> = placed.members().iter().map(|(id, _)| id).collect();
    for slot in 0..params.slots {
        let list: Vec<_> = replicas.owners_of_slot(slot, REPLICAS_MAX).collect();
        assert_eq!(list.first().copied(), placed.owner_of_slot(slot));
        assert_eq!(list.iter().collect::<BTreeSet<_>>().len(), all.len().min(3));
        assert_eq!(zones(&list), zones(&all).min(3));
    }
}
