//! Which aggregates a producer need not begin with one event.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::AggregateId;

/// The most aggregates that are remembered. A forgotten one costs a batch one more answer.
const STARTED_MAX: usize = 100_000;
/// For how long. A broker forgets a producer that has written nothing to a partition for `producer.id.expiration.ms`, a day by default.
const STARTED_FOR: Duration = Duration::from_hours(1);

/// Aggregates of which an event was acknowledged lately: the broker of their partition knows the producer.
#[derive(Debug, Default)]
pub(super) struct StartedAggregates(HashMap<AggregateId, Instant>);

impl StartedAggregates {
    pub(super) fn contains(&self, aggregate: AggregateId, now: Instant) -> bool {
        self.0.get(&aggregate).is_some_and(|acknowledged| now.saturating_duration_since(*acknowledged) < STARTED_FOR)
    }

    /// An event of each of these was acknowledged.
    pub(super) fn remember(&mut self, aggregates: impl Iterator<Item = AggregateId>, now: Instant) {
        if self.0.len() >= STARTED_MAX {
            self.0.clear();
        }
        self.0.extend(aggregates.map(|aggregate| (aggregate, now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregate_is_forgotten_an_hour_after_its_last_acknowledgement() {
        let (mut started, begun) = (StartedAggregates::default(), Instant::now());
        let after = |minutes| begun + Duration::from_mins(minutes);
        started.remember([1, 2].into_iter(), begun);
        started.remember([2].into_iter(), after(30));
        assert!(started.contains(1, after(59)) && !started.contains(1, after(60)));
        assert!(started.contains(2, after(89)) && !started.contains(2, after(90)));
        assert!(!started.contains(3, begun));
    }
}
