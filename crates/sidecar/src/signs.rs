//! What this worker has seen, and when: its renewals, and the view that it goes by.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use shardwise::{Ownership, Rebalance, core::Moment};

/// See the module. By the clock of the deadlines.
#[derive(Debug, Default)]
pub(crate) struct Signs(Mutex<Seen>);

#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    deadline: Option<Moment>,
    /// When the latest renewal was answered that moved the deadline.
    renewed: Option<Moment>,
    /// The view's number, and when it was first gone by.
    view: Option<(u64, Moment)>,
}

impl Signs {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        // Whole after each assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A snapshot that was published just now.
    pub(crate) fn saw(&self, ownership: &Ownership, now: Moment) {
        let (mut seen, revision) = (self.seen(), ownership.view().revision());
        if ownership.deadline() > seen.deadline {
            seen.renewed = Some(now);
        }
        seen.deadline = ownership.deadline();
        if seen.view.is_none_or(|(known, _)| known != revision) {
            seen.view = Some((revision, now));
        }
    }

    /// How long ago the latest renewal was answered; `None` before the first one.
    pub(crate) fn renewed_ago(&self, now: Moment) -> Option<Duration> {
        self.seen().renewed.map(|at| now.since(at))
    }

    /// For how long this worker has gone by its view.
    pub(crate) fn viewed_ago(&self, now: Moment) -> Option<Duration> {
        self.seen().view.map(|(_, at)| now.since(at))
    }

    /// How long after its view a change came about: nothing where it is of the view itself.
    pub(crate) fn took(&self, rebalance: &Rebalance) -> Duration {
        let seen = self.seen().view.filter(|(revision, _)| *revision == rebalance.revision);
        seen.map_or(Duration::ZERO, |(_, at)| rebalance.at.since(at))
    }
}
