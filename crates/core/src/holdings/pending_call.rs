//! One call at a time, with growing pauses after failures.

use std::time::Duration;

use crate::{Backoff, Moment};

/// First pause after a call that failed.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// The longest pause after calls that failed.
const RETRY_LONGEST: Duration = Duration::from_secs(1);

/// A call that is under way, or when the next may be made.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) in_flight: Option<u64>,
    pub(super) backoff: Backoff,
    pub(super) not_before: Moment,
}

impl PendingCall {
    /// Nothing under way, and nothing to wait for.
    pub(super) const IDLE: Self = Self { in_flight: None, backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST), not_before: Moment::ZERO };

    pub(super) fn is_free(&self, now: Moment) -> bool {
        self.in_flight.is_none() && now >= self.not_before
    }

    /// Whether this is the answer that is waited for; if so, it is no longer.
    pub(super) fn answered(&mut self, attempt: u64) -> bool {
        self.in_flight.take_if(|awaited| *awaited == attempt).is_some()
    }

    /// The call failed: the next one is made after a pause that doubles.
    pub(super) fn failed(&mut self, attempt: u64, now: Moment) -> bool {
        let awaited = self.answered(attempt);
        if awaited {
            self.not_before = now.plus(self.backoff.fail());
        }
        awaited
    }
}
