//! A set of slots as a bitmap.

use std::fmt;
use std::ops::RangeInclusive;

use crate::{SLOTS_MAX, ShardKey, slot_of};

/// A set of slots of a ring with a fixed number of them; one bit per slot.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet {
    slots: u32,
    words: Box<[u64]>,
}

impl SlotSet {
    /// The empty set on a ring of `slots`.
    pub fn empty(slots: u32) -> Self {
        Self { slots, words: vec![0; slots.div_ceil(64) as usize].into() }
    }

    /// Every slot of a ring of `slots`.
    pub fn full(slots: u32) -> Self {
        let mut set = Self { slots, words: vec![u64::MAX; slots.div_ceil(64) as usize].into() };
        if let Some(last) = set.words.last_mut()
            && !slots.is_multiple_of(64)
        {
            *last = (1 << (slots % 64)) - 1;
        }
        set
    }

    /// The set of the given slots; those at or above `slots` are ignored.
    pub fn from_slots(slots: u32, members: impl IntoIterator<Item = u32>) -> Self {
        let mut set = Self::empty(slots);
        members.into_iter().for_each(|slot| {
            set.insert(slot);
        });
        set
    }

    /// How many slots the ring has (not how many are in the set).
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Whether `slot` is in the set; false for a slot beyond the ring.
    #[inline]
    pub fn contains(&self, slot: u32) -> bool {
        self.words.get((slot >> 6) as usize).is_some_and(|word| word >> (slot & 63) & 1 == 1)
    }

    /// [`SlotSet::contains`] for a slot of the ring; panics for others.
    #[inline]
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.words[(slot >> 6) as usize] >> (slot & 63) & 1 == 1
    }

    /// The bitmap: slot `s` is bit `s % 64` of word `s / 64`.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Whether the slot of `key` is in the set.
    #[inline]
    pub fn holds<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        self.contains(slot_of(key.key_hash(), self.slots))
    }

    /// Adds `slot` and returns whether it is new. A slot beyond the ring is not added.
    pub fn insert(&mut self, slot: u32) -> bool {
        let new = slot < self.slots && !self.contains(slot);
        if new {
            self.words[(slot >> 6) as usize] |= 1 << (slot & 63);
        }
        new
    }

    /// Removes `slot` and returns whether it was in the set.
    pub fn remove(&mut self, slot: u32) -> bool {
        let was = self.contains(slot);
        if was {
            self.words[(slot >> 6) as usize] &= !(1 << (slot & 63));
        }
        was
    }

    /// How many slots are in the set.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether no slot is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip((0u32..).step_by(64)).flat_map(|(word, base)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let slot = (rest != 0).then(|| base + rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(slot)
            })
        })
    }

    /// The slots as inclusive ranges in ascending order, adjacent ones joined.
    pub fn ranges(&self) -> Vec<RangeInclusive<u32>> {
        let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
        for slot in self.iter() {
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == slot => *last = *last.start()..=slot,
                _ => ranges.push(slot..=slot),
            }
        }
        ranges
    }

    /// The slots in this set and not in `other`; see [`SlotSet::union`] for sets of two rings.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & !b)
    }

    /// The slots in this set or in `other`.
    ///
    /// Sets of two rings occur when a group changes its number of slots. The result is then on the coarsest ring that divides both,
    /// of at most [`SLOTS_MAX`] slots: 32,768 for 16,384 and 32,768, and 300 for 100 and 150. If there is none, `other` counts as empty.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a | b)
    }

    /// The slots in both this set and `other`; see [`SlotSet::union`] for sets of two rings.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & b)
    }

    fn combine(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        if self.slots != other.slots {
            let (one, other) = self.on_one_ring(other);
            return one.combine(&other, op);
        }
        Self { slots: self.slots, words: self.words.iter().zip(&other.words).map(|(a, b)| op(*a, *b)).collect() }
    }

    /// Both sets on one ring. An empty set is empty on every ring.
    fn on_one_ring(&self, other: &Self) -> (Self, Self) {
        match common_ring(self.slots, other.slots) {
            _ if self.is_empty() => (Self::empty(other.slots), other.clone()),
            Some(slots) if !other.is_empty() => (self.cut_into(slots), other.cut_into(slots)),
            _ => (self.clone(), Self::empty(self.slots)),
        }
    }

    /// The same arcs on a ring whose number of slots is a multiple of this one's.
    fn cut_into(&self, slots: u32) -> Self {
        let parts = slots / self.slots;
        Self::from_slots(slots, self.iter().flat_map(|slot| slot * parts..(slot + 1) * parts))
    }
}

/// The coarsest ring each of whose slots lies within one slot of both: slot `s` of `n` is exactly the slots `k * s` to `k * s + k - 1`
/// of `k * n`.
fn common_ring(one: u32, other: u32) -> Option<u32> {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    one.checked_div(a)?.checked_mul(other).filter(|slots| (1..=SLOTS_MAX).contains(slots))
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} slots {:?}", self.len(), self.slots, self.ranges())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn full_has_every_slot_and_no_other() {
        for slots in [1, 63, 64, 65, 1_024, 65_536] {
            let full = SlotSet::full(slots);
            assert_eq!(full.len(), slots);
            assert!(!full.contains(slots));
            assert_eq!(full.ranges(), vec![0..=slots - 1]);
        }
    }

    proptest! {
        #[test]
        fn a_bitmap_is_a_set(slots in 1u32..300, a in proptest::collection::btree_set(0u32..300, 0..80), b in proptest::collection::btree_set(0u32..300, 0..80)) {
            let inside = |set: &BTreeSet<u32>| set.iter().copied().filter(|s| *s < slots).collect::<BTreeSet<_>>();
            let (left, right) = (SlotSet::from_slots(slots, a.iter().copied()), SlotSet::from_slots(slots, b.iter().copied()));
            let (a, b) = (inside(&a), inside(&b));
            let listed = |set: SlotSet| set.iter().collect::<BTreeSet<_>>();
            prop_assert_eq!(left.len() as usize, a.len());
            prop_assert_eq!(left.ranges().into_iter().flatten().collect::<BTreeSet<_>>(), a.clone());
            prop_assert_eq!(listed(left.minus(&right)), a.difference(&b).copied().collect());
            prop_assert_eq!(listed(left.union(&right)), a.union(&b).copied().collect());
            prop_assert_eq!(listed(left.intersection(&right)), a.intersection(&b).copied().collect());
        }
    }

    #[test]
    fn sets_of_two_rings_meet_where_both_are_known() {
        let set = |slots, members: &[u32]| SlotSet::from_slots(slots, members.iter().copied());
        assert_eq!(set(2, &[0]).minus(&set(4, &[1, 2])), set(4, &[0]));
        assert_eq!(set(2, &[1]).union(&set(3, &[0])), set(6, &[0, 1, 3, 4, 5]));
        assert_eq!(set(6, &[1, 2]).intersection(&set(2, &[1])), set(6, &[]));
        // 65,535 and 65,536 have no common ring that is small enough.
        let (odd, even) = (set(65_535, &[1, 2]), set(65_536, &[1, 2]));
        assert_eq!((odd.minus(&even), odd.union(&even)), (odd.clone(), odd.clone()));
        assert!(odd.intersection(&even).is_empty());
        assert_eq!(odd.union(&SlotSet::empty(65_536)), odd);
        assert_eq!(SlotSet::empty(65_535).union(&even), even);
        assert_eq!(set(0, &[]).union(&set(5, &[3])), set(5, &[3]));
    }

    proptest! {
        #[test]
        fn on_a_common_ring_every_key_is_where_it_was(
            a in (1u32..40, proptest::collection::vec(0u32..40, 0..40)), b in (1u32..40, proptest::collection::vec(0u32..40, 0..40)), keys in any::<[u64; 32]>(),
        ) {
            let (a, b) = (SlotSet::from_slots(a.0, a.1), SlotSet::from_slots(b.0, b.1));
            let (minus, union, both) = (a.minus(&b), a.union(&b), a.intersection(&b));
            for key in keys {
                let (in_a, in_b) = (a.holds(&key), b.holds(&key));
                prop_assert_eq!((minus.holds(&key), union.holds(&key), both.holds(&key)), (in_a && !in_b, in_a || in_b, in_a && in_b));
            }
        }
    }
}
