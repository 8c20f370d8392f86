//! A preview of what a change of the group would move.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{InstanceId, KeyPlacement, PlacementKind, PlacementParams, SlotOwners, Weight};

/// Slots that would move from one member to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Move {
    /// The owner before; `None` if there are no members.
    pub from: Option<InstanceId>,
    /// The owner afterwards; `None` if there are no members.
    pub to: Option<InstanceId>,
    /// The number of slots.
    pub slots: u32,
    /// Their share of all slots, 0 to 1.
    pub share: f64,
}

/// How evenly a placement spreads the keys.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Balance {
    /// The number of members.
    pub members: usize,
    /// The largest ratio of a member's slots to the mean or, with weights, to its fair share. 0 without members.
    pub peak: f64,
    /// The smallest such ratio. Both are 0 where no slot has an owner.
    pub least: f64,
}

impl Balance {
    /// How evenly `placed` spreads the slots.
    pub fn of(placed: &SlotOwners) -> Self {
        let mut load = vec![0_u32; placed.members().len()];
        placed.indices().iter().for_each(|owner| load[*owner as usize] += 1);
        let load: Vec<_> = load.into_iter().map(|slots| share(slots, placed.params().slots)).collect();
        Self::of_load(&load, &fair_shares(placed.params().kind, placed.members()))
    }

    /// Compares each member's load with its fair share.
    pub(crate) fn of_load(load: &[f64], fair: &Shares<'_>) -> Self {
        let ratios = || load.iter().zip(fair).map(|(load, (_, fair))| load / fair);
        let least = if load.is_empty() { 0.0 } else { ratios().fold(f64::INFINITY, f64::min) };
        Self { members: load.len(), peak: ratios().fold(0.0, f64::max), least }
    }
}

/// What would move between two sets of members on the ring. For key placements, which have no slots, see [`crate::PlacementChange`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Slots of the ring.
    pub slots: u32,
    /// The number of slots that would change owner.
    pub moved: u32,
    /// Their share of all slots, 0 to 1.
    pub moved_share: f64,
    /// For comparison, the number of slots that must move between shares that match the weights exactly. Real shares only approximate
    /// them, before and after, so a good plan may move slightly less.
    pub exact: f64,
    /// Their share of all slots, 0 to 1.
    pub exact_share: f64,
    /// The moves, largest first.
    pub moves: Vec<Move>,
    /// The balance before.
    pub before: Balance,
    /// The balance afterwards.
    pub after: Balance,
}

impl Plan {
    /// What moves when the members `before` become `after`, both as [`SlotOwners::place`] takes them.
    pub fn new(
        before: impl IntoIterator<Item = (InstanceId, Weight)>,
        after: impl IntoIterator<Item = (InstanceId, Weight)>,
        params: PlacementParams,
    ) -> Self {
        let (before, after) = (SlotOwners::place(before, params), SlotOwners::place(after, params));
        let fair = |placed| fair_shares(params.kind, SlotOwners::members(placed));
        let mut pairs = BTreeMap::new();
        for slot in 0..params.slots {
            let (from, to) = (before.owner_of_slot(slot), after.owner_of_slot(slot));
            if from != to {
                *pairs.entry((from, to)).or_insert(0) += 1;
            }
        }
        let as_move = |((from, to), slots): ((Option<&InstanceId>, Option<&InstanceId>), u32)| Move {
            from: from.cloned(),
            to: to.cloned(),
            slots,
            share: share(slots, params.slots),
        };
        let mut moves: Vec<_> = pairs.into_iter().map(as_move).collect();
        moves.sort_by_key(|pair| std::cmp::Reverse(pair.slots));
        let (moved, exact_share) = (moves.iter().map(|pair| pair.slots).sum(), exact(&fair(&before), &fair(&after)));
        Self {
            slots: params.slots,
            moved,
            moved_share: share(moved, params.slots),
            exact: exact_share * f64::from(params.slots),
            exact_share,
            moves,
            before: Balance::of(&before),
            after: Balance::of(&after),
        }
    }
}

/// `slots` as a share of `of`; 0 if `of` is 0.
fn share(slots: u32, of: u32) -> f64 {
    f64::from(slots) / f64::from(of.max(1))
}

/// Members, each with its share of all keys.
pub(crate) type Shares<'a> = [(&'a InstanceId, f64)];

/// Each member's fair share of all keys by weight; equal shares under `modulo`, which ignores weights.
pub(crate) fn fair_shares(kind: PlacementKind, members: &[(InstanceId, Weight)]) -> Vec<(&InstanceId, f64)> {
    let is_equal = kind == PlacementKind::Key(KeyPlacement::Modulo);
    let counted = |weight: &Weight| if is_equal { 1 } else { weight.get() };
    let sum: u64 = members.iter().map(|(_, weight)| u64::from(counted(weight))).sum();
    members.iter().map(|(id, weight)| (id, f64::from(counted(weight)) / sum as f64)).collect()
}

/// The least share of all keys that must move between fair shares: all of it from or to an empty group, else the sum of all gains.
pub(crate) fn exact(before: &Shares<'_>, after: &Shares<'_>) -> f64 {
    let had: BTreeMap<_, _> = before.iter().copied().collect();
    let gains = after.iter().map(|(id, fair)| (fair - had.get(id).unwrap_or(&0.0)).max(0.0));
    if after.is_empty() && !before.is_empty() { 1.0 } else { gains.sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    fn fleet(members: &[(&str, u64)]) -> Vec<(InstanceId, Weight)> {
        members.iter().map(|(name, weight)| (id(name), Weight::new(*weight).unwrap())).collect()
    }

    #[test]
    fn a_join_takes_from_all_and_gives_to_the_newcomer() {
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
    fn from_and_to_no_members_everything_moves() {
        let (none, a) = (fleet(&[]), fleet(&[("a", 3)]));
        let params = PlacementParams { slots: 100, ..PlacementParams::default() };
        let joined = Plan::new(none.clone(), a.clone(), params);
        assert_eq!(joined.moves, [Move { from: None, to: Some(id("a")), slots: 100, share: 1.0 }]);
        assert!((joined.exact - 100.0).abs() < 1e-9);
        let left = Plan::new(a.clone(), none.clone(), params);
        assert_eq!(left.moves, [Move { from: Some(id("a")), to: None, slots: 100, share: 1.0 }]);
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
    }
}
