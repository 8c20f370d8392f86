//! A set of slots as a bitmap.

use std::fmt;
use std::ops::RangeInclusive;

use crate::{ShardKey, slot_of};

/// A set of slots of a circle with a fixed number of them; one bit a slot.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet {
    slots: u32,
    words: Box<[u64]>,
}

impl SlotSet {
    /// No slot of a circle of `slots`.
    pub fn empty(slots: u32) -> Self {
        Self { slots, words: vec![0; slots.div_ceil(64) as usize].into() }
    }

    /// Every slot of a circle of `slots`.
    pub fn full(slots: u32) -> Self {
        let mut set = Self { slots, words: vec![u64::MAX; slots.div_ceil(64) as usize].into() };
        if let Some(last) = set.words.last_mut()
            && !slots.is_multiple_of(64)
        {
            *last = (1 << (slots % 64)) - 1;
        }
        set
    }

    /// The set of the given slots; those at or above `slots` are left out.
    pub fn from_slots(slots: u32, members: impl IntoIterator<Item = u32>) -> Self {
        let mut set = Self::empty(slots);
        members.into_iter().for_each(|slot| {
            set.insert(slot);
        });
        set
    }

    /// How many slots the circle has (not how many are in the set).
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Whether `slot` is in the set; false for a slot that the circle does not have.
    #[inline]
    pub fn contains(&self, slot: u32) -> bool {
        self.words.get((slot >> 6) as usize).is_some_and(|word| word >> (slot & 63) & 1 == 1)
    }

    /// Whether the slot of `key` is in the set.
    #[inline]
    pub fn holds<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        self.contains(slot_of(key.key_hash(), self.slots))
    }

    /// Adds `slot`; answers whether it is new. A slot that the circle does not have is not added.
    pub fn insert(&mut self, slot: u32) -> bool {
        let new = slot < self.slots && !self.contains(slot);
        if new {
            self.words[(slot >> 6) as usize] |= 1 << (slot & 63);
        }
        new
    }

    /// Takes `slot` out; answers whether it was in.
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

    /// The slots as inclusive ranges in ascending order, neighbours joined.
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

    /// The slots that are here and not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & !b)
    }

    /// The slots that are here or in `other`, on this set's circle.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a | b)
    }

    /// The slots that are both here and in `other`.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & b)
    }

    /// Word by word over this set's circle. Sets of two circle sizes do not meet within one policy; if they did, the words beyond
    /// the other's end count as empty and bits beyond this circle are cut off.
    fn combine(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        let words = self.words.iter().enumerate().map(|(i, word)| op(*word, other.words.get(i).copied().unwrap_or(0)));
        let mut set = Self { slots: self.slots, words: words.collect() };
        if let Some(last) = set.words.last_mut()
            && !self.slots.is_multiple_of(64)
        {
            *last &= (1 << (self.slots % 64)) - 1;
        }
        set
    }
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
}
