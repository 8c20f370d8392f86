//! The owner's side of width: it widens a key that it cannot serve alone, and narrows it after a quiet time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{HOT_KEYS_MAX, Width, WidthError};
use crate::Moment;
use crate::mistakes::{Mistake, made};

/// A key that is still saturated is widened by one member after this time, in which callers learn the last width.
pub const WIDEN_EVERY: Duration = Duration::from_millis(200);
/// A key is narrowed by one member after this time without saturation.
pub const NARROW_AFTER: Duration = Duration::from_mins(1);

/// When and how far an owner widens keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WidthRules {
    /// A key is saturated while more of its requests than this are in flight at its owner.
    pub saturated_at: u32,
    /// The largest width; [`Width::ONE`] under exclusive ownership.
    pub max_width: Width,
}

/// The widths of the keys that one member owns.
///
/// It has an entry for each key with a request in flight, and for each key of a width above 1. Of the latter it keeps
/// [`HOT_KEYS_MAX`]; beyond that, the one that was not saturated for the longest time becomes narrow.
#[derive(Debug)]
pub struct OwnerWidths {
    rules: WidthRules,
    /// By the hash of the key.
    keys: BTreeMap<u64, KeyWidth>,
}

#[derive(Debug, Clone, Copy)]
struct KeyWidth {
    in_flight: u32,
    width: Width,
    /// When the key was last saturated, or its width was set or narrowed.
    quiet_since: Moment,
    /// When its width was last raised.
    raised: Option<Moment>,
}

impl KeyWidth {
    const fn new(now: Moment) -> Self {
        Self { in_flight: 0, width: Width::ONE, quiet_since: now, raised: None }
    }

    const fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    fn is_needed(&self) -> bool {
        !self.is_idle() || self.width > Width::ONE
    }

    fn narrow(&mut self, now: Moment) {
        while self.width > Width::ONE && now.since(self.quiet_since) >= NARROW_AFTER && !made(Mistake::WidthNeverNarrows) {
            self.width = self.width.narrower();
            self.quiet_since = self.quiet_since.plus(NARROW_AFTER);
        }
    }

    fn saturated(&mut self, now: Moment, max_width: Width) {
        self.quiet_since = now;
        if self.raised.is_none_or(|raised| now.since(raised) >= WIDEN_EVERY) {
            (self.width, self.raised) = (self.width.wider(max_width), Some(now));
        }
    }
}

impl OwnerWidths {
    /// No key is wide.
    pub const fn new(rules: WidthRules) -> Self {
        Self { rules, keys: BTreeMap::new() }
    }

    /// A request for the key with that hash begins. If the key is saturated, it may become wider.
    pub fn begin(&mut self, now: Moment, key: u64) {
        let rules = self.rules;
        let entry = self.entry(now, key);
        entry.in_flight = entry.in_flight.saturating_add(1);
        if entry.in_flight > rules.saturated_at {
            entry.saturated(now, rules.max_width);
        }
    }

    /// A request for the key ended. Returns the width to report with its answer; 1 need not be reported.
    pub fn finish(&mut self, now: Moment, key: u64) -> Width {
        let Some(entry) = self.keys.get_mut(&key) else { return Width::ONE };
        entry.narrow(now);
        entry.in_flight = entry.in_flight.saturating_sub(1);
        let entry = *entry;
        if !entry.is_needed() {
            self.keys.remove(&key);
        }
        entry.width
    }

    /// Sets the width of a key, also to a lower one. It is narrowed like any other unless it is set again within [`NARROW_AFTER`].
    ///
    /// # Errors
    ///
    /// [`WidthError::Exclusive`] if `max_width` is 1, [`WidthError::OutOfRange`] above `max_width`.
    pub fn widen(&mut self, now: Moment, key: u64, width: Width) -> Result<(), WidthError> {
        let max_width = self.rules.max_width;
        if max_width == Width::ONE {
            return Err(WidthError::Exclusive);
        }
        if width > max_width {
            return Err(WidthError::OutOfRange { given: u64::from(width.get()), most: max_width });
        }
        let entry = self.entry(now, key);
        (entry.width, entry.quiet_since) = (width, now);
        let entry = *entry;
        if !entry.is_needed() {
            self.keys.remove(&key);
        }
        Ok(())
    }

    /// The keys that are wide at `now`, with their widths, by hash: for pages and metrics.
    pub fn wide_at(&self, now: Moment) -> impl Iterator<Item = (u64, Width)> {
        let at_now = move |(key, entry): (&u64, &KeyWidth)| {
            let mut entry = *entry;
            entry.narrow(now);
            (*key, entry.width)
        };
        self.keys.iter().map(at_now).filter(|(_, width)| *width > Width::ONE)
    }

    /// How many keys it keeps.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it keeps no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The entry of a key, narrowed to what it is at `now`; made if there is none.
    fn entry(&mut self, now: Moment, key: u64) -> &mut KeyWidth {
        if self.keys.len() >= HOT_KEYS_MAX && !self.keys.contains_key(&key) {
            self.make_room(now);
        }
        let entry = self.keys.entry(key).or_insert_with(|| KeyWidth::new(now));
        entry.narrow(now);
        entry
    }

    fn make_room(&mut self, now: Moment) {
        self.keys.retain(|_, entry| {
            entry.narrow(now);
            entry.is_needed()
        });
        if self.keys.len() >= HOT_KEYS_MAX {
            // Keys with requests in flight stay: those are as many as the member handles at once.
            let idle = self.keys.iter().filter(|(_, entry)| entry.is_idle());
            if let Some(oldest) = idle.min_by_key(|(_, entry)| entry.quiet_since).map(|(key, _)| *key) {
                self.keys.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn rules(saturated_at: u32, max_width: u64) -> WidthRules {
        WidthRules { saturated_at, max_width: Width::new(max_width).unwrap() }
    }

    #[test]
    fn a_saturated_key_is_widened_step_by_step_and_narrowed_after_quiet_minutes() {
        let mut widths = OwnerWidths::new(rules(2, 4));
        for _ in 0..2 {
            widths.begin(at(0), 7);
        }
        assert_eq!(widths.wide_at(at(0)).count(), 0, "two are allowed");
        for millis in [0, 100, 199, 200, 399, 400, 900] {
            widths.begin(at(millis), 7);
        }
        assert_eq!(widths.wide_at(at(900)).collect::<Vec<_>>(), [(7, Width::MAX)]);
        let reported: Vec<_> = (0..9).map(|_| widths.finish(at(1_000), 7).get()).collect();
        assert_eq!(reported, [4; 9]);
        let later = [60_899, 60_900, 120_900, 180_900].map(|millis| widths.wide_at(at(millis)).map(|(_, width)| width.get()).next());
        assert_eq!(later, [Some(4), Some(3), Some(2), None]);
        widths.begin(at(180_900), 7);
        assert_eq!((widths.finish(at(180_901), 7), widths.is_empty()), (Width::ONE, true), "memory returns");
    }

    #[test]
    fn the_first_widths_follow_the_pauses() {
        let mut widths = OwnerWidths::new(rules(0, 4));
        let mut after = |millis| {
            widths.begin(at(millis), 1);
            widths.wide_at(at(millis)).map(|(_, width)| width.get()).next()
        };
        assert_eq!([0, 199, 200, 399, 400, 1_000].map(&mut after), [Some(2), Some(2), Some(3), Some(3), Some(4), Some(4)]);
    }

    #[test]
    fn a_set_width_is_kept_for_a_minute_and_may_be_lowered() {
        let mut widths = OwnerWidths::new(rules(10, 3));
        widths.widen(at(0), 7, Width::new(3).unwrap()).unwrap();
        widths.begin(at(59_000), 7);
        assert_eq!(widths.finish(at(59_999), 7).get(), 3);
        widths.begin(at(60_000), 7);
        assert_eq!(widths.finish(at(60_000), 7).get(), 2);
        widths.widen(at(61_000), 7, Width::ONE).unwrap();
        assert!(widths.is_empty());
        let refused = widths.widen(at(0), 7, Width::MAX).unwrap_err().to_string();
        assert_eq!(refused, "width is 4; whole numbers from 1 to 3 are allowed");
    }

    #[test]
    fn under_exclusive_ownership_no_key_is_wide() {
        let mut widths = OwnerWidths::new(rules(0, 1));
        for millis in 0..10 {
            widths.begin(at(millis * 1_000), 7);
        }
        assert_eq!((widths.finish(at(10_000), 7), widths.widen(at(0), 7, Width::ONE)), (Width::ONE, Err(WidthError::Exclusive)));
    }

    #[test]
    fn beyond_the_limit_the_key_that_was_quiet_longest_becomes_narrow() {
        let mut widths = OwnerWidths::new(rules(0, 4));
        for key in 0..=HOT_KEYS_MAX as u64 {
            widths.begin(at(key), key);
            widths.finish(at(key), key);
        }
        let wide: Vec<_> = widths.wide_at(at(2_000)).map(|(key, _)| key).collect();
        assert_eq!((wide.len(), wide.first()), (HOT_KEYS_MAX, Some(&1)));
    }

    proptest! {
        #[test]
        fn widths_stay_in_range_and_all_memory_returns(
            steps in prop::collection::vec((0u64..6, 0u8..3, 0u64..40_000), 1..200),
            saturated_at in 0u32..4,
            max_width in 1u64..5,
        ) {
            let rules = rules(saturated_at, max_width);
            let (mut widths, mut in_flight, mut now) = (OwnerWidths::new(rules), [0_u32; 6], 0);
            for (key, what, pause) in steps {
                now += pause;
                let count = &mut in_flight[usize::try_from(key).unwrap()];
                match what {
                    0 => {
                        widths.begin(at(now), key);
                        *count += 1;
                    }
                    1 if *count > 0 => {
                        let width = widths.finish(at(now), key);
                        *count -= 1;
                        prop_assert!((Width::ONE..=rules.max_width).contains(&width));
                    }
                    _ => prop_assert_eq!(widths.widen(at(now), key, rules.max_width).is_ok(), max_width > 1),
                }
                prop_assert!(widths.wide_at(at(now)).all(|(_, width)| width <= rules.max_width));
            }
            for (key, count) in (0..).zip(in_flight) {
                for _ in 0..count {
                    widths.finish(at(now), key);
                }
                // Three quiet minutes are enough for the largest width.
                widths.begin(at(now + 240_000), key);
                prop_assert_eq!(widths.finish(at(now + 240_000), key) > Width::ONE, saturated_at == 0 && max_width > 1);
            }
            let later = at(now + 600_000);
            prop_assert_eq!(widths.wide_at(later).count(), 0);
        }
    }
}
