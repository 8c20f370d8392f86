//! The holder of each slot and name in the group, by the claims.

use std::sync::atomic::{AtomicU64, Ordering};

use shardwise_core::{Holders, Moment, Policy};
use shardwise_discovery::ClaimsEvent;
use tokio::sync::watch;

use crate::error::{Error, ErrorKind, Result};

/// The claims of a group, followed by a member or an observer.
#[derive(Default)]
pub(crate) struct HolderTable {
    holders: watch::Sender<Holders>,
    /// Why the claims cannot be read at the moment.
    failure: watch::Sender<Option<shardwise_discovery::Error>>,
    /// How often reading the claims began to fail or succeeded again.
    turns: AtomicU64,
}

impl HolderTable {
    /// Applies what the watch of claims reports, seen at `now`.
    pub(crate) fn update(&self, now: Moment, event: &shardwise_discovery::Result<ClaimsEvent>) {
        let turned = match event {
            Ok(event) => {
                self.apply(now, event);
                self.failure.send_if_modified(|failure| failure.take().is_some())
            }
            Err(error) => self.failure.send_replace(Some(error.clone())).is_none(),
        };
        // Last, so that a reader that sees the number finds what it counts.
        self.turns.fetch_add(turned.into(), Ordering::Release);
    }

    fn apply(&self, now: Moment, event: &ClaimsEvent) {
        self.holders.send_if_modified(|holders| match event {
            ClaimsEvent::All { claims, .. } => {
                holders.on_all(now, claims.iter().cloned());
                true
            }
            ClaimsEvent::Changed { changes, .. } => {
                holders.on_changes(now, changes.iter().map(|change| (change.resource.clone(), change.claim.clone())));
                !changes.is_empty()
            }
            _ => false,
        });
    }

    /// The watch of claims has ended: no holder is known.
    pub(super) fn clear(&self) {
        self.holders.send_if_modified(|holders| std::mem::take(holders).is_known());
        self.failure.send_replace(None);
    }

    /// The holders as last read, now and whenever they change.
    pub(crate) fn follow(&self) -> watch::Receiver<Holders> {
        self.holders.subscribe()
    }

    /// How often the answer of [`HolderTable::read`] has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.holders.borrow().changes() + self.turns.load(Ordering::Acquire)
    }

    /// Whether the last attempt to read the claims failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Waits until the claims were read once or could not be read.
    pub(crate) async fn first(&self) {
        let (mut holders, mut failure) = (self.holders.subscribe(), self.failure.subscribe());
        tokio::select! {
            _ = holders.wait_for(Holders::is_known) => {}
            _ = failure.wait_for(Option::is_some) => {}
        }
    }

    /// Reads the holders; an error before the claims were read and while they cannot be read, because holders that have changed meanwhile
    /// would be shown as they were.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Holders) -> T) -> Result<T> {
        if let Some(failure) = self.failure.borrow().clone() {
            return Err(failure.into());
        }
        let holders = self.holders.borrow();
        if !holders.is_known() {
            return Err(Error::new(ErrorKind::Unavailable, "the claims of the group have not been read yet; retry"));
        }
        Ok(read(&holders))
    }
}

/// The error of a question for holders under eventual ownership.
pub(crate) fn without_holders(policy: &Policy) -> Error {
    let message = format!(
        "policy {}: ownership is eventual, so no member holds a claim; ask for the owner of a key: shardwise owner KEY",
        policy.name
    );
    Error::new(ErrorKind::Settings, message)
}
