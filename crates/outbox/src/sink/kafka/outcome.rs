//! What is known of a batch after one or two attempts.

use std::collections::BTreeMap;

use crate::sink::{Acceptance, Refusal};
use crate::{AggregateId, Delivery, Error};

/// What was found out about a batch.
pub(super) struct BatchOutcome {
    pub(super) accepted: Vec<bool>,
    /// The first event of an aggregate that was refused, by its place in the batch, and why.
    pub(super) refused: BTreeMap<AggregateId, (usize, Refusal)>,
}

impl BatchOutcome {
    pub(super) fn new(batch: &[Delivery]) -> Self {
        Self { accepted: vec![false; batch.len()], refused: BTreeMap::new() }
    }

    /// Whether the event needs no further attempt, or must not be tried.
    pub(super) fn is_done(&self, index: usize, event: &Delivery) -> bool {
        self.accepted[index] || self.refused.get(&event.aggregate).is_some_and(|(first, _)| index >= *first)
    }

    /// Refuses what is left.
    pub(super) fn refusing(mut self, batch: &[Delivery], error: &Error) -> Self {
        for (index, event) in batch.iter().enumerate() {
            if !self.is_done(index, event) {
                self.refused.insert(event.aggregate, (index, Refusal::retryable(error.to_string())));
            }
        }
        self
    }

    pub(super) fn acceptance(mut self, batch: &[Delivery]) -> Acceptance {
        let mut counts: BTreeMap<AggregateId, (usize, usize)> = BTreeMap::new();
        for (event, accepted) in batch.iter().zip(&self.accepted) {
            let (taken, all) = counts.entry(event.aggregate).or_default();
            *taken += usize::from(*accepted && taken == all);
            *all += 1;
        }
        let partly = counts.into_iter().filter(|(_, (taken, all))| taken < all);
        let apart = partly.map(|(aggregate, (taken, _))| (aggregate, (taken, self.refused.remove(&aggregate).map(|(_, refusal)| refusal))));
        Acceptance::all_but(batch, apart.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exercise::deliveries;

    #[test]
    fn an_aggregate_ends_before_the_first_event_that_is_not_accepted() {
        let second = deliveries("b", 1, 2).into_iter().map(|event| Delivery { aggregate: 2, ..event });
        let batch: Vec<_> = deliveries("a", 1, 4).into_iter().chain(second).collect();
        let mut outcome = BatchOutcome::new(&batch);
        outcome.accepted = vec![true, true, false, true, true, true];
        outcome.refused.insert(1, (2, Refusal::permanent("no")));
        assert!(outcome.is_done(0, &batch[0]) && outcome.is_done(2, &batch[2]) && outcome.is_done(3, &batch[3]));
        let apart = BTreeMap::from([(1, (2, Some(Refusal::permanent("no"))))]);
        assert_eq!(outcome.acceptance(&batch), Acceptance::all_but(&batch, apart));
        let error = Error::new(crate::ErrorKind::Unavailable, "down");
        let left = BatchOutcome::new(&batch).refusing(&batch, &error).acceptance(&batch);
        let down = || (0, Some(Refusal::retryable("down")));
        assert_eq!(left.apart, BTreeMap::from([(1, down()), (2, down())]));
    }
}
