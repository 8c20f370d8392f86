//! Asking for what others hold in this member's place.
//!
//! A member that could not claim for a TTL, for example because it was fenced or saw no view, finds that the next in line has taken its
//! share. If the group did not change meanwhile, the others learn that it can own again from its record alone.

use std::time::Duration;

use crate::Moment;
use crate::backoff::exponential;
use crate::mistakes::{Mistake, made};

/// The first time it waits a TTL divided by this. A handover in which no work is in flight takes much less; one that takes longer is asked
/// for needlessly, which costs one write.
const FIRST_DIVISOR: u32 = 2;
/// Each further time it waits twice as long, up to so many TTLs, because what is held may be work that does not end.
const TTLS_MAX: u32 = 16;

/// How often this member has asked, and since when it waits.
#[derive(Debug, Default)]
pub(super) struct Reclaims {
    count: u64,
    waiting_since: Option<Moment>,
    repeated: u32,
}

impl Reclaims {
    /// This member has its share, or the placement has changed, so that the others give back what is not theirs without being asked.
    pub(super) const fn start_over(&mut self) {
        (self.waiting_since, self.repeated) = (None, 0);
    }

    /// Takes note whether others hold what this member could use. Returns the new count if it is time to ask. A member that does not wait
    /// and still lacks a part of its share has not acquired what it was given: its next wait is not shorter for that, or else this part
    /// would go to and fro, and have no owner for most of the time.
    pub(super) fn scan(&mut self, now: Moment, ttl: Duration, waits: bool) -> Option<u64> {
        if !waits || made(Mistake::NeverReclaims) {
            self.waiting_since = None;
            return None;
        }
        let since = *self.waiting_since.get_or_insert(now);
        if now < since.plus(exponential(ttl / FIRST_DIVISOR, self.repeated, ttl * TTLS_MAX)) {
            return None;
        }
        (self.waiting_since, self.repeated) = (Some(now), self.repeated.saturating_add(1));
        self.count += 1;
        Some(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(4);

    /// The seconds at which a member that waits asks.
    fn asks(reclaims: &mut Reclaims, from: u64, until: u64) -> Vec<u64> {
        (from..until).filter(|s| reclaims.scan(Moment::from_nanos(s * 1_000_000_000), TTL, true).is_some()).collect()
    }

    #[test]
    fn it_asks_after_half_a_ttl_and_each_time_waits_twice_as_long_up_to_sixteen_ttls() {
        let mut reclaims = Reclaims::default();
        assert_eq!(asks(&mut reclaims, 10, 300), [12, 16, 24, 40, 72, 136, 200, 264]);
        assert_eq!(reclaims.count, 8);
    }

    #[test]
    fn only_a_member_that_has_its_share_or_sees_another_group_begins_again() {
        let mut reclaims = Reclaims::default();
        assert_eq!(asks(&mut reclaims, 0, 8), [2, 6]);
        assert_eq!(reclaims.scan(Moment::from_nanos(8_000_000_000), TTL, false), None);
        assert_eq!(asks(&mut reclaims, 9, 20), [17], "it did not acquire what it was given");
        reclaims.start_over();
        assert_eq!(asks(&mut reclaims, 20, 24), [22]);
        assert_eq!(reclaims.count, 4, "the count only rises");
    }
}
