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
        self.locked().snapshot.clone()
    }

    /// Time since the publisher's loop last ran, which happens several times per TTL; `None` before the first time. A publisher whose loop
    /// has not run for many TTLs hangs.
    pub fn turned_ago(&self) -> Option<Duration> {
        self.locked().turned.map(|turned| turned.elapsed())
    }

    fn locked(&self) -> MutexGuard<'_, StatsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, now: &PublisherSnapshot) {
        let mut state = self.locked();
        let (last_error, trouble) = (state.snapshot.last_error.take(), state.snapshot.trouble);
        state.turned = Some(Instant::now());
        state.snapshot = PublisherSnapshot { last_error, trouble, ..*now };
    }

    /// `None` clears the last error.
    pub(super) fn note_error(&self, error: Option<(Trouble, String)>) {
        let (trouble, text) = error.unzip();
        let mut state = self.locked();
        (state.snapshot.trouble, state.snapshot.last_error) = (trouble, text);
    }
}
