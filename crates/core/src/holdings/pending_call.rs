//! One call at a time, with growing pauses after failures.

use std::time::Duration;

use crate::{Backoff, Moment};

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(1);

/// The call under way, or the moment from which the next one may start.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) in_flight: Option<u64>,
    pub(super) backoff: Backoff,
    pub(super) not_before: Moment,
}

impl PendingCall {
    pub(super) const IDLE: Self = Self { in_flight: None, backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST), not_before: Moment::ZERO };

    pub(super) fn is_free(&self, now: Moment) -> bool {
        self.in_flight.is_none() && now >= self.not_before
    }

    /// Whether this answers the call under way; if so, no call is under way any more.
    pub(super) fn answered(&mut self, attempt: u64) -> bool {
        self.in_flight.take_if(|awaited| *awaited == attempt).is_some()
    }

    /// Handles a failed call: the next one follows after a pause that doubles.
    pub(super) fn failed(&mut self, attempt: u64, now: Moment) -> bool {
        let awaited = self.answered(attempt);
        if awaited {
            self.not_before = now.plus(self.backoff.fail());
        }
        awaited
    }
}
