//! Filters lists of keys by ownership: the call that every worker makes all the time.
//!
//! A key costs its hash, one multiplication and one bit, whatever the number of members. Whether a key is held is practically random, so
//! a branch on it would be mispredicted for about every third key. Instead each key is always written, and the end of the result advances
//! by the bit.

use crate::{Moment, Ownership, SLOTS_DEFAULT, SLOTS_MAX, SLOTS_OUTBOX, ShardKey, SlotSet, slot_of};

/// Keys processed before those held are moved to the result: few enough for the fastest cache, and for a count in one byte.
const BLOCK: usize = u8::MAX as usize;

/// Below this length one thread filters faster than two, by the benchmark `keys`.
#[cfg(feature = "parallel")]
const PARALLEL_FROM: usize = 65_536;

impl Ownership {
    /// The items held at `now`, in their order.
    pub fn filter_at<'a, K: ShardKey>(&self, items: &'a [K], now: Moment) -> Vec<&'a K> {
        self.select(items, now, |_, item| item)
    }

    /// The positions in `items` of those held at `now`, ascending.
    pub fn filter_indices_at<K: ShardKey>(&self, items: &[K], now: Moment) -> Vec<usize> {
        self.select(items, now, |position, _| position)
    }

    /// How many of the items are held at `now`.
    pub fn count_at<K: ShardKey>(&self, items: &[K], now: Moment) -> usize {
        match &self.held.keys {
            _ if !self.is_live_at(now) => 0,
            None => items.iter().map(|item| usize::from(self.held.slots.holds(item))).sum(),
            Some(keys) => items.iter().filter(|item| keys.holds(*item)).count(),
        }
    }

    /// Like [`Ownership::filter_at`], on all threads of the current rayon pool; the calling thread alone filters a short list.
    #[cfg(feature = "parallel")]
    pub fn par_filter_at<'a, K: ShardKey + Sync>(&self, items: &'a [K], now: Moment) -> Vec<&'a K> {
        use rayon::prelude::*;

        let threads = rayon::current_num_threads();
        if items.len() < PARALLEL_FROM || threads == 1 {
            return self.filter_at(items, now);
        }
        // A few parts for each thread, so that a slow thread does not delay all.
        let part = items.len().div_ceil(threads * 4).max(BLOCK);
        let parts: Vec<Vec<&K>> = items.par_chunks(part).map(|part| self.filter_at(part, now)).collect();
        parts.concat()
    }

    /// `pick` of position and item, for every item held at `now`.
    #[inline]
    fn select<'a, K: ShardKey, T: Copy>(&self, items: &'a [K], now: Moment, pick: impl Fn(usize, &'a K) -> T) -> Vec<T> {
        if !self.is_live_at(now) {
            return Vec::new();
        }
        if let Some(keys) = &self.held.keys {
            let held = items.iter().enumerate().filter(|(_, item)| keys.holds(*item));
            return held.map(|(position, item)| pick(position, item)).collect();
        }
        let set: &SlotSet = &self.held.slots;
        // If the compiler knows the number of slots, finding a key's bit takes three shifts: a sixth of the whole cost of a short key.
        match set.slots() {
            SLOTS_OUTBOX => sift_known::<SLOTS_OUTBOX, { words(SLOTS_OUTBOX) }, _, _>(set, items, pick),
            SLOTS_DEFAULT => sift_known::<SLOTS_DEFAULT, { words(SLOTS_DEFAULT) }, _, _>(set, items, pick),
            SLOTS_MAX => sift_known::<SLOTS_MAX, { words(SLOTS_MAX) }, _, _>(set, items, pick),
            slots => sift(set, items, pick, |hash| set.has(slot_of(hash, slots))),
        }
    }
}

/// Words of the bitmap of `slots` slots, a multiple of 64.
const fn words(slots: u32) -> usize {
    (slots / u64::BITS) as usize
}

/// [`sift`] for a set of `SLOTS` slots in `WORDS` words, where the compiler sees that no slot is out of bounds.
fn sift_known<'a, const SLOTS: u32, const WORDS: usize, K, T>(set: &SlotSet, items: &'a [K], pick: impl Fn(usize, &'a K) -> T) -> Vec<T>
where
    K: ShardKey,
    T: Copy,
{
    // The caller has checked the number of slots, so the words are there.
    let Some(words) = set.words().first_chunk::<WORDS>() else { return Vec::new() };
    sift(set, items, pick, |hash| {
        let slot = slot_of(hash, SLOTS);
        words[(slot >> 6) as usize] >> (slot & 63) & 1 == 1
    })
}

/// `pick` of position and item, for every item whose slot is in the set. `held` says whether the slot of a hash is.
fn sift<'a, K, T>(set: &SlotSet, items: &'a [K], pick: impl Fn(usize, &'a K) -> T, held: impl Fn(u64) -> bool) -> Vec<T>
where
    K: ShardKey,
    T: Copy,
{
    let Some(first) = items.first().filter(|_| !set.is_empty()) else { return Vec::new() };
    let mut picked = Vec::with_capacity(expected(set, items.len()));
    // One more than a block, so that the compiler sees that every count in a byte is within bounds.
    let mut block_picked = [pick(0, first); BLOCK + 1];
    for (begin, block) in (0..).step_by(BLOCK).zip(items.chunks(BLOCK)) {
        let mut count = 0_u8;
        for (position, item) in (begin..).zip(block) {
            block_picked[usize::from(count)] = pick(position, item);
            count += u8::from(held(item.key_hash()));
        }
        picked.extend_from_slice(&block_picked[..usize::from(count)]);
    }
    picked
}

/// A likely upper bound on how many of `items` keys are in `slots`, to allocate the result at once.
fn expected(slots: &SlotSet, items: usize) -> usize {
    let share = f64::from(slots.len()) / f64::from(slots.slots().max(1));
    let likely = items as f64 * share;
    // Evenly spread keys nearly always stay within three roots of the expected number.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and the cast saturates")]
    let room = (likely + 3.0 * likely.sqrt()) as usize;
    room.min(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceState;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn holding(slots: SlotSet, deadline: u64) -> Ownership {
        let ownership = Ownership::fixed(ServiceState::Active, slots, Arc::default(), Moment::ZERO);
        Ownership { deadline: Some(Moment::from_nanos(deadline)), ..ownership }
    }

    #[test]
    fn past_the_deadline_no_list_has_anything() {
        let ownership = holding(SlotSet::full(64), 100);
        let (items, ends) = (["a", "b"], Moment::from_nanos(100));
        assert!(ownership.filter_at(&items, ends).is_empty());
        assert!(ownership.filter_indices_at(&items, ends).is_empty());
        assert_eq!(ownership.count_at(&items, ends), 0);
        #[cfg(feature = "parallel")]
        assert!(ownership.par_filter_at(&items, ends).is_empty());
    }

    #[test]
    fn on_a_ring_without_slots_nothing_is_held() {
        let ownership = holding(SlotSet::empty(0), 100);
        assert!(ownership.filter_at(&["a", "b"], Moment::ZERO).is_empty());
        assert_eq!(ownership.count_at(&["a", "b"], Moment::ZERO), 0);
    }

    /// Lists of full blocks, with one key more and one less.
    #[test]
    fn of_a_full_ring_every_key_is_kept() {
        for slots in [SLOTS_OUTBOX, SLOTS_DEFAULT, SLOTS_MAX, 10_000] {
            let ownership = holding(SlotSet::full(slots), 100);
            for count in [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1] {
                let keys: Vec<u64> = (0..count as u64).collect();
                assert!(ownership.filter_at(&keys, Moment::ZERO).into_iter().eq(&keys), "{slots} slots, {count} keys");
                assert!(ownership.filter_indices_at(&keys, Moment::ZERO).into_iter().eq(0..count), "{slots} slots, {count} keys");
            }
        }
    }

    proptest! {
        #[test]
        fn every_way_is_the_simple_way(
            slots in prop_oneof![1u32..200, Just(SLOTS_OUTBOX), Just(SLOTS_DEFAULT), Just(SLOTS_MAX)],
            owned in proptest::collection::vec(any::<u32>(), 0..200),
            half in any::<bool>(),
            keys in proptest::collection::vec("[a-z]{0,9}", 0..600),
            deadline in 0u64..4,
        ) {
            let owned = owned.into_iter().map(|slot| slot % slots).chain((0..slots).step_by(2).filter(|_| half));
            let ownership = holding(SlotSet::from_slots(slots, owned), deadline);
            let now = Moment::from_nanos(1);
            let simple: Vec<_> = keys.iter().enumerate().filter(|(_, key)| ownership.owns_at(*key, now)).collect();
            let (positions, items): (Vec<_>, Vec<_>) = simple.into_iter().unzip();
            prop_assert_eq!(&ownership.filter_at(&keys, now), &items);
            prop_assert_eq!(ownership.filter_indices_at(&keys, now), positions);
            prop_assert_eq!(ownership.count_at(&keys, now), items.len());
        }
    }

    #[cfg(feature = "parallel")]
    #[test]
    fn in_parallel_the_order_stays() {
        let ownership = holding(SlotSet::from_slots(1_024, (0..1_024).step_by(3)), 100);
        for keys in [0, 1, PARALLEL_FROM - 1, PARALLEL_FROM, PARALLEL_FROM * 3 + 7] {
            let keys: Vec<u64> = (0..keys as u64).collect();
            assert_eq!(ownership.par_filter_at(&keys, Moment::ZERO), ownership.filter_at(&keys, Moment::ZERO));
        }
    }
}
