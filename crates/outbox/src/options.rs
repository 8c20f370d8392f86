//! The options of a publisher.

use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// The longest wait between two attempts, whatever `backoff` grows to.
pub const RETRY_DELAY_MAX: Duration = Duration::from_mins(5);
/// The most events of one batch.
pub const BATCH_MAX: usize = 10_000;

/// What happens to an event that has used up its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Poison {
    /// It stays at the head, and its aggregate waits for an operator; every other aggregate continues.
    #[default]
    Block,
    /// It is parked (set aside), and the aggregate continues with the next event.
    Park,
    /// It is given up permanently, with an entry in the outbox's audit table, and the aggregate continues with the next event.
    Discard,
}

/// How a publisher works. The defaults are those of the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublisherOptions {
    /// The most events fetched, sent and marked together: 1 to 10,000, default 1,000.
    pub batch: usize,
    /// Charged attempts after which `poison` applies: 1 or more, default 10.
    pub max_attempts: u32,
    /// The wait after the first failed attempt, doubled after each further failure up to five minutes: more than zero, default 1 s.
    pub backoff: Duration,
    /// What happens to an event that has used up its attempts; default `block`.
    pub poison: Poison,
    /// After this time failures are charged even if the destination accepts nothing at all; default 1 h.
    pub outage_limit: Duration,
    /// The longest interval between two checks of the outbox: 25 ms or more, default 1 s.
    pub poll: Duration,
    /// How long delivered events are kept, counted from when they were written; zero deletes them together with the mark; default 6 h.
    pub retention: Duration,
    /// How long parked events are kept, counted from when they were parked; more than zero, default 7 days.
    pub parked_retention: Duration,
    /// How long a sink may take for one batch before the send times out: more than zero, default 30 s.
    pub send_timeout: Duration,
    /// How long a graceful stop waits for what is in flight; default 30 s.
    pub drain_timeout: Duration,
}

impl Default for PublisherOptions {
    fn default() -> Self {
        Self {
            batch: 1_000,
            max_attempts: 10,
            backoff: Duration::from_secs(1),
            poison: Poison::Block,
            outage_limit: Duration::from_hours(1),
            poll: Duration::from_secs(1),
            retention: Duration::from_hours(6),
            parked_retention: Duration::from_hours(7 * 24),
            send_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

impl PublisherOptions {
    /// The shortest `poll`, and the pause between two checks while there is work.
    pub const POLL_MIN: Duration = Duration::from_millis(25);

    /// The most events in the first reading after a quiet time, which keeps the first reading of a large backlog short: each waiting event
    /// may lie in a different block. While readings are full, each one fetches twice as many events as the one before, up to `batch`.
    pub const POLL_EVENTS: usize = 250;

    /// Checks every option; the error names the option, its value and the allowed values.
    pub fn validated(self) -> Result<Self> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Settings, what));
        if !(1..=BATCH_MAX).contains(&self.batch) {
            return refuse(format!("batch is {}: a number from 1 to {BATCH_MAX} is allowed", self.batch));
        }
        if self.max_attempts == 0 {
            return refuse("max_attempts is 0: a number from 1 is allowed".into());
        }
        if self.poll < Self::POLL_MIN {
            return refuse(format!("poll is {:?}: 25ms or more is allowed", self.poll));
        }
        let needed = [("backoff", self.backoff), ("parked_retention", self.parked_retention), ("send_timeout", self.send_timeout)];
        match needed.iter().find(|(_, duration)| duration.is_zero()) {
            Some((name, _)) => refuse(format!("{name} is 0s: more than zero is needed")),
            None => Ok(self),
        }
    }
}
