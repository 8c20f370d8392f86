//! A publisher's numbers, readable while it runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::decide::{PublisherSnapshot, Trouble};

/// Reads a running publisher's numbers; cheap to clone and to query.
#[derive(Debug, Clone, Default)]
pub struct PublisherStats(Arc<Mutex<StatsState>>);

#[derive(Debug, Default)]
struct StatsState {
    snapshot: PublisherSnapshot,
    turned: Option<Instant>,
}

impl PublisherStats {
    /// The current numbers.
    pub fn snapshot(&self) -> PublisherSnapshot {
        self.kept().snapshot.clone()
    }

    /// Time since the publisher's loop last ran, which happens several times per TTL; `None` before the first time. A publisher whose loop
    /// has not run for many TTLs hangs.
    pub fn turned_ago(&self) -> Option<Duration> {
        self.kept().turned.map(|turned| turned.elapsed())
    }

    fn kept(&self) -> MutexGuard<'_, StatsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, now: &PublisherSnapshot) {
        let mut kept = self.kept();
        let (last_error, trouble) = (kept.snapshot.last_error.take(), kept.snapshot.trouble);
        kept.turned = Some(Instant::now());
        kept.snapshot = PublisherSnapshot { last_error, trouble, ..*now };
    }

    /// `None` clears the last error.
    pub(super) fn note_error(&self, error: Option<(Trouble, String)>) {
        let (trouble, text) = error.unzip();
        let mut kept = self.kept();
        (kept.snapshot.trouble, kept.snapshot.last_error) = (trouble, text);
    }
}
