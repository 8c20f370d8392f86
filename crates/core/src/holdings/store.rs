//! The store of claims that this member uses: the one it knows, or a new one whose epochs are all above those that it has seen.

use std::sync::Arc;
use std::time::Duration;

use super::pending_call::PendingCall;
use super::{ClaimAction, Holdings};
use crate::{ClaimStore, Epoch, Moment};

/// Pause before a rejected store is read again: the operator may have raised its floor.
const REREAD_AFTER: Duration = Duration::from_secs(1);

/// Why this member cannot claim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreRefusal {
    /// The store was wiped or replaced, and its epochs would start below known ones.
    #[error(
        "the store of claims is another one ({found} instead of {known}): it was wiped or replaced. Epochs up to {highest} are known here, and perhaps \
         higher ones elsewhere; set epoch_floor above the highest epoch used, at least to {highest}, and start one worker with it"
    )]
    Other {
        /// The store used before.
        known: crate::StoreId,
        /// The store found now.
        found: crate::StoreId,
        /// The highest epoch that this member has seen.
        highest: u64,
    },
    /// The backend denies access to the store.
    #[error("{0}")]
    Denied(Arc<str>),
}

#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) call: PendingCall,
    /// The store in use, or the last one used.
    known: Option<ClaimStore>,
    /// The highest epoch granted to this member, and the highest seen of any member. `seen` may already come from another store, so only
    /// messages use it.
    granted: u64,
    seen: u64,
    pub(super) refused: Option<StoreRefusal>,
    /// Whether the store was accepted since the record was created.
    pub(super) accepted: bool,
}

impl StoreState {
    pub(super) const NONE: Self = Self { call: PendingCall::IDLE, known: None, granted: 0, seen: 0, refused: None, accepted: false };
}

impl Holdings {
    /// The store of claims in use; `None` before the first was accepted.
    pub const fn store(&self) -> Option<ClaimStore> {
        self.store.known
    }

    /// Why this member cannot claim, if the store is not accepted.
    pub const fn refusal(&self) -> Option<&StoreRefusal> {
        self.store.refused.as_ref()
    }

    /// Handles the answer to [`ClaimAction::OpenStore`].
    pub fn opened(&mut self, now: Moment, attempt: u64, found: ClaimStore, actions: &mut Vec<ClaimAction>) {
        if !self.store.call.answered(attempt) {
            return;
        }
        self.store.call.backoff.reset();
        let other = self.store.known.filter(|known| known.id != found.id);
        match other {
            // An operator who raised the floor knows of the loss.
            Some(known) if found.floor <= known.floor || found.floor < self.store.granted => {
                self.drop_all(actions);
                self.store.accepted = false;
                self.store.refused = Some(StoreRefusal::Other { known: known.id, found: found.id, highest: self.store.seen });
                self.store.call.not_before = now.plus(REREAD_AFTER);
            }
            _ => {
                if other.is_some() {
                    // Claims of the former store have no meaning in this one.
                    self.drop_all(actions);
                }
                (self.store.known, self.store.refused, self.store.accepted) = (Some(found), None, true);
                self.open(now, actions);
            }
        }
        self.keep_up(now, actions);
    }

    /// Opening the store failed, and a retry fails until the cause is fixed.
    pub(super) fn deny(&mut self, why: Arc<str>) {
        if !self.store.accepted {
            self.store.refused = Some(StoreRefusal::Denied(why));
        }
    }

    /// The backend says that its store is not the one that was asked: open it again.
    pub(super) fn reopen(&mut self) {
        self.is_store_open = false;
    }

    pub(super) fn note_granted(&mut self, epoch: Epoch) {
        self.store.granted = self.store.granted.max(epoch.get());
        self.note_seen(epoch);
    }

    pub(super) fn note_seen(&mut self, epoch: Epoch) {
        if self.store.accepted {
            self.store.seen = self.store.seen.max(epoch.get());
        }
    }

    /// Opens the store if it is needed and not known.
    pub(super) fn ask_for_store(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        if self.entered && !self.is_store_open && self.store.call.is_free(now) {
            let attempt = self.next_attempt();
            self.store.call.in_flight = Some(attempt);
            actions.push(ClaimAction::OpenStore { attempt });
        }
    }
}
