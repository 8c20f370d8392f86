//! Since when this worker has used its view.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use shardwise::{Rebalance, core::Moment};

/// The revision of the view, and when this worker first used it, by the clock of the deadlines.
#[derive(Debug, Default)]
pub(crate) struct ViewSince(Mutex<Option<(u64, Moment)>>);

impl ViewSince {
    /// Notes the view of a snapshot that was just published.
    pub(crate) fn saw(&self, revision: u64, now: Moment) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_none_or(|(known, _)| known != revision) {
            *seen = Some((revision, now));
        }
    }

    fn seen(&self) -> Option<(u64, Moment)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since this worker began to use its view.
    pub(crate) fn ago(&self, now: Moment) -> Option<Duration> {
        self.seen().map(|(_, at)| now.since(at))
    }

    /// The time from a view to the change; zero if the change is the view itself.
    pub(crate) fn took(&self, rebalance: &Rebalance) -> Duration {
        let seen = self.seen().filter(|(revision, _)| *revision == rebalance.revision);
        seen.map_or(Duration::ZERO, |(_, at)| rebalance.at.since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwise::Ownership;
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
        let view = ViewSince::default();
        let (before, after) = (holding(7, SlotSet::empty(8)), holding(7, SlotSet::full(8)));
        let change = Rebalance::between(&before, &after, Cause::MembersChanged, at(3_500)).unwrap();
        assert_eq!(view.took(&change), Duration::ZERO, "a view that was not seen yet came with it");
        view.saw(7, at(1_000));
        view.saw(7, at(2_000));
        assert_eq!(view.took(&change), Duration::from_millis(2_500));
        assert_eq!(view.ago(at(4_000)), Some(Duration::from_secs(3)), "of the same view from the first time on");
        view.saw(8, at(4_000));
        assert_eq!((view.took(&change), view.ago(at(4_000))), (Duration::ZERO, Some(Duration::ZERO)));
    }
}
