//! Clocks that run at different rates, and begin anywhere. The truth is in nanoseconds since the beginning of a life.

use rand::RngExt;
use rand::rngs::StdRng;
use shardwise_core::Moment;

/// By how much a clock may be faster or slower than the truth, in millionths: two may differ by 1 %, as `guarantees.md` allows.
pub(crate) const DRIFT_MAX: u64 = 5_000;
/// A millisecond of the truth.
pub(crate) const MS: u64 = 1_000_000;
const MILLION: u128 = 1_000_000;

/// A process's own clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnClock {
    begins: u64,
    per_million: u64,
}

impl OwnClock {
    /// Half of them are as slow or as fast as `drift` allows.
    pub(crate) fn drawn(dice: &mut StdRng, drift: u64) -> Self {
        let per_million = match dice.random_range(0..4) {
            0 => 1_000_000 - drift,
            1 => 1_000_000 + drift,
            _ => dice.random_range(1_000_000 - drift..=1_000_000 + drift),
        };
        // Beyond a day, so that the mistake of a wrong time does not end at the clock's beginning.
        let begins = dice.random_range(100_000_000_000_000..200_000_000_000_000);
        Self { begins, per_million }
    }

    /// Its reading at a moment of true time.
    pub(crate) fn shows(self, truth: u64) -> Moment {
        let passed = u128::from(truth) * u128::from(self.per_million) / MILLION;
        Moment::from_nanos(self.begins + u64::try_from(passed).expect("a life is short"))
    }

    /// The first moment of true time at which it shows that; the beginning, if it did so before.
    pub(crate) fn truth_of(self, reading: Moment) -> u64 {
        let passed = reading.as_nanos().saturating_sub(self.begins);
        let truth = (u128::from(passed) * MILLION).div_ceil(u128::from(self.per_million));
        u64::try_from(truth).expect("a life is short")
    }
}
