//! This process's knowledge of a member's session: its claims, their store, and the resources that Consul holds back from it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{ClaimStore, Epoch, Moment, Resource};
use shardwise_discovery::Registration;

use crate::api::LOCK_DELAY_MAX;
use crate::error::{Failure, Result};

/// A member that claims is granted this part of its TTL.
pub(crate) const SHARE: u32 = 2;

/// The TTL of a registration's check. A member that claims has the other half as its session's lock delay, so that its claims are free once
/// both are over.
pub(crate) fn check_ttl(registration: &Registration) -> Result<Duration> {
    let ttl = registration.ttl;
    if !registration.claims {
        return Ok(ttl);
    }
    let max = LOCK_DELAY_MAX * SHARE;
    if ttl > max {
        return Err(Failure::TtlTooLong { ttl, max });
    }
    // Consul takes milliseconds.
    Ok(Duration::from_millis(u64::try_from(ttl.as_millis() / u128::from(SHARE)).unwrap_or(u64::MAX)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldLock {
    pub(crate) epoch: Epoch,
    /// The index that the acquiring transaction gave its key.
    pub(crate) index: u64,
}

#[derive(Debug)]
pub(crate) struct LockSession {
    pub(crate) id: String,
    memory: Mutex<SessionState>,
}

#[derive(Debug, Default)]
pub(super) struct SessionState {
    pub(super) held: HashMap<Resource, HeldLock>,
    /// The store that was read while this session was there, and the index of its key.
    pub(super) store: Option<(ClaimStore, u64)>,
    /// Since when each has been held back by a lock delay.
    pub(super) delayed: HashMap<Resource, Moment>,
}

impl LockSession {
    pub(crate) fn new(id: String) -> Self {
        Self { id, memory: Mutex::default() }
    }

    pub(super) fn holds(&self, resource: Resource, held_lock: HeldLock) {
        let mut memory = self.memory();
        memory.delayed.remove(&resource);
        memory.held.insert(resource, held_lock);
    }

    /// How it is held under this epoch.
    pub(super) fn held_lock(&self, resource: &Resource, epoch: Epoch) -> Option<HeldLock> {
        self.memory().held.get(resource).copied().filter(|held_lock| held_lock.epoch == epoch)
    }

    /// It is no longer held under this epoch.
    pub(super) fn lets_go(&self, resource: &Resource, epoch: Epoch) {
        let mut memory = self.memory();
        if memory.held.get(resource).is_some_and(|held_lock| held_lock.epoch == epoch) {
            memory.held.remove(resource);
        }
    }

    pub(super) fn is_delayed(&self, resource: &Resource) -> bool {
        self.memory().delayed.contains_key(resource)
    }

    /// Of these the one that has been held back for longest, and so comes free first.
    pub(super) fn longest_delayed(&self, delayed: &[Resource]) -> Option<Resource> {
        let memory = self.memory();
        delayed.iter().min_by_key(|resource| memory.delayed.get(*resource)).cloned()
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, SessionState> {
        // Nothing under this lock can panic halfway through a change.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
