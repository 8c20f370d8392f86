//! Counts work in flight by what it runs under, so that a slot is released only once no work is in flight in it, and work learns when its
//! slot, name or key is lost.
//!
//! Under exclusive ownership work is counted by slot or name, and the claims state machine says when it should finish, stop, or has lost
//! its claim. Under eventual ownership each key is watched separately.
//!
//! Entering takes the same lock as the driver's check for work in flight, and the driver checks after it has published what serves. So
//! work is either counted or refused.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use shardwise_core::{Epoch, Moment, OwnedKey, Rebalance, Resource};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::locked;

/// Signals to work about its slot, name or key.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    /// It goes to another member once this work is done: finish soon.
    pub(crate) finish: CancellationToken,
    /// This worker does not own it any more: stop now.
    pub(crate) lost: CancellationToken,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GuardKey {
    Claim(Resource, Epoch),
    Key(u64),
}

#[derive(Default)]
pub(crate) struct Guards {
    tables: Mutex<Tables>,
    /// Notifies the driver of draining resources without work.
    idle: Notify,
}

#[derive(Default)]
struct Tables {
    claims: HashMap<Resource, ClaimWork>,
    keys: HashMap<u64, (OwnedKey, Signals)>,
    entered: u64,
    idle: Vec<Resource>,
}

struct ClaimWork {
    epoch: Epoch,
    in_flight: usize,
    draining: bool,
    since: Moment,
    signals: Signals,
}

impl Guards {
    /// Counts work under a claim, if `held`, called under the lock, says that it serves.
    pub(crate) fn enter_claim<E>(
        &self,
        resource: Resource,
        now: Moment,
        held: impl FnOnce() -> Result<Epoch, E>,
    ) -> Result<(GuardKey, Signals), E> {
        let mut tables = locked(&self.tables);
        let epoch = held()?;
        let fresh = || ClaimWork { epoch, in_flight: 0, draining: false, since: now, signals: Signals::default() };
        let claimed = match tables.claims.entry(resource.clone()) {
            Entry::Occupied(known) if known.get().epoch == epoch => known.into_mut(),
            // Work left from an earlier period of serving was asked to stop, and does not count any more.
            Entry::Occupied(mut stale) => {
                stale.get().signals.stop();
                stale.insert(fresh());
                stale.into_mut()
            }
            Entry::Vacant(new) => new.insert(fresh()),
        };
        claimed.in_flight += 1;
        Ok((GuardKey::Claim(resource, epoch), claimed.signals.clone()))
    }

    /// Watches a key, if `held`, called under the lock, says that it is owned.
    pub(crate) fn enter_key<E>(&self, key: OwnedKey, held: impl FnOnce(&OwnedKey) -> Result<(), E>) -> Result<(GuardKey, Signals), E> {
        let mut tables = locked(&self.tables);
        held(&key)?;
        tables.entered += 1;
        let (number, signals) = (tables.entered, Signals::default());
        tables.keys.insert(number, (key, signals.clone()));
        Ok((GuardKey::Key(number), signals))
    }

    pub(crate) fn leave(&self, under: &GuardKey) {
        let mut tables = locked(&self.tables);
        match under {
            GuardKey::Key(number) => {
                tables.keys.remove(number);
            }
            GuardKey::Claim(resource, epoch) => {
                let Some(claimed) = tables.claims.get_mut(resource).filter(|claimed| claimed.epoch == *epoch) else { return };
                claimed.in_flight -= 1;
                if claimed.in_flight == 0 {
                    let draining = claimed.draining;
                    tables.claims.remove(resource);
                    if draining {
                        tables.idle.push(resource.clone());
                        self.idle.notify_one();
                    }
                }
            }
        }
    }

    /// Stops new work in these and asks work in flight to finish.
    pub(crate) fn drain(&self, resources: Vec<Resource>) {
        let mut tables = locked(&self.tables);
        for resource in resources {
            match tables.claims.get_mut(&resource) {
                Some(claimed) => {
                    claimed.draining = true;
                    claimed.signals.finish.cancel();
                }
                None => tables.idle.push(resource),
            }
        }
        self.idle.notify_one();
    }

    /// Lets these serve again.
    pub(crate) fn keep(&self, resources: &[Resource]) {
        let mut tables = locked(&self.tables);
        for resource in resources {
            if let Some(claimed) = tables.claims.get_mut(resource) {
                claimed.draining = false;
                claimed.signals.finish = CancellationToken::new();
            }
        }
    }

    /// Asks work in these to stop now, and keeps counting it. Returns those with work: how many, and since when the oldest.
    pub(crate) fn cancel(&self, resources: &[Resource]) -> Vec<(Resource, usize, Moment)> {
        let tables = locked(&self.tables);
        let claimed = resources.iter().filter_map(|resource| Some((resource, tables.claims.get(resource)?)));
        claimed
            .map(|(resource, claimed)| {
                claimed.signals.stop();
                (resource.clone(), claimed.in_flight, claimed.since)
            })
            .collect()
    }

    /// This worker does not hold these any more: stops their work and does not count it any more.
    pub(crate) fn revoke(&self, resources: &[Resource]) {
        let mut tables = locked(&self.tables);
        for resource in resources {
            if let Some(claimed) = tables.claims.remove(resource) {
                claimed.signals.stop();
            }
        }
    }

    /// This worker holds no claim any more.
    pub(crate) fn revoke_all(&self) {
        let claims = std::mem::take(&mut locked(&self.tables).claims);
        for claimed in claims.values() {
            claimed.signals.stop();
        }
    }

    /// Stops the work of keys that are lost, or were for a moment.
    pub(crate) fn stop_lost_keys(&self, rebalance: &Rebalance) {
        let mut tables = locked(&self.tables);
        tables.keys.retain(|_, (key, signals)| {
            let lost = rebalance.loses(key);
            if lost {
                signals.stop();
            }
            !lost
        });
    }

    /// Since when the oldest draining work has been running.
    pub(crate) fn oldest_drain(&self) -> Option<Moment> {
        locked(&self.tables).claims.values().filter(|claimed| claimed.draining).map(|claimed| claimed.since).min()
    }

    /// Whether nothing drains, and nothing that has drained waits for its release.
    pub(crate) fn gives_nothing(&self) -> bool {
        let tables = locked(&self.tables);
        tables.idle.is_empty() && !tables.claims.values().any(|claimed| claimed.draining)
    }

    /// Draining resources whose work has ended since the last call. Waits until there is one.
    pub(crate) async fn idle(&self) -> Vec<Resource> {
        loop {
            self.idle.notified().await;
            let mut tables = locked(&self.tables);
            let mut idle = std::mem::take(&mut tables.idle);
            // It may have served again in between, and be draining once more.
            idle.retain(|resource| !tables.claims.contains_key(resource));
            if !idle.is_empty() {
                return idle;
            }
        }
    }
}

#[cfg(test)]
#[path = "guards_stress.rs"]
mod stress;

impl Signals {
    fn stop(&self) {
        self.finish.cancel();
        self.lost.cancel();
    }
}
