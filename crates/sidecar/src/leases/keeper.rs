//! Grants the worker what this member holds, and keeps each grant's guard until the worker has finished.

use std::sync::Arc;
use std::time::Duration;

use shardwise::core::Resource;
use shardwise::{Fence, Guard, Period, Tenure};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Leases;
use super::state::GrantPhase;

/// The runtime's timers stop while the machine sleeps, and the lease does not.
const POLL_EVERY: Duration = Duration::from_millis(250);

impl Leases {
    /// Follows the lease and what this member holds, until the service ends. Without a live lease the member is drained.
    pub(crate) async fn keep(self: Arc<Self>) {
        let (mut held, mut guards) = (self.service.ownership_changes(), JoinSet::new());
        loop {
            held.borrow_and_update();
            self.settle(&mut guards);
            let ends = self.locked().span().map(|(_, ends)| ends.since(self.service.now()).min(POLL_EVERY));
            tokio::select! {
                changed = held.changed() => if changed.is_err() { return },
                () = self.wake.notified() => {}
                () = tokio::time::sleep(ends.unwrap_or_default()), if ends.is_some() => {}
            }
            while guards.try_join_next().is_some() {}
        }
    }

    fn settle(self: &Arc<Self>, guards: &mut JoinSet<()>) {
        let ownership = self.service.ownership();
        let (is_present, counts, end_cause) = self.update(|state, now| {
            state.expire(now);
            let is_present = state.live().is_some() && !state.is_stale(&ownership);
            let end_cause = if is_present { None } else { state.end_cause() };
            (is_present, self.are_required() || state.was_opened(), end_cause)
        });
        if counts {
            // A policy under a key placement never gets a lease.
            let _ = match end_cause {
                Some(why) => self.service.end_worker_lease(&why),
                None => self.service.set_worker_leased(is_present),
            };
        }
        drop(self.offers_of_ended_lease());
        if !is_present || !self.are_required() || !ownership.is_live_at(self.service.now()) {
            return;
        }
        let missing: Vec<Fence> = {
            let state = self.locked();
            ownership.fences().filter(|fence| !state.has_slot(fence.slot, fence.epoch)).collect()
        };
        for fence in missing {
            // Lost again by now; the next snapshot shows it.
            let Ok(guard) = self.service.enter_slot(fence.slot) else { continue };
            let Some(epoch) = guard.epoch() else { continue };
            let granted = self.update(|state, now| state.grant(now, Resource::Slot(fence.slot), epoch, None, guard.lost_token()));
            if let Some((number, released)) = granted {
                guards.spawn(Arc::clone(self).hold_slot(number, guard, released));
            }
        }
    }

    /// The guard counts as work in flight until the worker has finished, or its lease has ended. That time for finishing has passed does
    /// not end the work of another process, so `on_drain_timeout` decides then.
    async fn hold_slot(self: Arc<Self>, number: u64, guard: Guard, released: CancellationToken) {
        let handed_over = async {
            guard.finish().await;
            self.advance(number, GrantPhase::Finish);
            guard.lost().await;
            self.advance(number, GrantPhase::Lost);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = released.cancelled() => {}
            () = handed_over => {}
        }
    }

    /// Holds a name, or a period of a timer, for the lease with that number.
    pub(crate) async fn hold_name(self: Arc<Self>, lease: u64, tenure: Tenure, period: Option<Period>) {
        let granted = self.update(|state, now| {
            let is_its = state.live() == Some(lease);
            is_its.then(|| state.grant(now, Resource::Name(tenure.name().clone()), tenure.epoch(), period, tenure.lost_token())).flatten()
        });
        let Some((number, released)) = granted else {
            // The member is drained, and holds the name under another epoch next time.
            tenure.cancel().cancelled().await;
            return;
        };
        // A separate task has the tenure, and so its guard, because this one is dropped when the time for finishing has passed.
        let (held, until) = (tenure.clone(), released.clone());
        tokio::spawn(async move {
            until.cancelled().await;
            drop(held);
        });
        let lost = LostWhenDropped { leases: &self, number };
        let asked = async {
            tenure.cancel().cancelled().await;
            self.advance(number, GrantPhase::Finish);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = released.cancelled() => {}
            () = asked => {}
        }
        drop(lost);
    }

    fn advance(&self, number: u64, phase: GrantPhase) {
        self.update(|state, now| state.advance(now, number, phase));
    }
}

/// A name is lost where its work is dropped; one that was released is not in the table any more.
struct LostWhenDropped<'a> {
    leases: &'a Leases,
    number: u64,
}

impl Drop for LostWhenDropped<'_> {
    fn drop(&mut self) {
        self.leases.advance(self.number, GrantPhase::Lost);
    }
}
