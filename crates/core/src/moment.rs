//! A point in time on a clock that continues during suspend.

use std::fmt;
use std::time::Duration;

/// Nanoseconds on the machine's boot clock (`CLOCK_BOOTTIME` on Linux), which never jumps and continues while the machine sleeps.
///
/// Moments of two machines, or of two boots of one machine, are not comparable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The clock's beginning; before every other moment.
    pub const ZERO: Self = Self(0);

    /// A moment from nanoseconds since the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` moved later by `by`; saturates at the clock's end.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// `self` moved earlier by `by`; saturates at zero.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let late = Moment::from_nanos(u64::MAX - 1);
        assert_eq!(late.plus(Duration::from_secs(9)).as_nanos(), u64::MAX);
        assert_eq!(Moment::from_nanos(5).minus(Duration::from_secs(1)), Moment::ZERO);
        assert_eq!(Moment::ZERO.since(late), Duration::ZERO);
    }
}
