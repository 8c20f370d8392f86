//! Leases of the local worker: while it renews its lease, it is granted what this member holds, and each handover waits for it.

mod keeper;
pub(crate) mod offers;
pub(crate) mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, Method};
use shardwise::core::Resource;
use shardwise::{ClaimName, Epoch, Fence, Moment, Ownership, OwnershipMode, ShardKey as _, ShardingService, SlotSet, slot_of};
use tokio::sync::{Notify, Semaphore, watch};

use crate::millis::millis;
use crate::problem::{CONFLICT, LEASE_ENDED, LEASE_MISSING, LEASE_TAKEN, Problem, Result};
use offers::Offers;
pub(crate) use state::LeaseId;
use state::{GrantPhase, LeaseRefusal, LeaseState};

/// The header with the id of the worker's lease.
const LEASE: HeaderName = HeaderName::from_static("shardwise-lease");
/// The routes of workers, behind the policy; the worker's token admits to these alone.
const ROUTES: [&str; 7] = ["leases", "leases/{lease}", "grants", "grants/finished", "enter", "names", "owned"];
/// The most requests that follow the grants of one policy at a time.
pub(crate) const FOLLOWERS_MAX: usize = 8;

/// The lease of the local worker on one policy, and the grants under it.
pub(crate) struct Leases {
    pub(crate) service: ShardingService,
    pub(crate) state: Mutex<LeaseState>,
    /// The version of the grants.
    pub(crate) changed: watch::Sender<u64>,
    /// The lease has changed, or the worker has finished something: the keeper looks again.
    pub(crate) wake: Notify,
    /// What is offered under a name, and the lease under which it is.
    pub(crate) offers: Mutex<(u64, Offers)>,
    pub(crate) followers: Arc<Semaphore>,
}

impl Leases {
    pub(crate) fn new(service: ShardingService) -> Self {
        let policy = service.policy();
        let slots = if policy.placement.kind.by_key().is_some() { 0 } else { policy.placement.slots };
        let followers = Arc::new(Semaphore::new(FOLLOWERS_MAX));
        Self {
            service,
            state: Mutex::new(LeaseState::new(slots)),
            changed: watch::Sender::default(),
            wake: Notify::new(),
            offers: Mutex::default(),
            followers,
        }
    }

    /// Whether nothing may be owned without a lease.
    pub(crate) fn are_required(&self) -> bool {
        self.service.policy().ownership == OwnershipMode::Exclusive
    }

    /// Since when there is a live lease, and for how long still.
    pub(crate) fn age_and_rest(&self) -> Option<(Duration, Duration)> {
        let now = self.service.now();
        let (opened, ends) = self.locked().span().filter(|(_, ends)| *ends > now)?;
        Some((now.since(opened), ends.since(now)))
    }

    /// The slots in which the worker with that lease may start work now. Nothing after the deadline of what this member holds.
    pub(crate) fn open_slots(&self, id: LeaseId) -> Result<SlotSet> {
        let opened = self.read_swept(|state, now, _| {
            state.check(now, id)?;
            let is_live = self.service.ownership().is_live_at(now);
            Ok(if is_live { state.slots().clone() } else { SlotSet::empty(state.slots().slots()) })
        });
        opened.map_err(|refusal| self.refused(refusal))
    }

    /// Whether work on that key may start now: without a lease where none is needed, else under the live one.
    pub(crate) fn opens(&self, key: &str) -> bool {
        !self.are_required()
            || self.read_unswept(|state, now, _| {
                state.expire(now);
                open_fence(state, &self.service.ownership(), now, key).is_some()
            })
    }

    /// Whether the worker was granted that slot under that epoch, and may start work in it now.
    pub(crate) fn opens_slot(&self, fence: Fence) -> bool {
        self.read_unswept(|state, now, _| {
            state.expire(now);
            state.open_slot(fence.slot).is_some_and(|grant| grant.epoch == fence.epoch)
        })
    }

    /// The same for a name.
    pub(crate) fn opens_name(&self, name: &ClaimName, epoch: Epoch) -> bool {
        self.read_swept(|state, now, _| {
            state.expire(now);
            let is_it = |resource: &Resource| matches!(resource, Resource::Name(granted) if granted == name);
            state.grants().any(|grant| grant.phase == GrantPhase::Granted && grant.epoch == epoch && is_it(&grant.resource))
        })
    }

    /// Reads the state as it is now, and for how long the grants hold: while the lease is live and this member holds its claims.
    pub(crate) fn read_swept<T>(&self, read: impl FnOnce(&mut LeaseState, Moment, Duration) -> T) -> T {
        self.read_unswept(|state, now, valid| {
            state.sweep(now);
            read(state, now, valid)
        })
    }

    /// The same for a reader that looks itself whether a grant is lost: with a thousand grants, to look at all takes longer than the rest.
    pub(crate) fn read_unswept<T>(&self, read: impl FnOnce(&mut LeaseState, Moment, Duration) -> T) -> T {
        // In this order: if the member has lost its claims and joined again, the end of its new claims is not taken for that of the lost
        // ones.
        let held = self.service.ownership().claims_end();
        self.update(|state, now| {
            let leased = state.span().map(|(_, ends)| ends);
            let valid = held.zip(leased).map_or(Duration::ZERO, |(held, leased)| held.min(leased).since(now));
            read(state, now, valid)
        })
    }

    /// The lease in the header of a request.
    pub(crate) fn shown(&self, headers: &HeaderMap) -> Result<LeaseId> {
        let missing = || {
            let route = self.route();
            LEASE_MISSING
                .because(format!("this needs the worker's lease: open one with POST {route} and send its id in the header shardwise-lease"))
        };
        let shown = headers.get(LEASE).ok_or_else(missing)?;
        // What is no id names no lease.
        shown.to_str().ok().and_then(LeaseId::parse).ok_or_else(|| self.refused(LeaseRefusal::Ended(state::BAD_ID)))
    }

    pub(crate) fn refused(&self, refusal: LeaseRefusal) -> Problem {
        match refusal {
            LeaseRefusal::Taken { age, left } => LEASE_TAKEN.because(format!(
                "another lease has been live for {age:.1?} and lasts {} ms unless it is renewed: one worker at a time has a lease on this policy. \
                 One process of a worker keeps its lease; the worker's other processes use its id with owned and enter",
                millis(left)
            )),
            LeaseRefusal::Ended(why) => LEASE_ENDED.because(format!(
                "the lease is not live: {why}. Stop all work under it, and open another one with POST {}",
                self.route()
            )),
        }
    }

    /// The route at which a lease is opened.
    pub(crate) fn route(&self) -> String {
        format!("/v1/policies/{}/leases", self.service.policy().name)
    }

    fn locked(&self) -> MutexGuard<'_, LeaseState> {
        // Each change of the state is complete before anything could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes those that follow it.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut LeaseState, Moment) -> T) -> T {
        let mut state = self.locked();
        let changed = change(&mut state, self.service.now());
        let version = state.version();
        self.changed.send_if_modified(|known| std::mem::replace(known, version) != version);
        changed
    }

    /// An error under eventual ownership, where nothing is granted.
    pub(crate) fn grants_anything(&self) -> Result<()> {
        if self.are_required() {
            return Ok(());
        }
        let name = &self.service.policy().name;
        Err(CONFLICT.because(format!(
            "policy {name} has ownership = \"eventual\", so nothing is granted: ask owned, or use a policy with ownership = \"exclusive\" and its own \
             group_name"
        )))
    }
}

/// The fence under which work on that key may start: its slot is open, and this member holds it under the epoch that was granted.
pub(crate) fn open_fence(state: &LeaseState, ownership: &Ownership, now: Moment, key: &str) -> Option<Fence> {
    let grant = state.open_slot(slot_of(key.key_hash(), state.slots().slots()))?;
    ownership.fence_at(key, now).ok().filter(|fence| fence.epoch == grant.epoch)
}

/// Whether the route is one that a worker needs.
pub(crate) fn is_for_workers(route: &str) -> bool {
    route.strip_prefix("/v1/policies/{policy}/").is_some_and(|route| ROUTES.contains(&route))
}

/// Whether the request keeps a lease, or lets a handover end. It does not count against the rate of all requests: another client that uses
/// the rate up must not cost a worker its lease.
pub(crate) fn keeps_lease(method: &Method, route: &str) -> bool {
    match route.strip_prefix("/v1/policies/{policy}/") {
        Some("leases/{lease}") => *method == Method::PUT,
        Some("grants/finished") => *method == Method::POST,
        _ => false,
    }
}
