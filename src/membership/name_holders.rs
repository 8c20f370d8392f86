//! The holder of each name in the group, by the claims.

use std::collections::BTreeMap;

use shardwise_core::{Claim, ClaimName, Resource};
use shardwise_discovery::ClaimsEvent;
use tokio::sync::watch;

/// The claims on names, followed while this worker is a member.
#[derive(Default)]
pub(crate) struct NameHolders(watch::Sender<BTreeMap<ClaimName, Claim>>);

impl NameHolders {
    /// Applies an event of the watch of claims.
    pub(super) fn update(&self, event: &ClaimsEvent) {
        self.0.send_if_modified(|holders| {
            let before = holders.clone();
            match event {
                ClaimsEvent::All { claims, .. } => {
                    let named = claims.iter().filter_map(|(resource, claim)| Some((name_of(resource)?.clone(), claim.clone())));
                    *holders = named.collect();
                }
                ClaimsEvent::Changed { changes, .. } => {
                    for change in changes {
                        match (name_of(&change.resource), &change.claim) {
                            (Some(name), Some(claim)) => drop(holders.insert(name.clone(), claim.clone())),
                            (Some(name), None) => drop(holders.remove(name)),
                            (None, _) => {}
                        }
                    }
                }
                _ => {}
            }
            *holders != before
        });
    }

    /// The watch of claims has ended: no holder is known.
    pub(super) fn clear(&self) {
        self.0.send_if_modified(|holders| !std::mem::take(holders).is_empty());
    }

    /// The holders, now and whenever they change.
    pub(crate) fn follow(&self) -> watch::Receiver<BTreeMap<ClaimName, Claim>> {
        self.0.subscribe()
    }
}

const fn name_of(resource: &Resource) -> Option<&ClaimName> {
    match resource {
        Resource::Name(name) => Some(name),
        Resource::Slot(_) => None,
    }
}
