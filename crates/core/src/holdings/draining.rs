//! Giving up a claim: drain, then release.

use super::{ClaimAction, HeldResource, Holdings, OnDrainTimeout, Phase};
use crate::mistakes::{Mistake, made};
use crate::{Moment, Resource};

impl Holdings {
    /// No work is in flight on these resources any more. That lasts until they serve again, since a draining resource takes no new work.
    pub fn idle<'a>(&mut self, now: Moment, resources: impl IntoIterator<Item = &'a Resource>, actions: &mut Vec<ClaimAction>) {
        for resource in resources {
            if let Some(Phase::Draining { idle, .. }) =
                self.entries.get_mut(resource).and_then(|entry| entry.hold.as_mut()).map(|hold| &mut hold.phase)
            {
                *idle = true;
            }
        }
        self.keep_up(now, actions);
    }

    /// Starts draining what is held and not wanted, and resumes serving what is wanted again and whose work was not yet cancelled.
    pub(super) fn drain_or_resume(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        let (mut drained, mut kept) = (Vec::new(), Vec::new());
        for (resource, entry) in &mut self.entries {
            let Some(hold) = &mut entry.hold else { continue };
            match (hold.phase, entry.wanted) {
                (Phase::Serving, false) => {
                    hold.phase = Phase::Draining { until: now.plus(self.rules.drain_timeout), idle: false, cancelled: false };
                    drained.push(resource.clone());
                }
                (Phase::Draining { cancelled: false, .. }, true) => {
                    hold.phase = Phase::Serving;
                    kept.push(resource.clone());
                }
                _ => {}
            }
        }
        if !kept.is_empty() || !drained.is_empty() {
            self.changes += 1;
        }
        if !kept.is_empty() {
            actions.push(ClaimAction::Kept(kept));
        }
        if !drained.is_empty() {
            actions.push(ClaimAction::Drain(drained));
        }
    }

    /// Cancels the work whose drain timeout has passed.
    pub(super) fn end_drains(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        let mut over = Vec::new();
        for (resource, entry) in &mut self.entries {
            if let Some(HeldResource { phase: Phase::Draining { until, idle: false, cancelled }, .. }) = &mut entry.hold
                && now >= *until
                && !std::mem::replace(cancelled, true)
            {
                over.push(resource.clone());
            }
        }
        if over.is_empty() {
            return;
        }
        for resource in &over {
            self.note_move(resource);
        }
        actions.push(ClaimAction::Cancel(over.clone()));
        if self.rules.on_drain_timeout == OnDrainTimeout::Release {
            actions.push(ClaimAction::Overlap(over));
        }
    }

    fn is_done(phase: Phase, rule: OnDrainTimeout) -> bool {
        match phase {
            Phase::Serving => false,
            Phase::Draining { idle, cancelled, .. } => {
                idle || (cancelled && rule == OnDrainTimeout::Release) || made(Mistake::ReleaseBeforeDrain)
            }
            // A resource in `Releasing` is here because an earlier release call failed.
            Phase::Releasing | Phase::Orphan => true,
        }
    }

    pub(super) fn has_to_release(&self) -> bool {
        let done = |hold: &HeldResource| Self::is_done(hold.phase, self.rules.on_drain_timeout);
        self.entries.values().filter_map(|entry| entry.hold.as_ref()).any(done)
    }

    /// Releases what has drained and what was held before a fence.
    pub(super) fn give_back(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        if !self.releasing.is_free(now) || !self.has_to_release() {
            return;
        }
        let attempt = self.next_attempt();
        let mut held = Vec::new();
        for (resource, entry) in &mut self.entries {
            if let Some(hold) = &mut entry.hold
                && Self::is_done(hold.phase, self.rules.on_drain_timeout)
            {
                if hold.phase != Phase::Orphan {
                    hold.phase = Phase::Releasing;
                }
                held.push((resource.clone(), hold.epoch));
            }
        }
        self.releasing.in_flight = Some(attempt);
        self.sent.clone_from(&held);
        for (resource, _) in &held {
            self.note_move(resource);
        }
        actions.push(ClaimAction::Release { attempt, held });
    }
}
