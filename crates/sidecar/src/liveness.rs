//! The times of this worker's latest renewal and of its current view.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use shardwise::{Ownership, Rebalance, core::Moment};

/// See the module. Times are by the clock of the deadlines.
#[derive(Debug, Default)]
pub(crate) struct Liveness(Mutex<LivenessState>);

#[derive(Debug, Default, Clone, Copy)]
struct LivenessState {
    deadline: Option<Moment>,
    /// When the latest renewal that moved the deadline was answered.
    renewed: Option<Moment>,
    /// The view's revision, and when this worker first used it.
    view: Option<(u64, Moment)>,
}

impl Liveness {
    fn seen(&self) -> std::sync::MutexGuard<'_, LivenessState> {
        // A poisoned lock is safe: the state is consistent after each assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a snapshot that was just published.
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

    /// Time since this worker began to use its view.
    pub(crate) fn viewed_ago(&self, now: Moment) -> Option<Duration> {
        self.seen().view.map(|(_, at)| now.since(at))
    }

    /// The time from a view to the change; zero if the change is the view itself.
    pub(crate) fn took(&self, rebalance: &Rebalance) -> Duration {
        let seen = self.seen().view.filter(|(revision, _)| *revision == rebalance.revision);
        seen.map_or(Duration::ZERO, |(_, at)| rebalance.at.since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwise::core::{Cause, ServiceState, SlotSet, View};
    use std::sync::Arc;

    fn at(millis: u64) -> Moment {
        Moment::ZERO.plus(Duration::from_millis(millis))
    }

    fn holding(revision: u64, slots: SlotSet) -> Ownership {
        Ownership::fixed(ServiceState::Active, slots, Arc::new(View::new(revision, Vec::new())), at(0))
    }

    #[test]
    fn a_change_took_as_long_as_its_view_was_known_before() {
        let liveness = Liveness::default();
        let (before, after) = (holding(7, SlotSet::empty(8)), holding(7, SlotSet::full(8)));
        let change = Rebalance::between(&before, &after, Cause::MembersChanged, at(3_500)).unwrap();
        assert_eq!(liveness.took(&change), Duration::ZERO, "a view that was not seen yet came with it");
        liveness.saw(&before, at(1_000));
        liveness.saw(&after, at(2_000));
        assert_eq!(liveness.took(&change), Duration::from_millis(2_500));
        assert_eq!(liveness.viewed_ago(at(4_000)), Some(Duration::from_secs(3)), "of the same view from the first time on");
        liveness.saw(&holding(8, SlotSet::full(8)), at(4_000));
        assert_eq!((liveness.took(&change), liveness.viewed_ago(at(4_000))), (Duration::ZERO, Some(Duration::ZERO)));
        assert_eq!(liveness.renewed_ago(at(5_000)), None, "without a deadline nothing was renewed");
    }
}
