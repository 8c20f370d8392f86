//! The caller's side of width: for a short time it remembers the widths that owners reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Width;
use crate::Moment;

/// How long a caller uses a reported width, at most; up to a second less, because its clock is read in whole seconds here.
pub const WIDTH_VALID_FOR: Duration = Duration::from_secs(30);
/// How many hot keys a caller and an owner keep.
pub const HOT_KEYS_MAX: usize = 1_024;

/// The entries in which one key may be: a cache line.
const WAYS: usize = 8;
const SETS: u64 = (HOT_KEYS_MAX / WAYS) as u64;
const WIDTH_BITS: u32 = 3;
const EXPIRES_BITS: u32 = 29;
/// The seconds that fit into an entry: 17 years since the clock's beginning.
const EXPIRES_MAX: u64 = (1 << EXPIRES_BITS) - 1;

/// The widths above 1 that owners reported, by the hash of the key, each for [`WIDTH_VALID_FOR`].
///
/// At most [`HOT_KEYS_MAX`] are kept, in 128 sets of eight. A ninth key of one set replaces the one that expires first. Reading and writing
/// take no lock: an entry is one word. Two threads that write to one set at once may lose one of the two reports; the owner repeats it with
/// its next answer. Two keys whose hashes agree in 39 bits share an entry. Then requests of a key that is not hot go to one of its
/// helpers, which accepts them.
#[derive(Debug)]
pub struct WidthHints {
    /// Each has 32 bits of the hash, the second at which it expires, and the width; 0 if it is empty.
    entries: Box<[AtomicU64]>,
}

impl Default for WidthHints {
    fn default() -> Self {
        Self { entries: (0..HOT_KEYS_MAX).map(|_| AtomicU64::new(0)).collect() }
    }
}

const fn tag(entry: u64) -> u64 {
    entry >> (WIDTH_BITS + EXPIRES_BITS)
}

const fn expires(entry: u64) -> u64 {
    (entry >> WIDTH_BITS) & EXPIRES_MAX
}

const fn width(entry: u64) -> u64 {
    entry & ((1 << WIDTH_BITS) - 1)
}

fn seconds(now: Moment) -> u64 {
    now.since(Moment::ZERO).as_secs()
}

impl WidthHints {
    /// The entries in which a key may be, and what marks its own one.
    fn set_of(&self, key: u64) -> (&[AtomicU64], u64) {
        // Below the number of sets, so it fits. The tag has the other end of the hash.
        let begin = usize::try_from(key % SETS).unwrap_or(0) * WAYS;
        (self.entries.get(begin..begin + WAYS).unwrap_or_default(), tag(key))
    }

    /// The owner of the key with that hash answered and reported that width, or none. No width is width 1.
    ///
    /// Only the owner decides, so call it for an answer of the first member of the key's set. `max_width` is the policy's own limit;
    /// whatever the owner reports, the result is from 1 to `max_width`.
    pub fn on_answer(&self, now: Moment, key: u64, reported: Option<u64>, max_width: Width) {
        let width = Width::clamped(reported.unwrap_or(1), max_width);
        let (set, tag_of_key) = self.set_of(key);
        let entries = || set.iter().map(|entry| (entry, entry.load(Ordering::Relaxed)));
        let known = entries().find(|(_, entry)| *entry != 0 && tag(*entry) == tag_of_key).map(|(at, _)| at);
        if width == Width::ONE {
            if let Some(at) = known {
                at.store(0, Ordering::Relaxed);
            }
            return;
        }
        let expires_at = (seconds(now) + WIDTH_VALID_FOR.as_secs()).min(EXPIRES_MAX);
        let entry = (tag_of_key << (WIDTH_BITS + EXPIRES_BITS)) | (expires_at << WIDTH_BITS) | u64::from(width.get());
        // An empty entry expires at 0, before all others.
        if let Some(at) = known.or_else(|| entries().min_by_key(|(_, entry)| expires(*entry)).map(|(at, _)| at)) {
            at.store(entry, Ordering::Relaxed);
        }
    }

    /// The width of the key with that hash: 1 unless a report is valid.
    pub fn width_at(&self, now: Moment, key: u64) -> Width {
        let (set, tag_of_key) = self.set_of(key);
        let entries = set.iter().map(|entry| entry.load(Ordering::Relaxed));
        let valid = entries.filter(|entry| *entry != 0 && tag(*entry) == tag_of_key).find(|entry| expires(*entry) > seconds(now));
        valid.map_or(Width::ONE, |entry| Width::clamped(width(entry), Width::MAX))
    }

    /// How many reports are valid.
    pub fn len_at(&self, now: Moment) -> usize {
        let entries = self.entries.iter().map(|entry| entry.load(Ordering::Relaxed));
        entries.filter(|entry| expires(*entry) > seconds(now)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_width_is_used_for_thirty_seconds_or_until_the_owner_withdraws_it() {
        let (hints, key) = (WidthHints::default(), 0x0123_4567_89ab_cdef);
        assert_eq!(hints.width_at(at(100), key), Width::ONE);
        hints.on_answer(at(100), key, Some(3), Width::MAX);
        assert_eq!([100, 129, 130].map(|now| hints.width_at(at(now), key).get()), [3, 3, 1]);
        assert_eq!(hints.width_at(at(100), key ^ (1 << 40)), Width::ONE, "another key");
        hints.on_answer(at(110), key, Some(2), Width::MAX);
        assert_eq!((hints.width_at(at(139), key).get(), hints.len_at(at(139))), (2, 1));
        hints.on_answer(at(120), key, None, Width::MAX);
        assert_eq!((hints.width_at(at(120), key), hints.len_at(at(120))), (Width::ONE, 0));
    }

    #[test]
    fn whatever_is_reported_is_clamped() {
        let hints = WidthHints::default();
        let two = Width::new(2).unwrap();
        for (key, (reported, max, expected)) in
            (0..).zip([(u64::MAX, Width::MAX, 4), (9, two, 2), (4, Width::ONE, 1), (0, Width::MAX, 1), (2, two, 2)])
        {
            hints.on_answer(at(5), key, Some(reported), max);
            assert_eq!(hints.width_at(at(5), key).get(), expected, "{reported} of at most {max}");
        }
    }

    #[test]
    fn the_oldest_of_a_set_is_replaced() {
        let hints = WidthHints::default();
        // All of one set: the lower bits are equal.
        let key = |number: u64| (number << 32) | 5;
        for number in 1..=9 {
            hints.on_answer(at(100 + number), key(number), Some(2), Width::MAX);
        }
        let known: Vec<_> = (1..=9).filter(|number| hints.width_at(at(110), key(*number)) > Width::ONE).collect();
        assert_eq!(known, (2..=9).collect::<Vec<_>>());
    }

    #[test]
    fn a_flood_of_hot_keys_stays_bounded() {
        let hints = WidthHints::default();
        for key in 0..100_000_u64 {
            hints.on_answer(at(1), key.wrapping_mul(0x9e37_79b9_7f4a_7c15), Some(4), Width::MAX);
        }
        assert!(hints.len_at(at(1)) <= HOT_KEYS_MAX);
    }

    proptest! {
        /// Few keys, so that none is replaced: it is a map with expiry.
        #[test]
        fn few_keys_are_a_map(reports in prop::collection::vec((0u64..8, 0u64..7, 0u64..20), 1..60)) {
            let (hints, mut model, mut now) = (WidthHints::default(), HashMap::new(), 1_000);
            for (key, reported, pause) in reports {
                now += pause;
                let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                hints.on_answer(at(now), key, Some(reported), Width::MAX);
                model.insert(key, (Width::clamped(reported, Width::MAX), now + 30));
                for (key, (width, until)) in &model {
                    prop_assert_eq!(hints.width_at(at(now), *key), if *until > now { *width } else { Width::ONE });
                }
            }
        }
    }
}
