//! What the watch reports: the holders of resources, and the claims that this member has lost.

use std::collections::BTreeMap;

use super::{ClaimAction, HeldResource, Holdings, Phase};
use crate::{Claim, Moment, Resource};

impl Holdings {
    /// Handles the first report of the watch: every claim of the group.
    pub fn on_all_claims(&mut self, now: Moment, claims: impl IntoIterator<Item = (Resource, Claim)>, actions: &mut Vec<ClaimAction>) {
        let claims: BTreeMap<_, _> = claims.into_iter().collect();
        let shown = self.entries.iter().filter(|(_, entry)| entry.shown.is_some()).map(|(resource, _)| resource);
        let gone: Vec<_> = self.others.keys().chain(shown).filter(|known| !claims.contains_key(*known)).cloned().collect();
        self.claims_known = true;
        let changes = claims.into_iter().map(|(resource, claim)| (resource, Some(claim)));
        self.on_claim_changes(now, changes.chain(gone.into_iter().map(|resource| (resource, None))), actions);
    }

    /// Handles the changes since the last report; `None` means that no member holds the resource.
    pub fn on_claim_changes(
        &mut self,
        now: Moment,
        changes: impl IntoIterator<Item = (Resource, Option<Claim>)>,
        actions: &mut Vec<ClaimAction>,
    ) {
        let mut lost = Vec::new();
        for (resource, claim) in changes {
            if let Some(claim) = &claim {
                self.note_seen(claim.epoch);
            }
            if self.is_lost(&resource, claim.as_ref()) {
                if let Some(entry) = self.entries.get_mut(&resource) {
                    entry.hold = None;
                }
                lost.push(resource.clone());
            }
            self.note_move(&resource);
            self.note_claim(resource, claim);
        }
        if !lost.is_empty() {
            self.changes += 1;
            actions.push(ClaimAction::Lost(lost));
        }
        self.keep_up(now, actions);
    }

    fn note_claim(&mut self, resource: Resource, claim: Option<Claim>) {
        let shown = claim.as_ref().filter(|claim| claim.holder == self.me).map(|claim| claim.epoch);
        if shown.is_some() {
            self.entries.entry(resource.clone()).or_default().shown = shown;
        } else if let Some(entry) = self.entries.get_mut(&resource) {
            entry.shown = None;
        }
        match claim.filter(|_| shown.is_none()) {
            Some(other) => self.others.insert(resource, other),
            None => self.others.remove(&resource),
        };
    }

    /// Whether a report says that this member has lost a resource. A report may be older than a grant, so only another holder's higher
    /// epoch, or an end after the grant itself was shown, proves the loss.
    fn is_lost(&self, resource: &Resource, claim: Option<&Claim>) -> bool {
        let Some(entry) = self.entries.get(resource) else { return false };
        let Some(hold) = entry.mine().filter(|hold| hold.phase != Phase::Releasing) else { return false };
        match claim {
            Some(claim) => claim.holder != self.me && claim.epoch > hold.epoch,
            None => entry.shown.is_some_and(|shown| shown >= hold.epoch),
        }
    }

    /// Finds claims that the backend lists for this member and that it neither holds nor wants: grants in answers that were lost.
    pub(super) fn find_orphans(&mut self) {
        for entry in self.entries.values_mut() {
            if let Some(epoch) = entry.shown
                && !entry.asked
                && !entry.wanted
            {
                entry.hold.get_or_insert(HeldResource { epoch, phase: Phase::Orphan });
            }
        }
    }
}
