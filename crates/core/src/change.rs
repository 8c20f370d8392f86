//! A preview of what another placement would move.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::{Balance, exact, fair_shares};
use crate::{InstanceId, PlacementParams, SlotOwners, TooManyPoints, ViewPlacement, Weight, hash_bytes, slot_start};

/// A share of all keys that would move from one member to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShareMove {
    /// The owner before; `None` if there are no members.
    pub from: Option<InstanceId>,
    /// The owner afterwards; `None` if there are no members.
    pub to: Option<InstanceId>,
    /// The share of all keys, 0 to 1.
    pub share: f64,
}

/// One side of a change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// The name of the placement.
    pub placement: &'static str,
    /// Slots of the ring; `None` under a key placement.
    pub slots: Option<u32>,
    /// Points per unit of weight; `None` where the algorithm has none or fixes their number.
    pub virtual_nodes: Option<u32>,
    /// The bound on a member's share, as written in the settings; `None` under a key placement.
    pub load_margin: Option<String>,
    /// How even it is; under a key placement, estimated from the sample.
    #[serde(flatten)]
    pub balance: Balance,
}

/// The keys that measure a change where there are no slots; the same on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The number of keys.
    pub keys: u32,
    /// The seed that determines the keys.
    pub seed: u64,
}

impl Sample {
    /// A share measured with this many keys is within half a percentage point of the real one in all but one of a thousand cases.
    const OF_A_CHANGE: Self = Self { keys: 100_000, seed: 0 };

    /// Each key: the hexadecimal digits of [`hash_bytes`] of the seed and the key's number, as little-endian bytes.
    pub fn each_key(self) -> impl Iterator<Item = String> {
        let key = move |n: u32| [&self.seed.to_le_bytes()[..], &n.to_le_bytes()].concat();
        (0..self.keys).map(move |n| format!("{:016x}", hash_bytes(&key(n))))
    }
}

/// What would move under another placement, whatever the numbers of slots. Between two rings the shares are exact: the length of the arcs
/// that change owners over the whole ring. From or to a key placement they are estimated from a [`Sample`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlacementChange {
    /// The share of all keys that would change owner, 0 to 1.
    pub moved_share: f64,
    /// The least share that must move between exact shares by weight; 0 if the members stay the same.
    pub exact_share: f64,
    /// The moves, largest first.
    pub moves: Vec<ShareMove>,
    /// The present placement.
    pub before: Side,
    /// The placement afterwards.
    pub after: Side,
    /// The keys used for the estimate; `None` if the result is exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
}

/// One side while it is measured.
struct MeasuredSide {
    params: PlacementParams,
    placed: ViewPlacement,
}

/// The length that moves between each pair of owners, or stays.
type Pairs<'a> = BTreeMap<(Option<&'a InstanceId>, Option<&'a InstanceId>), u128>;

impl PlacementChange {
    /// What moves from `before` to `after`: for each, the members as [`ViewPlacement::place`] takes them, and the placement.
    ///
    /// # Errors
    ///
    /// [`TooManyPoints`], only under a key placement.
    pub fn new<B, A>(before: (B, PlacementParams), after: (A, PlacementParams)) -> Result<Self, TooManyPoints>
    where
        B: IntoIterator<Item = (InstanceId, Weight)>,
        A: IntoIterator<Item = (InstanceId, Weight)>,
    {
        let (before, after) = (MeasuredSide::new(before.0, before.1)?, MeasuredSide::new(after.0, after.1)?);
        if let (ViewPlacement::Slots(old), ViewPlacement::Slots(new)) = (&before.placed, &after.placed) {
            return Ok(Self::measured(&before, &after, &by_arcs(old, new), None));
        }
        let sample = Sample::OF_A_CHANGE;
        Ok(Self::measured(&before, &after, &by_keys(&before.placed, &after.placed, sample), Some(sample)))
    }

    fn measured(before: &MeasuredSide, after: &MeasuredSide, pairs: &Pairs<'_>, sample: Option<Sample>) -> Self {
        let whole: u128 = pairs.values().sum();
        let share = |part: u128| part as f64 / whole as f64;
        let mut moves: Vec<_> = pairs.iter().filter(|((from, to), _)| from != to).collect();
        moves.sort_by_key(|(_, part)| std::cmp::Reverse(**part));
        let moved = moves.iter().map(|(_, part)| **part).sum();
        let moves = moves.into_iter().map(|((from, to), part)| ShareMove { from: from.cloned(), to: to.cloned(), share: share(*part) });
        let load = |owner: Option<&InstanceId>, part: u128| owner.map(|owner| (owner.clone(), share(part)));
        Self {
            moved_share: share(moved),
            exact_share: exact(&before.fair(), &after.fair()),
            moves: moves.collect(),
            before: before.side(pairs.iter().filter_map(|((from, _), part)| load(*from, *part))),
            after: after.side(pairs.iter().filter_map(|((_, to), part)| load(*to, *part))),
            sample,
        }
    }
}

impl MeasuredSide {
    fn new(members: impl IntoIterator<Item = (InstanceId, Weight)>, params: PlacementParams) -> Result<Self, TooManyPoints> {
        Ok(Self { params, placed: ViewPlacement::place(members, params)? })
    }

    fn fair(&self) -> Vec<(&InstanceId, f64)> {
        fair_shares(self.params.kind, self.placed.members())
    }

    /// `loads` are the owners' shares; they are used where there are no slots to count.
    fn side(&self, loads: impl Iterator<Item = (InstanceId, f64)>) -> Side {
        let PlacementParams { kind, slots, virtual_nodes, load_margin } = self.params;
        let has_slots = kind.by_key().is_none();
        let balance = match &self.placed {
            ViewPlacement::Slots(owners) => Balance::of(owners),
            ViewPlacement::Keys(_) => {
                let mut shares = BTreeMap::new();
                loads.for_each(|(owner, share)| *shares.entry(owner).or_insert(0.0) += share);
                let load: Vec<_> = self.placed.members().iter().map(|(id, _)| shares.get(id).copied().unwrap_or(0.0)).collect();
                Balance::of_load(&load, &self.fair())
            }
        };
        Side {
            placement: kind.as_str(),
            slots: has_slots.then_some(slots),
            virtual_nodes: kind.uses_virtual_nodes().then_some(virtual_nodes),
            load_margin: has_slots.then(|| load_margin.to_string()),
            balance,
        }
    }
}

fn by_keys<'a>(before: &'a ViewPlacement, after: &'a ViewPlacement, sample: Sample) -> Pairs<'a> {
    let mut pairs = Pairs::new();
    for key in sample.each_key() {
        *pairs.entry((before.owner(&key), after.owner(&key))).or_insert(0) += 1;
    }
    pairs
}

fn by_arcs<'a>(before: &'a SlotOwners, after: &'a SlotOwners) -> Pairs<'a> {
    let mut pairs = Pairs::new();
    each_common_arc(before.params().slots, after.params().slots, |slot, other, length| {
        *pairs.entry((before.owner_of_slot(slot), after.owner_of_slot(other))).or_insert(0) += length;
    });
    pairs
}

const RING: u128 = 1 << 64;

/// Visits every arc that lies in one slot of a ring of `slots` and in one of a ring of `others`, with its length.
fn each_common_arc(slots: u32, others: u32, mut visit: impl FnMut(u32, u32, u128)) {
    let end = |slot: u32, of: u32| if slot + 1 < of { u128::from(slot_start(slot + 1, of)) } else { RING };
    let (mut slot, mut other, mut from) = (0, 0, 0);
    while from < RING {
        let (ends, other_ends) = (end(slot, slots), end(other, others));
        let to = ends.min(other_ends);
        visit(slot, other, to - from);
        (slot, other, from) = (slot + u32::from(ends == to), other + u32::from(other_ends == to), to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyPlacement, LoadMargin, PlacementKind, Plan};
    use proptest::prelude::*;

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    fn fleet(members: &[(&str, u64)]) -> Vec<(InstanceId, Weight)> {
        members.iter().map(|(name, weight)| (id(name), Weight::new(*weight).unwrap())).collect()
    }

    fn by_key(placement: KeyPlacement) -> PlacementParams {
        PlacementParams { kind: PlacementKind::Key(placement), virtual_nodes: 160, ..PlacementParams::default() }
    }

    proptest! {
        /// Checks key by key, on a ring that divides both.
        #[test]
        fn a_change_shows_the_share_of_keys_that_change_hands(slots in 1u32..60, others in 1u32..60, members in 1u32..6, more in 0u32..2) {
            let before = PlacementParams { slots, virtual_nodes: 8, ..PlacementParams::default() };
            let after = PlacementParams { slots: others, virtual_nodes: 5, load_margin: LoadMargin::None, ..before };
            let fleet = |n: u32| (0..n).map(|i| (id(&format!("w{i}")), Weight::ONE)).collect::<Vec<_>>();
            let change = PlacementChange::new((fleet(members), before), (fleet(members + more), after)).unwrap();
            let (placed, placed_after) = (SlotOwners::place(fleet(members), before), SlotOwners::place(fleet(members + more), after));
            let (mut moved, mut pairs) = (0, BTreeMap::new());
            for arc in 0..slots * others {
                let pair = (placed.owner_of_slot(arc / others).unwrap(), placed_after.owner_of_slot(arc / slots).unwrap());
                if pair.0 != pair.1 {
                    moved += 1;
                    *pairs.entry(pair).or_insert(0) += 1;
                }
            }
            let share = |arcs: i32| f64::from(arcs) / f64::from(slots * others);
            prop_assert!((change.moved_share - share(moved)).abs() < 1e-12, "{} for {}", change.moved_share, share(moved));
            prop_assert_eq!(change.moves.len(), pairs.len());
            for pair in &change.moves {
                let expected = share(pairs[&(pair.from.as_ref().unwrap(), pair.to.as_ref().unwrap())]);
                prop_assert!((pair.share - expected).abs() < 1e-12, "{pair:?}, expected {expected}");
            }
            prop_assert!(change.moves.windows(2).all(|pair| pair[0].share >= pair[1].share));
            prop_assert!((change.exact_share - f64::from(more) / f64::from(members + more)).abs() < 1e-12);
        }
    }

    #[test]
    fn a_change_on_one_ring_is_a_plan() {
        let (before, after) = (fleet(&[("a", 1), ("b", 2)]), fleet(&[("b", 2), ("c", 1)]));
        let params = PlacementParams { slots: 128, ..PlacementParams::default() };
        let (plan, change) =
            (Plan::new(before.clone(), after.clone(), params), PlacementChange::new((before, params), (after, params)).unwrap());
        let shares: Vec<_> = plan.moves.iter().map(|pair| (pair.from.clone(), pair.to.clone(), pair.share)).collect();
        assert!(plan.moves.iter().all(|pair| (pair.share - f64::from(pair.slots) / 128.0).abs() < 1e-12), "{plan:?}");
        assert_eq!((change.moved_share, change.exact_share), (plan.moved_share, plan.exact_share));
        assert_eq!(change.moves.into_iter().map(|pair| (pair.from, pair.to, pair.share)).collect::<Vec<_>>(), shares);
        assert_eq!((change.before.balance, change.after.balance), (plan.before, plan.after));
        let (none, from_nothing) = (fleet(&[]), PlacementParams { slots: 7, ..params });
        let left = PlacementChange::new((fleet(&[("a", 1)]), params), (none, from_nothing)).unwrap();
        assert_eq!(left.moves, [ShareMove { from: Some(id("a")), to: None, share: 1.0 }]);
    }

    /// The sample agrees with the arcs where both exist.
    #[test]
    fn a_sample_is_as_good_as_it_says() {
        let (old, new) =
            (PlacementParams { slots: 1_000, ..PlacementParams::default() }, PlacementParams { slots: 700, ..PlacementParams::default() });
        let (before, after) = (fleet(&[("a", 1), ("b", 2), ("c", 1)]), fleet(&[("b", 2), ("c", 1), ("d", 3)]));
        let exact = PlacementChange::new((before.clone(), old), (after.clone(), new)).unwrap();
        let (before, after) = (MeasuredSide::new(before, old).unwrap(), MeasuredSide::new(after, new).unwrap());
        let sample = Sample::OF_A_CHANGE;
        let sampled = PlacementChange::measured(&before, &after, &by_keys(&before.placed, &after.placed, sample), Some(sample));
        assert!((exact.moved_share - sampled.moved_share).abs() < 0.005, "{exact:?} {sampled:?}");
        for pair in &exact.moves {
            let other =
                sampled.moves.iter().find(|other| (&other.from, &other.to) == (&pair.from, &pair.to)).map_or(0.0, |other| other.share);
            assert!((other - pair.share).abs() < 0.005, "{pair:?}: {other}");
        }
        assert_eq!((exact.before, exact.after, exact.exact_share), (sampled.before, sampled.after, sampled.exact_share));
    }

    #[test]
    fn a_modulo_moves_nearly_everything_and_a_ring_what_it_must() {
        let (three, four) = (fleet(&[("a", 1), ("b", 1), ("c", 5)]), fleet(&[("a", 1), ("b", 1), ("c", 5), ("d", 1)]));
        let join = |placement| PlacementChange::new((three.clone(), by_key(placement)), (four.clone(), by_key(placement))).unwrap();
        let modulo = join(KeyPlacement::Modulo);
        // Of the remainders by 12 three stay: weights do not count.
        assert!((modulo.moved_share - 0.75).abs() < 0.005 && (modulo.exact_share - 0.25).abs() < 1e-9, "{modulo:?}");
        assert!(modulo.before.balance.peak < 1.02 && modulo.before.balance.least > 0.98, "{modulo:?}");
        assert_eq!((modulo.before.slots, modulo.before.virtual_nodes, modulo.before.load_margin), (None, None, None));
        for placement in [KeyPlacement::Uhashring, KeyPlacement::Hashring] {
            let change = join(placement);
            assert!(change.moves.iter().all(|pair| pair.to == Some(id("d"))), "{change:?}");
            assert!((change.moved_share - 0.125).abs() < 0.04 && (change.exact_share - 0.125).abs() < 1e-9, "{change:?}");
            assert!(change.after.balance.peak < 1.5 && change.after.balance.least > 0.6, "{change:?}");
            let points = (placement == KeyPlacement::Hashring).then_some(160);
            assert_eq!((change.after.virtual_nodes, change.sample), (points, Some(Sample { keys: 100_000, seed: 0 })));
        }
    }

    #[test]
    fn from_a_key_placement_to_the_ring_and_back() {
        let two = fleet(&[("a", 1), ("b", 1)]);
        let (python, ring) = (by_key(KeyPlacement::Uhashring), PlacementParams::default());
        let there = PlacementChange::new((two.clone(), python), (two.clone(), ring)).unwrap();
        let back = PlacementChange::new((two.clone(), ring), (two.clone(), python)).unwrap();
        assert!((there.moved_share - 0.5).abs() < 0.1 && there.exact_share.abs() < 1e-9, "{there:?}");
        assert_eq!((there.moved_share, &there.before, &there.after), (back.moved_share, &back.after, &back.before));
        let none = PlacementChange::new((two, python), (vec![], python)).unwrap();
        assert!((none.moved_share - 1.0).abs() < 1e-9 && none.moves.iter().all(|pair| pair.to.is_none()), "{none:?}");
        assert_eq!(none.after.balance, Balance { members: 0, peak: 0.0, least: 0.0 });
    }

    /// Another program that measures the same keys needs the same text.
    #[test]
    fn the_keys_of_a_sample_stay_as_they_are() {
        let keys: Vec<_> = Sample { keys: 3, seed: 7 }.each_key().collect();
        assert_eq!(keys[1], format!("{:016x}", hash_bytes(&[7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0])));
        assert_eq!(keys.len(), 3);
    }
}
