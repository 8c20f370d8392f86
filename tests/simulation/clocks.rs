//! Clocks that run at different rates, and begin anywhere.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use shardwise::Moment;
use shardwise::discovery::Clock;

/// By how much a member's clock may be faster or slower than the backend's, in millionths: 1 %, which is what is promised for.
pub(crate) const DRIFT_MAX: u64 = 10_000;
const MILLION: u64 = 1_000_000;

/// A member's own clock. The backend's shows the true time.
#[derive(Clone)]
pub(crate) struct OwnClock {
    truth: Clock,
    begins: u64,
    per_million: u64,
    /// By how much the wall clock is ahead of the truth, less [`WALL_OFF_MAX`].
    wall_ahead: Duration,
}

/// Wall clocks are off by so much at most, either way.
const WALL_OFF_MAX: Duration = Duration::from_secs(4);

impl OwnClock {
    /// Half of them are as slow or as fast as `drift` allows.
    pub(crate) fn drawn(dice: &mut StdRng, truth: &Clock, drift: u64) -> Self {
        let per_million = match dice.random_range(0..4) {
            0 => MILLION - drift,
            1 => MILLION + drift,
            _ => dice.random_range(MILLION - drift..=MILLION + drift),
        };
        let begins = dice.random_range(1_000_000_000..1_000_000_000_000);
        // Most of them are right within a tenth of a second.
        let off_max = if dice.random_bool(0.2) { 1.0 } else { 0.03 };
        let wall_ahead = WALL_OFF_MAX.mul_f64(1.0 + dice.random_range(-off_max..off_max));
        Self { truth: truth.clone(), begins, per_million, wall_ahead }
    }

    /// Its reading at a moment of true time.
    pub(crate) fn shows(&self, at: Moment) -> Moment {
        let passed = (u128::from(at.as_nanos()) * u128::from(self.per_million)).div_ceil(u128::from(MILLION));
        Moment::from_nanos(self.begins + u64::try_from(passed).unwrap_or(u64::MAX))
    }

    pub(crate) fn now(&self) -> Moment {
        self.shows(self.truth.now())
    }

    /// As the library takes it.
    pub(crate) fn clock(&self) -> Clock {
        let (own, truth, ahead) = (self.clone(), self.truth.clone(), self.wall_ahead);
        Clock::custom(move || own.now()).with_time_of_day(move || truth.since_1970() + ahead)
    }
}
