//! The backend's answers: acquired, released, or failed.

use std::time::Duration;

use super::{CallFailure, ClaimAction, HeldResource, Holdings, Phase};
use crate::{AcquireOutcome, Moment, Resource};

/// Pause before asking again for a resource that the backend withholds (`NotYet`) or that another member held a moment ago (`Held`).
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Holdings {
    /// Handles the answer to [`ClaimAction::Acquire`].
    pub fn acquired(&mut self, now: Moment, attempt: u64, answers: Vec<(Resource, AcquireOutcome)>, actions: &mut Vec<ClaimAction>) {
        if !self.acquiring.answered(attempt) {
            return;
        }
        self.acquiring.backoff.reset();
        self.forget_asked();
        let mut gained = Vec::new();
        for (resource, answer) in answers {
            match answer {
                AcquireOutcome::Granted(epoch) if self.others.get(&resource).is_some_and(|other| other.epoch > epoch) => {}
                AcquireOutcome::Granted(epoch) if self.served.get(&resource).is_some_and(|served| *served >= epoch) => {
                    // This member held it all along, although the watch had said otherwise. An epoch serves only once: release it first.
                    self.others.remove(&resource);
                    self.entries.entry(resource).or_default().hold = Some(HeldResource { epoch, phase: Phase::Orphan });
                }
                AcquireOutcome::Granted(epoch) => {
                    self.note_granted(epoch);
                    self.others.remove(&resource);
                    self.served.insert(resource.clone(), epoch);
                    self.entries.entry(resource.clone()).or_default().hold = Some(HeldResource { epoch, phase: Phase::Serving });
                    self.note_move(&resource);
                    gained.push((resource, epoch));
                }
                // If the watch already reports it as free, it was released in the meantime; otherwise the watch will report that.
                AcquireOutcome::Held | AcquireOutcome::NotYet => {
                    self.entries.entry(resource).or_default().not_before = Some(now.plus(ASK_AGAIN));
                }
            }
        }
        if !gained.is_empty() {
            self.changes += 1;
            actions.push(ClaimAction::Gained(gained));
        }
        self.drain_or_resume(now, actions);
        self.keep_up(now, actions);
    }

    /// Handles the answer to [`ClaimAction::Release`].
    pub fn released(&mut self, now: Moment, attempt: u64, actions: &mut Vec<ClaimAction>) {
        if !self.releasing.answered(attempt) {
            return;
        }
        self.releasing.backoff.reset();
        for (resource, epoch) in std::mem::take(&mut self.sent) {
            self.note_move(&resource);
            let Some(entry) = self.entries.get_mut(&resource) else { continue };
            entry.hold.take_if(|hold| hold.phase != Phase::Orphan || hold.epoch <= epoch);
            entry.shown.take_if(|shown| *shown <= epoch);
        }
        self.keep_up(now, actions);
    }

    /// Handles the failure of a call; the call is repeated after a pause.
    pub fn failed(&mut self, now: Moment, attempt: u64, failure: CallFailure, actions: &mut Vec<ClaimAction>) {
        let asking = self.acquiring.failed(attempt, now);
        if asking {
            self.forget_asked();
        }
        let opening = self.store.call.failed(attempt, now);
        self.releasing.failed(attempt, now);
        match failure {
            CallFailure::Permanent(why) if opening => self.deny(why),
            CallFailure::OtherStore if asking => self.reopen(),
            _ => {}
        }
        self.keep_up(now, actions);
    }

    fn forget_asked(&mut self) {
        for entry in self.entries.values_mut() {
            entry.asked = false;
        }
    }
}
