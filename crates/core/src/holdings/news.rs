//! What the watch tells: who holds what, and what of it takes something away.

use std::collections::BTreeMap;

use super::{ClaimAction, Holdings, Phase};
use crate::{Claim, Moment, Resource};

impl Holdings {
    /// Everything that is held in the group, as the watch tells it at its beginning.
    pub fn told_all(&mut self, now: Moment, claims: impl IntoIterator<Item = (Resource, Claim)>, actions: &mut Vec<ClaimAction>) {
        let claims: BTreeMap<_, _> = claims.into_iter().collect();
        let gone: Vec<_> = self.others.keys().chain(self.shown.keys()).filter(|known| !claims.contains_key(*known)).cloned().collect();
        self.claims_known = true;
        let changes = claims.into_iter().map(|(resource, claim)| (resource, Some(claim)));
        self.told_changes(now, changes.chain(gone.into_iter().map(|resource| (resource, None))), actions);
    }

    /// Changes since the last news; `None`: nobody holds it.
    pub fn told_changes(
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
                self.mine.remove(&resource);
                lost.push(resource.clone());
            }
            let (others, shown) = match claim {
                Some(claim) if claim.holder == self.me => (None, Some(claim.epoch)),
                other => (other, None),
            };
            put(&mut self.others, &resource, others);
            put(&mut self.shown, &resource, shown);
            self.note_move(&resource);
        }
        if !lost.is_empty() {
            self.changes += 1;
            actions.push(ClaimAction::Lost(lost));
        }
        self.keep_up(now, actions);
    }

    /// Whether news of a resource says that what is held here is held no longer. News may be older than a grant: only somebody else's higher
    /// epoch, or an end after the grant itself was shown, is later for sure.
    fn is_lost(&self, resource: &Resource, claim: Option<&Claim>) -> bool {
        let Some(hold) = self.mine.get(resource).filter(|hold| hold.phase != Phase::Releasing) else { return false };
        match claim {
            Some(claim) => claim.holder != self.me && claim.epoch > hold.epoch,
            None => self.shown.get(resource).is_some_and(|shown| *shown >= hold.epoch),
        }
    }

    /// What is this member's in the backend though it neither holds nor wants it: granted in an answer that never came.
    pub(super) fn find_orphans(&mut self) {
        for (resource, epoch) in &self.shown {
            let known = self.mine.contains_key(resource) || self.asked.contains(resource) || self.wanted.contains(resource);
            if !known {
                self.orphans.entry(resource.clone()).or_insert(*epoch);
            }
        }
    }
}

fn put<V>(table: &mut BTreeMap<Resource, V>, resource: &Resource, value: Option<V>) {
    match value {
        Some(value) => table.insert(resource.clone(), value),
        None => table.remove(resource),
    };
}
