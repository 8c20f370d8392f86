//! Work in flight, counted by what it is done under: so that a slot is given back only once nothing works in it, and work learns when what it
//! is done under is lost.
//!
//! Under exclusive ownership work is counted by slot or name, and the machine of claims says when to finish, to stop, and that something is
//! gone. Under eventual ownership each key is watched by itself.
//!
//! Entering is decided under the same lock under which the driver looks for work in flight, and the driver looks after it has published
//! what serves. So either the work is counted, or it was refused.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shardwise_core::{Epoch, Moment, OwnedKey, Rebalance, Resource};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Signals to work about its slot, name or key.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    /// It goes to another member once this work is done: finish soon.
    pub(crate) finish: CancellationToken,
    /// It is not this worker's any more: stop now.
    pub(crate) lost: CancellationToken,
}

/// What a piece of work was entered under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GuardKey {
    Claim(Resource, Epoch),
    Key(u64),
}

#[derive(Default)]
pub(crate) struct Guards {
    tables: Mutex<Tables>,
    /// What drains and has no work any more, for the driver.
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
    /// Counts work under a claim, if `held` says, asked under the lock, that it serves.
    pub(crate) fn enter_claim<E>(
        &self,
        resource: Resource,
        now: Moment,
        held: impl FnOnce() -> Result<Epoch, E>,
    ) -> Result<(GuardKey, Signals), E> {
        let mut tables = self.tables();
        let epoch = held()?;
        let fresh = || ClaimWork { epoch, in_flight: 0, draining: false, since: now, signals: Signals::default() };
        let claimed = match tables.claims.entry(resource.clone()) {
            Entry::Occupied(known) if known.get().epoch == epoch => known.into_mut(),
            // What is left of an earlier time of serving was asked to stop, and counts no more.
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

    /// Watches over a key, if `held` says, asked under the lock, that it is owned.
    pub(crate) fn enter_key<E>(&self, key: OwnedKey, held: impl FnOnce(&OwnedKey) -> Result<(), E>) -> Result<(GuardKey, Signals), E> {
        let mut tables = self.tables();
        held(&key)?;
        tables.entered += 1;
        let (number, signals) = (tables.entered, Signals::default());
        tables.keys.insert(number, (key, signals.clone()));
        Ok((GuardKey::Key(number), signals))
    }

    /// The work is over.
    pub(crate) fn leave(&self, under: &GuardKey) {
        let mut tables = self.tables();
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

    /// No new work comes in these: asks what is in flight to finish.
    pub(crate) fn drain(&self, resources: Vec<Resource>) {
        let mut tables = self.tables();
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

    /// These serve on.
    pub(crate) fn keep(&self, resources: &[Resource]) {
        let mut tables = self.tables();
        for resource in resources {
            if let Some(claimed) = tables.claims.get_mut(resource) {
                claimed.draining = false;
                claimed.signals.finish = CancellationToken::new();
            }
        }
    }

    /// Asks work in these to stop now, and goes on counting it; gives those that have some, and since when at most.
    pub(crate) fn cancel(&self, resources: &[Resource]) -> Vec<(Resource, usize, Moment)> {
        let tables = self.tables();
        let claimed = resources.iter().filter_map(|resource| Some((resource, tables.claims.get(resource)?)));
        claimed
            .map(|(resource, claimed)| {
                claimed.signals.stop();
                (resource.clone(), claimed.in_flight, claimed.since)
            })
            .collect()
    }

    /// These are not this worker's any more: stops their work, and counts it no longer.
    pub(crate) fn revoke(&self, resources: &[Resource]) {
        let mut tables = self.tables();
        for resource in resources {
            if let Some(claimed) = tables.claims.remove(resource) {
                claimed.signals.stop();
            }
        }
    }

    /// No claim is this worker's any more.
    pub(crate) fn revoke_all(&self) {
        let claims = std::mem::take(&mut self.tables().claims);
        for claimed in claims.values() {
            claimed.signals.stop();
        }
    }

    /// Stops the work of those keys that are lost, or were for a moment.
    pub(crate) fn stop_lost_keys(&self, rebalance: &Rebalance) {
        let mut tables = self.tables();
        tables.keys.retain(|_, (key, signals)| {
            let lost = rebalance.loses(key);
            if lost {
                signals.stop();
            }
            !lost
        });
    }

    /// Since when the oldest work is there that drains.
    pub(crate) fn oldest_drain(&self) -> Option<Moment> {
        self.tables().claims.values().filter(|claimed| claimed.draining).map(|claimed| claimed.since).min()
    }

    /// Whether nothing drains, and nothing that has drained waits for being given back.
    pub(crate) fn gives_nothing(&self) -> bool {
        let tables = self.tables();
        tables.idle.is_empty() && !tables.claims.values().any(|claimed| claimed.draining)
    }

    /// What drains and has had no work since it was asked last. Waits until there is something.
    pub(crate) async fn idle(&self) -> Vec<Resource> {
        loop {
            self.idle.notified().await;
            let mut tables = self.tables();
            let mut idle = std::mem::take(&mut tables.idle);
            // It may have served again in between, and drain once more.
            idle.retain(|resource| !tables.claims.contains_key(resource));
            if !idle.is_empty() {
                return idle;
            }
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Nothing under the lock can panic half-way: no code of the user's runs there.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
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
