//! Who holds what in the group, under exclusive ownership.

use shardwise_core::{Holding, OwnershipMode, ViewPlacement};

use super::ShardingService;
use crate::error::Result;
use crate::membership::{placer, without_holders};

impl ShardingService {
    /// Who holds each slot and name of the group, and where that differs, which member the placement names and why that one does not hold
    /// it: every slot in order, then the names that are held. By the claims and the view that this worker has seen.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`](crate::ErrorKind::Settings) under eventual ownership, which has no holders; retryable,
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) while this worker is not a member and until it has read the claims; that
    /// or [`ErrorKind::Backend`](crate::ErrorKind::Backend) while the claims cannot be read.
    pub fn holders(&self) -> Result<Vec<Holding>> {
        let policy = self.policy();
        if policy.ownership != OwnershipMode::Exclusive {
            return Err(without_holders(policy));
        }
        let view = self.members();
        let params = policy.serving(view.group_fingerprint()).filter(|_| view.active() >= policy.min_members as usize);
        // Placing a view fails only under a key placement, which has no claims.
        let owners = params.and_then(|params| placer(&policy.group, params).place(&view).ok()).and_then(|placed| match placed {
            ViewPlacement::Slots(owners) => Some(owners),
            ViewPlacement::Keys(_) => None,
        });
        self.membership().holders.read(|holders| Holding::all(&view, policy, owners.as_deref(), holders))
    }
}
