//! Asking for what others hold in this member's place.
//!
//! A member that could not claim for a TTL, for example because it was fenced or saw no view, finds that the next in line has taken its
//! share. If the group did not change meanwhile, nothing tells the others that it is able again: its record says it.

use std::time::Duration;

use crate::Moment;
use crate::mistakes::{Mistake, made};

/// The first time it waits a TTL divided by this. A handover in which no work is in flight takes much less; one that takes longer is asked
/// for needlessly, which costs one write.
const FIRST_DIVISOR: u32 = 2;
/// Each further time it waits twice as long, up to 16 TTLs, because what is held may be work that does not end.
const DOUBLINGS_MAX: u32 = 5;

/// How often this member has asked, and since when it waits.
#[derive(Debug, Default)]
pub(super) struct Reclaims {
    count: u64,
    waiting_since: Option<Moment>,
    repeated: u32,
}

impl Reclaims {
    /// The placement has changed, so that the others give back what is not theirs without being asked.
    pub(super) const fn start_over(&mut self) {
        (self.waiting_since, self.repeated) = (None, 0);
    }

    /// Takes note whether others hold what this member wants. Returns the new count if it is time to ask.
    pub(super) fn look(&mut self, now: Moment, ttl: Duration, waits: bool) -> Option<u64> {
        if !waits || made(Mistake::NeverReclaims) {
            self.start_over();
            return None;
        }
        let since = *self.waiting_since.get_or_insert(now);
        if now < since.plus(ttl / FIRST_DIVISOR * (1 << self.repeated)) {
            return None;
        }
        (self.waiting_since, self.repeated) = (Some(now), (self.repeated + 1).min(DOUBLINGS_MAX));
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
        (from..until).filter(|s| reclaims.look(Moment::from_nanos(s * 1_000_000_000), TTL, true).is_some()).collect()
    }

    #[test]
    fn it_asks_after_half_a_ttl_and_each_time_waits_twice_as_long_up_to_sixteen_ttls() {
        let mut reclaims = Reclaims::default();
        assert_eq!(asks(&mut reclaims, 10, 300), [12, 16, 24, 40, 72, 136, 200, 264]);
        assert_eq!(reclaims.count, 8);
    }

    #[test]
    fn a_member_that_waits_no_more_or_sees_another_group_begins_again() {
        let mut reclaims = Reclaims::default();
        assert_eq!(asks(&mut reclaims, 0, 8), [2, 6]);
        assert_eq!(reclaims.look(Moment::from_nanos(8_000_000_000), TTL, false), None);
        assert_eq!(asks(&mut reclaims, 9, 15), [11]);
        reclaims.start_over();
        assert_eq!(asks(&mut reclaims, 15, 19), [17]);
        assert_eq!(reclaims.count, 4, "the count only rises");
    }
}
