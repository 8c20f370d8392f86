//! What became of events and is not in the store yet.

use std::collections::BTreeMap;

use super::Flow;
use crate::AggregateId;
use crate::store::{HeadUpdate, Hold, Outcome};

/// An outcome that is not in the store yet, and how many delivered events it stands for.
#[derive(Debug)]
pub(super) struct Unrecorded {
    outcome: Outcome,
    delivered: u64,
}

impl Unrecorded {
    const fn is_retry(&self) -> bool {
        matches!(self.outcome.then, HeadUpdate::Retry { .. })
    }
}

impl Flow {
    /// Aggregates whose outcome is not recorded.
    pub(crate) fn unrecorded(&self) -> usize {
        self.outcomes.len() + self.recording.len()
    }

    pub(crate) fn is_recording(&self) -> bool {
        !self.recording.is_empty()
    }

    /// Notes an outcome; one that is not recorded yet grows. Only a `Next` is ever followed by another one before it is recorded, since
    /// nothing of an aggregate is kept behind a refused event.
    pub(super) fn settle(&mut self, aggregate: AggregateId, hold: Hold, through: Option<u64>, then: HeadUpdate, delivered: usize) {
        let delivered = delivered as u64;
        if let Some(earlier) = self.outcomes.get_mut(&aggregate) {
            earlier.outcome = Outcome { aggregate, hold, through: through.or(earlier.outcome.through), then };
            earlier.delivered += delivered;
            return;
        }
        self.enter(aggregate, hold.slot);
        self.outcomes.insert(aggregate, Unrecorded { outcome: Outcome { aggregate, hold, through, then }, delivered });
    }

    /// How many of what is to be recorded next are heads that are tried later, and how many are anything else.
    pub(crate) fn retries_and_others(&self) -> (usize, usize) {
        let retries = self.outcomes.values().filter(|unrecorded| unrecorded.is_retry()).count();
        (retries, self.outcomes.len() - retries)
    }

    /// Begins to record what has come together, without heads that are tried later unless `retries_too`; empty while a recording is under way or
    /// there is nothing.
    pub(crate) fn record_next(&mut self, retries_too: bool) -> Vec<Outcome> {
        if self.recording.is_empty() {
            let (later, now): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut self.outcomes).into_iter().partition(|(_, unrecorded)| !retries_too && unrecorded.is_retry());
            self.outcomes = later;
            self.recording = now.into_values().collect();
            return self.recording.iter().map(|unrecorded| unrecorded.outcome.clone()).collect();
        }
        Vec::new()
    }

    /// What was being recorded is in the store, but for fenced holds. Returns the outcomes that are, each with its delivered events.
    pub(crate) fn recorded(&mut self, fenced: &[Hold]) -> Vec<(Outcome, u64)> {
        let recorded = std::mem::take(&mut self.recording);
        for Unrecorded { outcome, .. } in &recorded {
            self.leave(outcome.aggregate, outcome.hold.slot);
        }
        let written = recorded.into_iter().filter(|unrecorded| !fenced.contains(&unrecorded.outcome.hold));
        written.map(|unrecorded| (unrecorded.outcome, unrecorded.delivered)).collect()
    }

    /// The recording failed: the same again later, together with what has come since.
    pub(crate) fn record_again(&mut self) {
        for Unrecorded { outcome, delivered } in std::mem::take(&mut self.recording) {
            self.leave(outcome.aggregate, outcome.hold.slot);
            let events = usize::try_from(delivered).unwrap_or(usize::MAX);
            match self.outcomes.get_mut(&outcome.aggregate) {
                // What came since is about later events.
                Some(later) => {
                    later.delivered += delivered;
                    later.outcome.through = later.outcome.through.or(outcome.through);
                }
                None => self.settle(outcome.aggregate, outcome.hold, outcome.through, outcome.then, events),
            }
        }
    }
}
