//! What this member wants and does not hold, and whether it could.

use super::{ClaimAction, Holdings};
use crate::{Moment, Resource};

impl Holdings {
    /// What this member wants and does not hold.
    pub(crate) fn missed(&self) -> impl Iterator<Item = &Resource> {
        self.entries.iter().filter(|(_, entry)| entry.wanted && entry.hold.is_none()).map(|(resource, _)| resource)
    }

    /// Whether another member holds it, as far as is known.
    pub(crate) fn is_held_by_another(&self, resource: &Resource) -> bool {
        self.claims_known && self.others.contains_key(resource)
    }

    /// Whether this member could use what others released for it: its last acquire call did not fail.
    pub(crate) const fn can_acquire(&self) -> bool {
        self.acquiring.backoff.failures() == 0
    }

    /// Acquires what another member holds, if the last such call failed and no other is due: the answer shows whether this member can
    /// acquire again. It would not find out otherwise, because what others hold is not acquired.
    pub(crate) fn probe(&mut self, now: Moment, held_by_another: &Resource, actions: &mut Vec<ClaimAction>) {
        if self.is_store_open && !self.can_acquire() && self.acquiring.is_free(now) && self.acquirable().next().is_none() {
            self.acquire(vec![held_by_another.clone()], actions);
        }
    }
}
