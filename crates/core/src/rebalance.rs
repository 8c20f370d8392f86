//! Ownership before and after a change.

use std::collections::HashSet;
use std::fmt;

use serde::Serialize;

use crate::ownership::HeldShare;
use crate::{InstanceId, MEMBERS_MAX, MemberChange, Moment, Ownership, ShardKey, SlotSet};

/// Why slots were gained or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// This worker joined, or joined again.
    Joined,
    /// Others joined, left, died or changed their weight.
    MembersChanged,
    /// The number of active members passed `min_members`, up or down.
    MemberGate,
    /// The group changed to the `next` placement of its policy, or back.
    PolicyChanged,
    /// This worker's lease expired, or its view became too old.
    Fenced,
    /// This worker is leaving.
    Draining,
    /// The group does not accept this worker any more.
    Refused,
    /// The backend says that another member holds the claim now, or none does. Only after an operator's action or a wiped store.
    ClaimLost,
    /// The slots' owner did not claim them for a TTL, so the next member in line did.
    OwnerAbsent,
}

impl Cause {
    /// The cause's name in output and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::MembersChanged => "members_changed",
            Self::MemberGate => "member_gate",
            Self::PolicyChanged => "policy_changed",
            Self::Fenced => "fenced",
            Self::Draining => "draining",
            Self::Refused => "refused",
            Self::ClaimLost => "claim_lost",
            Self::OwnerAbsent => "owner_absent",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How many intermediate states a merged change keeps under a key placement; beyond it, every key counts as lost in between.
const HISTORY_MAX: usize = 8;

/// Slots gained, slots lost, and why. Several changes are merged into one for a slow reader.
///
/// Where the group has changed its number of slots, `gained` and `lost` are on a ring that divides both the former and the new one;
/// test keys with [`SlotSet::holds`]. If there is no such ring (see [`SlotSet::union`]), `lost` is everything that was held, on the
/// former ring, and `gained` everything that is held now, on the new one.
///
/// Under a key placement there are no slots and both sets are empty. [`Rebalance::loses`] and [`Rebalance::gains`] answer for a key under
/// every placement.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebalance {
    /// When it happened, on the service's clock.
    pub at: Moment,
    /// The revision of the view it comes from.
    pub revision: u64,
    /// Members in that view.
    pub members_total: usize,
    /// Slots held after it; `None` under a key placement.
    pub slots_owned: Option<u32>,
    /// Slots held after it that were not held before, or were lost and regained in between.
    pub gained: SlotSet,
    /// Slots held before it that are not held any more, or were not for a while.
    pub lost: SlotSet,
    /// Why; the latest reason if several changes are merged.
    pub cause: Cause,
    /// Members that joined since the last view, each once; merged changes keep the latest 16,384. One that came and went is in both.
    pub members_joined: Vec<InstanceId>,
    /// Members that left since the last view, likewise.
    pub members_left: Vec<InstanceId>,
    /// Those of `members_left` that had not announced it: they died or lost their lease. Likewise.
    pub members_vanished: Vec<InstanceId>,
    /// Members whose state or weight changed since the last view; in merged changes the latest change of each.
    pub members_changed: Vec<MemberChange>,
    /// What was held before, in between if several changes are merged, and after.
    pub(crate) history: Vec<HeldShare>,
}

impl Rebalance {
    /// The change from one snapshot to the next; `None` if the same is held.
    pub fn between(before: &Ownership, after: &Ownership, cause: Cause, at: Moment) -> Option<Self> {
        let (gained, lost) = (after.held.slots.minus(&before.held.slots), before.held.slots.minus(&after.held.slots));
        let keys = |ownership: &Ownership| ownership.held.keys.clone().filter(|keys| !keys.is_nothing());
        if gained.is_empty() && lost.is_empty() && keys(before) == keys(after) {
            return None;
        }
        Some(Self {
            at,
            revision: after.view.revision(),
            members_total: after.view.members().len(),
            slots_owned: after.slots_owned(),
            gained,
            lost,
            cause,
            members_joined: after.view.joined_since(&before.view),
            members_left: before.view.joined_since(&after.view),
            members_vanished: after.view.vanished_since(&before.view),
            members_changed: after.view.changed_since(&before.view),
            history: vec![before.held.clone(), after.held.clone()],
        })
    }

    /// Merges this change with `next`: a slot lost and regained is in both `lost` and `gained`, one gained and lost again in neither.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        // Only slots that were held at the beginning count as lost; readers never saw the others.
        let lost = self.lost.union(&next.lost.minus(&self.gained.minus(&self.lost)));
        let gained = self.gained.minus(&next.lost).union(&next.gained);
        let members_joined = merged(self.members_joined, next.members_joined);
        let members_left = merged(self.members_left, next.members_left);
        let members_vanished = merged(self.members_vanished, next.members_vanished);
        let mut history = self.history;
        history.extend(next.history);
        history.dedup();
        if history.len() > HISTORY_MAX {
            let nothing = history[0].emptied();
            history.splice(1..history.len() - 1, [nothing]);
        }
        let mut members_changed = self.members_changed;
        let again: HashSet<_> = next.members_changed.iter().map(|change| &change.instance_id).collect();
        members_changed.retain(|change| !again.contains(&change.instance_id));
        members_changed.extend(next.members_changed);
        Self { gained, lost, members_joined, members_left, members_vanished, members_changed, history, ..next }
    }

    /// Whether `key` was held before and is not held any more, or was not for a while.
    pub fn loses<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        if self.is_by_slot() { self.lost.holds(key) } else { self.was_held(key) && !self.is_always_held(key) }
    }

    /// Whether `key` is held now and was not before, or was not for a while.
    pub fn gains<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        if self.is_by_slot() {
            self.gained.holds(key)
        } else {
            self.history.last().is_some_and(|held| held.holds(key)) && !self.is_always_held(key)
        }
    }

    fn is_by_slot(&self) -> bool {
        self.history.iter().all(|held| held.keys.is_none())
    }

    fn was_held<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        self.history.first().is_some_and(|held| held.holds(key))
    }

    fn is_always_held<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        self.history.iter().all(|held| held.holds(key))
    }
}

/// Merges both lists; each member appears once, at its last position. Beyond the largest size of a group, only the latest are kept.
fn merged(earlier: Vec<InstanceId>, later: Vec<InstanceId>) -> Vec<InstanceId> {
    if earlier.is_empty() {
        return later;
    }
    let again: HashSet<_> = later.iter().collect();
    let mut all: Vec<_> = earlier.into_iter().filter(|id| !again.contains(id)).collect();
    all.extend(later);
    all.drain(..all.len().saturating_sub(MEMBERS_MAX as usize));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn change(before: &SlotSet, after: &SlotSet) -> Rebalance {
        Rebalance {
            at: Moment::ZERO,
            revision: 0,
            members_total: 0,
            slots_owned: Some(after.len()),
            gained: after.minus(before),
            lost: before.minus(after),
            cause: Cause::MembersChanged,
            members_joined: vec![],
            members_left: vec![],
            members_vanished: vec![],
            members_changed: vec![],
            history: [before, after].map(|slots| HeldShare { slots: Arc::new(slots.clone()), keys: None, grants: None }).into(),
        }
    }

    /// Regression: the lists of a stream that was held but not read grew with every change.
    #[test]
    fn merged_changes_name_each_member_once_and_no_more_than_a_group_may_have() {
        let id = |n: u32| InstanceId::new(format!("w{n}")).unwrap();
        let nothing = SlotSet::empty(12);
        let change = |joined: Vec<InstanceId>, left: Vec<InstanceId>| Rebalance {
            members_joined: joined,
            members_left: left,
            members_vanished: vec![],
            members_changed: vec![],
            ..change(&nothing, &nothing)
        };
        let merged = [change(vec![id(1), id(2)], vec![]), change(vec![], vec![id(1)]), change(vec![id(1)], vec![id(3)])]
            .into_iter()
            .reduce(Rebalance::then)
            .unwrap();
        assert_eq!((merged.members_joined, merged.members_left), (vec![id(2), id(1)], vec![id(1), id(3)]));
        // A member that flaps, and a sequence of new members.
        let flapping = (0..1_000).map(|_| change(vec![id(1)], vec![id(1)])).reduce(Rebalance::then).unwrap();
        assert_eq!((flapping.members_joined.len(), flapping.members_left.len()), (1, 1));
        let ids = |from: u32| (from..from + 10_000).map(id).collect::<Vec<_>>();
        let new = [0, 10_000, 20_000].into_iter().map(|n| change(ids(n), ids(n))).reduce(Rebalance::then).unwrap();
        assert_eq!(new.members_joined.len(), MEMBERS_MAX as usize);
        assert_eq!((new.members_left.first(), new.members_left.last()), (Some(&id(30_000 - MEMBERS_MAX)), Some(&id(29_999))));
    }

    proptest! {
        /// However a history is merged, the result says of each slot whether it was held before, is held after, and whether without a gap.
        #[test]
        fn merging_keeps_every_gap(history in proptest::collection::vec(proptest::collection::btree_set(0u32..12, 0..12), 2..8)) {
            let sets: Vec<_> = history.iter().map(|s| SlotSet::from_slots(12, s.iter().copied())).collect();
            let merged = sets.windows(2).map(|w| change(&w[0], &w[1])).reduce(Rebalance::then).unwrap();
            let (first, last) = (&sets[0], &sets[sets.len() - 1]);
            for slot in 0..12 {
                let always = sets.iter().all(|s| s.contains(slot));
                prop_assert_eq!(merged.lost.contains(slot), first.contains(slot) && !always, "lost {}", slot);
                prop_assert_eq!(merged.gained.contains(slot), last.contains(slot) && !always, "gained {}", slot);
            }
        }

        /// The same where the number of slots changes on the way: the result says of each key whether it was held, and whether without a
        /// gap. Where no ring divides both, it may report a gap that did not occur, but then it also reports the key as gained again.
        #[test]
        fn merging_over_two_rings_keeps_every_gap(
            rings in prop_oneof![Just([6u32, 12]), Just([4, 6]), Just([65_535, 65_536])],
            history in proptest::collection::vec((0usize..2, proptest::collection::vec(any::<u64>(), 0..6)), 2..8),
            strangers in any::<[u64; 4]>(),
        ) {
            let set = |(ring, keys): &(usize, Vec<u64>)| {
                let slots = rings[*ring];
                SlotSet::from_slots(slots, keys.iter().map(|key| crate::slot_of(key.key_hash(), slots)))
            };
            let sets: Vec<_> = history.iter().map(set).collect();
            let merged = sets.windows(2).map(|w| change(&w[0], &w[1])).reduce(Rebalance::then).unwrap();
            let (first, last) = (&sets[0], &sets[sets.len() - 1]);
            let exact = rings[1] != 65_536;
            for key in history.iter().flat_map(|(_, keys)| keys).chain(&strangers) {
                let (before, after, always) = (first.holds(key), last.holds(key), sets.iter().all(|set| set.holds(key)));
                let (lost, gained) = (merged.lost.holds(key), merged.gained.holds(key));
                prop_assert!(if before && !always { lost } else { !lost || always && !exact }, "lost {lost}, {before}, {after}, {always}");
                prop_assert!(if after && !always { gained } else { gained == (always && lost) }, "gained {gained}, {before}, {after}, {always}");
            }
        }
    }
}
