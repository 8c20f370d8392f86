//! What is written, and how fast destinations are.

use std::ops::Range;

use super::{KINDS, World};
use crate::Delivery;
use crate::sink::SinkLimits;

/// A destination is slow for a while: so much later than otherwise a batch arrives there.
const SLOW_MS: Range<u64> = 10_000..17_000;
pub(super) const SLOW_BY_MS: u64 = 1_500;
/// Where nothing else happens, it lasts longer, and an event for the other destination arrives within this time.
const LONG_SLOW_MS: Range<u64> = 3_000..17_000;
const QUICK_WITHIN_MS: u64 = 8_000;
/// How often an event was refused or put back.
pub(super) const RETRIED: &str = "heads recorded as retried later";

/// What is written, and for which destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Traffic {
    /// For one destination or for several, as each publisher draws it.
    Mixed,
    /// Two thirds for a destination that is slow for a while, one event a send, and the rest for another one.
    OneSlow,
    /// The same, as much as can be sent, and nothing is slow.
    Busy,
}

/// Whether the event is for the other destination.
pub(super) const fn is_quick(event: &Delivery) -> bool {
    event.aggregate % KINDS == 0
}

impl Traffic {
    /// How many milliseconds pass between two events on average.
    pub(super) const fn writes_every_ms(self) -> u64 {
        match self {
            Self::Mixed | Self::OneSlow => 4,
            Self::Busy => 1,
        }
    }

    /// Checks that an event which took so many milliseconds from its writing on was not delayed by another destination.
    pub(super) fn check(self, event: &Delivery, now: u64, took_ms: u64) {
        let is_late = self == Self::OneSlow && is_quick(event) && took_ms > QUICK_WITHIN_MS;
        assert!(!is_late, "{} arrived after {took_ms} ms, at {now} ms", event.id);
    }
}

impl World {
    pub(super) fn limits(&mut self) -> SinkLimits {
        match self.traffic {
            Traffic::Mixed => {
                SinkLimits { concurrency: 1 + usize::try_from(self.below(3)).unwrap(), mixed: self.below(2) == 0, ..SinkLimits::default() }
            }
            Traffic::OneSlow | Traffic::Busy => SinkLimits { batch_events: 1, concurrency: 4, mixed: false, ..SinkLimits::default() },
        }
    }

    pub(super) fn is_slow(&self, batch: &[Delivery]) -> bool {
        match self.traffic {
            Traffic::Mixed => self.faults && SLOW_MS.contains(&self.now) && batch.iter().any(|event| event.aggregate % KINDS == 1),
            Traffic::OneSlow => LONG_SLOW_MS.contains(&self.now) && !batch.iter().any(is_quick),
            Traffic::Busy => false,
        }
    }
}
