//! How far this member has the requests of its keys spread.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex};

use shardwise_core::routing::{KeyHash, OwnerWidths, Width, WidthError, WidthRules};
use shardwise_core::{OwnershipMode, ShardKey};
use shardwise_discovery::Clock;

use crate::error::locked;
use crate::membership::OwnershipContext;
use crate::service::ShardingService;

/// The widths of the keys that one member owns.
pub(in crate::requests) struct KeyWidths {
    widths: Mutex<OwnerWidths>,
    max_width: Width,
    clock: Clock,
}

/// A request that counts towards the load of its key, until this is dropped.
pub(super) struct KeyRequest {
    widths: Arc<KeyWidths>,
    key: u64,
    is_finished: bool,
}

impl KeyWidths {
    pub(in crate::requests) fn of(context: &OwnershipContext) -> Arc<Self> {
        context.extensions.get_or_make(|| {
            let max_width = context.requests.max_width_under(&context.policy);
            let rules = WidthRules { saturated_at: context.requests.saturated_at, max_width };
            Self { widths: Mutex::new(OwnerWidths::new(rules)), max_width, clock: context.clock.clone() }
        })
    }

    /// Counts a request of the key with that hash; `None` where keys are not spread.
    pub(super) fn begin(self: &Arc<Self>, key: u64) -> Option<KeyRequest> {
        if self.max_width == Width::ONE {
            return None;
        }
        locked(&self.widths).begin(self.clock.now(), key);
        Some(KeyRequest { widths: Arc::clone(self), key, is_finished: false })
    }

    /// How many keys are spread over several members.
    pub(super) fn wide(&self) -> usize {
        locked(&self.widths).wide_at(self.clock.now()).count()
    }

    /// The keys that are spread, the widest first, at most so many.
    pub(super) fn widest(&self, most: usize) -> Vec<(KeyHash, Width)> {
        let mut wide: Vec<_> = locked(&self.widths).wide_at(self.clock.now()).map(|(key, width)| (KeyHash::new(key), width)).collect();
        wide.sort_unstable_by_key(|(key, width)| (Reverse(*width), *key));
        wide.truncate(most);
        wide
    }

    fn widen(&self, key: u64, width: Width) -> Result<(), WidthError> {
        if width > self.max_width {
            return Err(WidthError::OutOfRange { given: u64::from(width.get()), most: self.max_width });
        }
        // Where keys are not spread, each has this width.
        if self.max_width == Width::ONE {
            return Ok(());
        }
        locked(&self.widths).widen(self.clock.now(), key, width)
    }
}

impl KeyRequest {
    /// Ends it. Returns the width to report with its answer, if it is more than one.
    pub(super) fn finish(mut self) -> Option<u64> {
        self.is_finished = true;
        let width = locked(&self.widths.widths).finish(self.widths.clock.now(), self.key);
        (width > Width::ONE).then(|| u64::from(width.get()))
    }
}

impl Drop for KeyRequest {
    fn drop(&mut self) {
        if !self.is_finished {
            locked(&self.widths.widths).finish(self.widths.clock.now(), self.key);
        }
    }
}

impl ShardingService {
    /// Has the requests of a key that is this member's spread over that many members, 1 to `max_width` of the policy, as it does by itself
    /// with a key that has more requests in progress than `saturated_at`. Callers learn it with the next answer of a handler of
    /// [`ShardingService::on_owned`]. It narrows by one for each minute without such a call or load. On a member that is not the key's
    /// owner it has no effect.
    ///
    /// # Errors
    ///
    /// [`WidthError::Exclusive`] under exclusive ownership, [`WidthError::OutOfRange`] for another width.
    pub fn widen<K: ShardKey + ?Sized>(&self, key: &K, width: u8) -> Result<(), WidthError> {
        if self.policy().ownership == OwnershipMode::Exclusive {
            return Err(WidthError::Exclusive);
        }
        KeyWidths::of(self.membership()).widen(key.key_hash(), Width::new(u64::from(width))?)
    }
}
