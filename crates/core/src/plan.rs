//! What a change of the group would move, told before it is made.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{InstanceId, PlacementParams, SlotOwners, Weight, slot_start};

/// Slots that would go from one member to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Move {
    /// Who has them before; `None` if nobody is there.
    pub from: Option<InstanceId>,
    /// Who has them afterwards; `None` if nobody is there.
    pub to: Option<InstanceId>,
    /// How many.
    pub slots: u32,
}

/// How evenly a placement spreads the slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Balance {
    /// How many members there are.
    pub members: usize,
    /// The most loaded member's slots over the mean; with weights, over what its weight entitles it to. 0 without members.
    pub peak: f64,
    /// The same of the least loaded member.
    pub least: f64,
}

impl Balance {
    /// How evenly `placed` spreads the slots.
    pub fn of(placed: &SlotOwners) -> Self {
        let fair = fair_shares(placed);
        let mut load = vec![0_u32; placed.members().len()];
        placed.indices().iter().for_each(|owner| load[*owner as usize] += 1);
        let ratios = || load.iter().zip(&fair).map(|(load, (_, fair))| f64::from(*load) / f64::from(placed.params().slots) / fair);
        let least = if load.is_empty() { 0.0 } else { ratios().fold(f64::INFINITY, f64::min) };
        Self { members: load.len(), peak: ratios().fold(0.0, f64::max), least }
    }
}

/// What would move between two sets of members.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Slots of the circle.
    pub slots: u32,
    /// How many of them would have another owner.
    pub moved: u32,
    /// How many would have to move between shares that are exactly as the weights say, for comparison. Shares are only nearly so, before and
    /// after, so that a good plan may move a little less.
    pub exact: f64,
    /// Which, the largest first.
    pub moves: Vec<Move>,
    /// How even it is before.
    pub before: Balance,
    /// How even it would be afterwards.
    pub after: Balance,
}

impl Plan {
    /// What moves when the group of `before` becomes that of `after`, both as [`SlotOwners::place`] takes them.
    pub fn new(
        before: impl IntoIterator<Item = (InstanceId, Weight)>,
        after: impl IntoIterator<Item = (InstanceId, Weight)>,
        params: PlacementParams,
    ) -> Self {
        let (before, after) = (SlotOwners::place(before, params), SlotOwners::place(after, params));
        let mut pairs = BTreeMap::new();
        for slot in 0..params.slots {
            let (from, to) = (before.owner_of_slot(slot), after.owner_of_slot(slot));
            if from != to {
                *pairs.entry((from, to)).or_insert(0) += 1;
            }
        }
        let mut moves: Vec<_> = pairs.into_iter().map(|((from, to), slots)| Move { from: from.cloned(), to: to.cloned(), slots }).collect();
        moves.sort_by_key(|pair| std::cmp::Reverse(pair.slots));
        Self {
            slots: params.slots,
            moved: moves.iter().map(|pair| pair.slots).sum(),
            exact: exact(&before, &after) * f64::from(params.slots),
            moves,
            before: Balance::of(&before),
            after: Balance::of(&after),
        }
    }
}

/// A share of all keys that would go from one member to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShareMove {
    /// Who has it before; `None` if nobody is there.
    pub from: Option<InstanceId>,
    /// Who has it afterwards; `None` if nobody is there.
    pub to: Option<InstanceId>,
    /// How much, from 0 to 1.
    pub share: f64,
}

/// One side of a change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// The name of the placement.
    pub placement: &'static str,
    /// Slots of the circle.
    pub slots: u32,
    /// Points per unit of weight.
    pub virtual_nodes: u32,
    /// The bound on a member's share, as it is written in the settings.
    pub load_margin: String,
    /// How even it is.
    #[serde(flatten)]
    pub balance: Balance,
}

/// What would move if keys were placed otherwise, whatever the numbers of slots. The shares are exact: each is the length of the arcs that
/// change hands, over the whole circle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The share of all keys that would have another owner, from 0 to 1.
    pub moved_share: f64,
    /// What would have to move between shares that are exactly as the weights say: nothing, if the members stay the same.
    pub exact_share: f64,
    /// From whom to whom, the largest first.
    pub moves: Vec<ShareMove>,
    /// How it is.
    pub before: Side,
    /// How it would be.
    pub after: Side,
}

impl Change {
    /// What moves when `before` becomes `after`: members as [`SlotOwners::place`] takes them, and the placement of each.
    pub fn new<B, A>(before: (B, PlacementParams), after: (A, PlacementParams)) -> Self
    where
        B: IntoIterator<Item = (InstanceId, Weight)>,
        A: IntoIterator<Item = (InstanceId, Weight)>,
    {
        let (before, after) = (SlotOwners::place(before.0, before.1), SlotOwners::place(after.0, after.1));
        let mut pairs = BTreeMap::new();
        each_common_arc(before.params().slots, after.params().slots, |slot, other, length| {
            let pair = (before.owner_of_slot(slot), after.owner_of_slot(other));
            if pair.0 != pair.1 {
                *pairs.entry(pair).or_insert(0_u128) += length;
            }
        });
        let share = |length: u128| length as f64 / CIRCLE as f64;
        let moved_share = share(pairs.values().sum());
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
        let moves = pairs.into_iter().map(|((from, to), length)| ShareMove { from: from.cloned(), to: to.cloned(), share: share(length) });
        Self {
            moved_share,
            exact_share: exact(&before, &after),
            moves: moves.collect(),
            before: Side::of(&before),
            after: Side::of(&after),
        }
    }
}

impl Side {
    fn of(placed: &SlotOwners) -> Self {
        let PlacementParams { kind, slots, virtual_nodes, load_margin } = *placed.params();
        Self { placement: kind.as_str(), slots, virtual_nodes, load_margin: load_margin.to_string(), balance: Balance::of(placed) }
    }
}

const CIRCLE: u128 = 1 << 64;

/// Every arc that lies in one slot of a circle of `slots` and in one of a circle of `others`, with its length.
fn each_common_arc(slots: u32, others: u32, mut visit: impl FnMut(u32, u32, u128)) {
    let end = |slot: u32, of: u32| if slot + 1 < of { u128::from(slot_start(slot + 1, of)) } else { CIRCLE };
    let (mut slot, mut other, mut from) = (0, 0, 0);
    while from < CIRCLE {
        let (ends, other_ends) = (end(slot, slots), end(other, others));
        let to = ends.min(other_ends);
        visit(slot, other, to - from);
        (slot, other, from) = (slot + u32::from(ends == to), other + u32::from(other_ends == to), to);
    }
}

/// Each member's share of all slots by its weight.
fn fair_shares(placed: &SlotOwners) -> Vec<(&InstanceId, f64)> {
    let sum: u64 = placed.members().iter().map(|(_, weight)| u64::from(weight.get())).sum();
    placed.members().iter().map(|(id, weight)| (id, f64::from(weight.get()) / sum as f64)).collect()
}

/// The share of all slots that has to move between exact shares: all of it from or to nobody, else what the members gain together.
fn exact(before: &SlotOwners, after: &SlotOwners) -> f64 {
    let had: BTreeMap<_, _> = fair_shares(before).into_iter().collect();
    let gains = fair_shares(after).into_iter().map(|(id, fair)| (fair - had.get(id).unwrap_or(&0.0)).max(0.0));
    if after.members().is_empty() && !before.members().is_empty() { 1.0 } else { gains.sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadMargin;
    use proptest::prelude::*;

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    fn fleet(members: &[(&str, u64)]) -> Vec<(InstanceId, Weight)> {
        members.iter().map(|(name, weight)| (id(name), Weight::new(*weight).unwrap())).collect()
    }

    #[test]
    fn a_join_takes_from_everybody_and_gives_to_the_newcomer() {
        let (before, after) = (fleet(&[("a", 1), ("b", 1)]), fleet(&[("a", 1), ("b", 1), ("c", 2)]));
        let plan = Plan::new(before, after, PlacementParams::default());
        assert!((plan.exact - 8_192.0).abs() < 1e-6, "half of the slots, for weight 2 of 4: {plan:?}");
        let to_c: u32 = plan.moves.iter().filter(|pair| pair.to == Some(id("c"))).map(|pair| pair.slots).sum();
        assert!(f64::from(to_c) > 0.9 * plan.exact && plan.moved >= to_c, "{plan:?}");
        assert!(plan.moves.windows(2).all(|pair| pair[0].slots >= pair[1].slots));
        assert!(plan.after.peak <= 1.051 && plan.after.least > 0.8 && plan.after.peak >= 1.0, "{plan:?}");
        assert_eq!((plan.before.members, plan.after.members), (2, 3));
    }

    #[test]
    fn from_and_to_nobody_everything_moves() {
        let (nobody, a) = (fleet(&[]), fleet(&[("a", 3)]));
        let params = PlacementParams { slots: 100, ..PlacementParams::default() };
        let joined = Plan::new(nobody.clone(), a.clone(), params);
        assert_eq!(joined.moves, [Move { from: None, to: Some(id("a")), slots: 100 }]);
        assert!((joined.exact - 100.0).abs() < 1e-9);
        let left = Plan::new(a.clone(), nobody.clone(), params);
        assert_eq!(left.moves, [Move { from: Some(id("a")), to: None, slots: 100 }]);
        assert!((left.exact - 100.0).abs() < 1e-9);
        assert_eq!(left.after, Balance { members: 0, peak: 0.0, least: 0.0 });
        let nothing = Plan::new(a.clone(), a, params);
        assert_eq!((nothing.moved, nothing.moves.len()), (0, 0));
        assert_eq!(nothing.before, Balance { members: 1, peak: 1.0, least: 1.0 });
        assert!(nothing.exact.abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn the_pairs_are_the_slots_that_change_hands(
            before in proptest::collection::btree_map("[a-e]", 1u64..9, 0..5),
            after in proptest::collection::btree_map("[a-e]", 1u64..9, 0..5),
        ) {
            let params = PlacementParams { slots: 97, virtual_nodes: 8, ..PlacementParams::default() };
            let list = |members: &BTreeMap<String, u64>| members.iter().map(|(name, weight)| (id(name), Weight::new(*weight).unwrap())).collect::<Vec<_>>();
            let (before, after) = (list(&before), list(&after));
            let plan = Plan::new(before.clone(), after.clone(), params);
            let (before, after) = (SlotOwners::place(before, params), SlotOwners::place(after, params));
            let gained: u32 = after.members().iter().map(|(id, _)| after.slots_of(id).minus(&before.slots_of(id)).len()).sum();
            let lost: u32 = before.members().iter().map(|(id, _)| before.slots_of(id).minus(&after.slots_of(id)).len()).sum();
            prop_assert_eq!(plan.moved, gained.max(lost));
            for pair in &plan.moves {
                let slots = |placed: &SlotOwners, id: &Option<InstanceId>| id.as_ref().map_or_else(|| crate::SlotSet::full(97), |id| placed.slots_of(id));
                prop_assert_eq!(pair.slots, slots(&before, &pair.from).intersection(&slots(&after, &pair.to)).len());
            }
        }

        /// Key by key, on a circle that cuts both.
        #[test]
        fn a_change_tells_the_share_of_keys_that_change_hands(slots in 1u32..60, others in 1u32..60, members in 1u32..6, more in 0u32..2) {
            let before = PlacementParams { slots, virtual_nodes: 8, ..PlacementParams::default() };
            let after = PlacementParams { slots: others, virtual_nodes: 5, load_margin: LoadMargin::None, ..before };
            let fleet = |n: u32| (0..n).map(|i| (id(&format!("w{i}")), Weight::ONE)).collect::<Vec<_>>();
            let change = Change::new((fleet(members), before), (fleet(members + more), after));
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
    fn a_change_on_one_circle_is_a_plan() {
        let (before, after) = (fleet(&[("a", 1), ("b", 2)]), fleet(&[("b", 2), ("c", 1)]));
        let params = PlacementParams { slots: 128, ..PlacementParams::default() };
        let (plan, change) = (Plan::new(before.clone(), after.clone(), params), Change::new((before, params), (after, params)));
        let shares: Vec<_> = plan.moves.iter().map(|pair| (pair.from.clone(), pair.to.clone(), f64::from(pair.slots) / 128.0)).collect();
        assert_eq!(change.moves.into_iter().map(|pair| (pair.from, pair.to, pair.share)).collect::<Vec<_>>(), shares);
        assert_eq!((change.before.balance, change.after.balance), (plan.before, plan.after));
        let (nobody, from_nothing) = (fleet(&[]), PlacementParams { slots: 7, ..params });
        let left = Change::new((fleet(&[("a", 1)]), params), (nobody, from_nothing));
        assert_eq!(left.moves, [ShareMove { from: Some(id("a")), to: None, share: 1.0 }]);
    }
}
