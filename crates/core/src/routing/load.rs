//! What one process knows of the load of one member: its own requests there, the load that the member last reported, and failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::Undelivered;
use crate::Moment;
use crate::mistakes::{Mistake, made};

/// A reported load counts half after this time, a quarter after twice this time, and so on.
pub const LOAD_HALVES_EVERY: Duration = Duration::from_secs(5);
/// How long a member counts as failing after an attempt that failed.
pub const FAILING_FOR: Duration = Duration::from_secs(2);
/// How long a member counts as busy after it refused a request for that, if it does not say for how long.
pub const BUSY_FOR: Duration = Duration::from_millis(500);
/// The longest time for which it does.
pub const BUSY_FOR_MAX: Duration = Duration::from_secs(2);
/// The largest reported load; a higher one counts as this.
pub const LOAD_MAX: u32 = (1 << LOAD_BITS) - 1;

const LOAD_BITS: u32 = 20;
/// The milliseconds that fit above the load: 557 years since the clock's beginning.
const MILLIS_MAX: u64 = u64::MAX >> LOAD_BITS;

/// What this process knows of the load of one incarnation of a member. All methods may be called from any thread and take no lock.
#[derive(Debug, Default)]
pub struct PeerLoad {
    in_flight: AtomicU32,
    /// The load last reported, in the lowest [`LOAD_BITS`], and the millisecond of the report. One word, so that no reader combines two
    /// reports.
    reported: AtomicU64,
    /// In nanoseconds.
    failing_until: AtomicU64,
    /// In nanoseconds.
    busy_until: AtomicU64,
}

impl PeerLoad {
    /// Counts a request to the member as in flight until the result is dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// The member answered, so it does not count as failing or busy any more. `load` is the load that it reported with the answer, at most
    /// [`LOAD_MAX`].
    pub fn on_answer(&self, now: Moment, load: Option<u64>) {
        self.failing_until.store(0, Ordering::Relaxed);
        self.busy_until.store(0, Ordering::Relaxed);
        if let Some(load) = load {
            self.reported.store((millis(now) << LOAD_BITS) | load.min(u64::from(LOAD_MAX)), Ordering::Relaxed);
        }
    }

    /// An attempt failed: the member counts as failing for [`FAILING_FOR`], or until it answers.
    pub fn on_failure(&self, now: Moment) {
        if !made(Mistake::FailureForgotten) {
            self.failing_until.store(now.plus(FAILING_FOR).as_nanos(), Ordering::Relaxed);
        }
    }

    /// The member refused a request because it has too many, and asks not to be tried again within `after`: it counts as busy for that
    /// time, at most [`BUSY_FOR_MAX`], or until it answers. Without this it would look idle, because what it refuses is not in flight.
    pub fn on_busy(&self, now: Moment, after: Duration) {
        if !made(Mistake::RefusalForgotten) {
            self.busy_until.store(now.plus(after.min(BUSY_FOR_MAX)).as_nanos(), Ordering::Relaxed);
        }
    }

    /// What an attempt without an answer says of the member.
    pub fn on_undelivered(&self, now: Moment, outcome: &Undelivered) {
        match outcome {
            Undelivered::Busy(after) => self.on_busy(now, after.unwrap_or(BUSY_FOR)),
            Undelivered::NotMine(_) => {}
            Undelivered::Unsent(_) | Undelivered::Unproven(_) | Undelivered::Barred(_) | Undelivered::Unknown(_) => self.on_failure(now),
        }
    }

    /// The requests of this process to the member that are in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The load that the member last reported, halved every [`LOAD_HALVES_EVERY`]; 0 without a report.
    pub fn load_at(&self, now: Moment) -> u32 {
        let reported = self.reported.load(Ordering::Relaxed);
        let load = u32::try_from(reported & u64::from(LOAD_MAX)).unwrap_or(LOAD_MAX);
        if made(Mistake::LoadNeverAges) {
            return load;
        }
        let age = millis(now).saturating_sub(reported >> LOAD_BITS);
        let halvings = age / (LOAD_HALVES_EVERY.as_secs() * 1_000);
        u32::try_from(halvings).ok().and_then(|halvings| load.checked_shr(halvings)).unwrap_or(0)
    }

    /// Whether an attempt failed within the last [`FAILING_FOR`] and no answer came since.
    pub fn is_failing_at(&self, now: Moment) -> bool {
        self.failing_until.load(Ordering::Relaxed) > now.as_nanos()
    }

    /// Whether it refused a request because it has too many, the time that it asked for is not over, and no answer came since.
    pub fn is_busy_at(&self, now: Moment) -> bool {
        self.busy_until.load(Ordering::Relaxed) > now.as_nanos()
    }
}

fn millis(now: Moment) -> u64 {
    (now.as_nanos() / 1_000_000).min(MILLIS_MAX)
}

/// A request that counts as in flight at one member until this is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<PeerLoad>);

impl InFlight {
    /// The load of that member, for the outcome of the request.
    pub fn peer(&self) -> &PeerLoad {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_dropped() {
        let load = Arc::new(PeerLoad::default());
        let (one, other) = (load.begin(), load.begin());
        assert_eq!(load.in_flight(), 2);
        drop(one);
        assert_eq!(other.peer().in_flight(), 1);
        drop(other);
        assert_eq!(load.in_flight(), 0);
    }

    #[test]
    fn a_reported_load_halves_every_five_seconds() {
        let load = PeerLoad::default();
        assert_eq!(load.load_at(at(7)), 0, "without a report");
        load.on_answer(at(1_000), Some(100));
        let seen = [1_000, 5_999, 6_000, 10_999, 11_000, 41_000, 1_000_000].map(|millis| load.load_at(at(millis)));
        assert_eq!(seen, [100, 100, 50, 50, 25, 0, 0]);
        assert_eq!(load.load_at(at(0)), 100, "a reader whose clock reading is older than the report");
        load.on_answer(at(2_000), None);
        assert_eq!(load.load_at(at(2_000)), 100, "an answer without a load changes nothing");
    }

    #[test]
    fn a_failure_counts_for_two_seconds_or_until_an_answer() {
        let load = PeerLoad::default();
        assert!(!load.is_failing_at(at(0)));
        load.on_failure(at(1_000));
        assert_eq!([1_000, 2_999, 3_000].map(|millis| load.is_failing_at(at(millis))), [true, true, false]);
        load.on_failure(at(5_000));
        load.on_answer(at(5_100), None);
        assert!(!load.is_failing_at(at(5_100)));
    }

    #[test]
    fn a_refusal_counts_for_as_long_as_the_member_asks_or_until_an_answer() {
        let load = PeerLoad::default();
        load.on_busy(at(1_000), Duration::from_millis(500));
        assert_eq!([1_000, 1_499, 1_500].map(|millis| load.is_busy_at(at(millis))), [true, true, false]);
        load.on_busy(at(5_000), Duration::from_hours(1));
        assert_eq!([6_999, 7_000].map(|millis| load.is_busy_at(at(millis))), [true, false], "it does not decide alone for how long");
        load.on_busy(at(8_000), Duration::from_secs(1));
        load.on_answer(at(8_100), None);
        assert!(!load.is_busy_at(at(8_100)) && !load.is_failing_at(at(8_100)));
    }

    proptest! {
        #[test]
        fn no_report_exceeds_the_bound_and_none_grows(reported in any::<u64>(), at in any::<u64>(), later in any::<u64>()) {
            let (load, reported_at) = (PeerLoad::default(), Moment::from_nanos(at));
            load.on_answer(reported_at, Some(reported));
            prop_assert_eq!(u64::from(load.load_at(reported_at)), reported.min(u64::from(LOAD_MAX)));
            let (first, second) = (at.min(later), at.max(later));
            prop_assert!(load.load_at(Moment::from_nanos(second)) <= load.load_at(Moment::from_nanos(first)));
        }
    }
}
