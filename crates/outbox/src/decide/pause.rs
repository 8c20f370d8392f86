//! Backoff after failed calls to the store.

use std::time::Duration;

use shardwise::Moment;
use shardwise::core::Backoff;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// A backoff that grows with every consecutive failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    backoff: Backoff,
    until: Moment,
}

impl Default for Pause {
    fn default() -> Self {
        Self { backoff: Backoff::new(FIRST, LONGEST), until: Moment::ZERO }
    }
}

impl Pause {
    pub(crate) fn failed(&mut self, now: Moment) {
        self.until = now.plus(self.backoff.fail());
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn over(&self, now: Moment) -> bool {
        now >= self.until
    }

    pub(crate) fn until(&self, now: Moment) -> Option<Moment> {
        (!self.over(now)).then_some(self.until)
    }
}
