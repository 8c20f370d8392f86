//! The holder of each slot and name in the group, by the claims.

use shardwise_core::{Holders, Moment, Policy};
use shardwise_discovery::ClaimsEvent;
use tokio::sync::watch;

use crate::error::{Error, ErrorKind, Result};

/// The claims of a group, followed by a member or an observer.
#[derive(Default)]
pub(crate) struct HolderTable(watch::Sender<Holders>);

impl HolderTable {
    /// Applies an event of the watch of claims, seen at `now`.
    pub(crate) fn update(&self, now: Moment, event: &ClaimsEvent) {
        self.0.send_if_modified(|holders| match event {
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
        self.0.send_if_modified(|holders| std::mem::take(holders).is_known());
    }

    /// The holders, now and whenever they change.
    pub(crate) fn follow(&self) -> watch::Receiver<Holders> {
        self.0.subscribe()
    }
}

/// The holders, or the error of one who asks before the claims were read.
pub(crate) fn known(holders: &Holders) -> Result<&Holders> {
    let unread = || Error::new(ErrorKind::Unavailable, "the claims of the group have not been read yet; retry");
    if holders.is_known() { Ok(holders) } else { Err(unread()) }
}

/// The error of one who asks for holders under eventual ownership.
pub(crate) fn without_holders(policy: &Policy) -> Error {
    let message = format!("policy {}: ownership is eventual, so no member holds a claim; ask for owners instead", policy.name);
    Error::new(ErrorKind::Settings, message)
}
