//! Outcomes of events that are not in the store yet.

use std::collections::BTreeMap;

use super::Flow;
use crate::store::{HeadUpdate, Hold, Outcome};

/// An outcome that is not in the store yet, and the number of delivered events in it.
#[derive(Debug)]
pub(super) struct Unrecorded {
    outcome: Outcome,
    delivered: usize,
}

impl Unrecorded {
    const fn is_retry(&self) -> bool {
        matches!(self.outcome.then, HeadUpdate::Retry { .. })
    }
}

impl Flow {
    pub(crate) fn unrecorded(&self) -> usize {
        self.outcomes.len() + self.recording.len()
    }

    pub(crate) fn is_recording(&self) -> bool {
        !self.recording.is_empty()
    }

    /// Notes an outcome and merges it with one that is not recorded yet. Only a `Next` can be followed by another outcome before it is
    /// recorded, because no event of an aggregate stays in memory behind a refused one.
    pub(super) fn settle(&mut self, outcome: Outcome, delivered: usize) {
        if let Some(earlier) = self.outcomes.get_mut(&outcome.aggregate) {
            earlier.outcome = Outcome { through: outcome.through.or(earlier.outcome.through), ..outcome };
            earlier.delivered += delivered;
            return;
        }
        self.enter(outcome.aggregate, outcome.hold.slot);
        self.outcomes.insert(outcome.aggregate, Unrecorded { outcome, delivered });
    }

    /// The number of outcomes to be recorded next that are heads to retry later, and the number of all others.
    pub(crate) fn retries_and_others(&self) -> (usize, usize) {
        let retries = self.outcomes.values().filter(|unrecorded| unrecorded.is_retry()).count();
        (retries, self.outcomes.len() - retries)
    }

    /// Begins to record the pending outcomes, without heads to retry later unless `retries_too`. No other recording may be under way.
    pub(crate) fn record_next(&mut self, retries_too: bool) -> Vec<Outcome> {
        let (later, now): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.outcomes).into_iter().partition(|(_, unrecorded)| !retries_too && unrecorded.is_retry());
        self.outcomes = later;
        self.recording = now.into_values().collect();
        self.recording.iter().map(|unrecorded| unrecorded.outcome.clone()).collect()
    }

    /// The recording succeeded, except for fenced holds. Returns the outcomes that are in the store, each with its number of delivered
    /// events.
    pub(crate) fn recorded(&mut self, fenced: &[Hold]) -> Vec<(Outcome, usize)> {
        let recorded = std::mem::take(&mut self.recording);
        for Unrecorded { outcome, .. } in &recorded {
            self.leave(outcome.aggregate, outcome.hold.slot);
        }
        let written = recorded.into_iter().filter(|unrecorded| !fenced.contains(&unrecorded.outcome.hold));
        written.map(|unrecorded| (unrecorded.outcome, unrecorded.delivered)).collect()
    }

    /// The recording failed: its outcomes are recorded later, merged with newer ones.
    pub(crate) fn record_again(&mut self) {
        for Unrecorded { outcome, delivered } in std::mem::take(&mut self.recording) {
            self.leave(outcome.aggregate, outcome.hold.slot);
            match self.outcomes.get_mut(&outcome.aggregate) {
                // The newer outcome is about later events.
                Some(later) => {
                    later.delivered += delivered;
                    later.outcome.through = later.outcome.through.or(outcome.through);
                }
                None => self.settle(outcome, delivered),
            }
        }
    }
}
