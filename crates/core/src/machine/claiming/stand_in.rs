//! Standing in for owners that do not claim, giving it back to those that ask, and asking others for the same.

use std::time::Duration;

use super::ClaimState;
use crate::machine::takeover::TakeoverOrder;
use crate::{Cause, InstanceId, Moment, PlacementParams, Resource, View};

impl ClaimState {
    /// Scans, if it is time, for what no member holds and for what others hold in this member's place. Returns the number to show if it
    /// asks for the latter.
    pub(in crate::machine) fn scan(
        &mut self,
        now: Moment,
        ttl: Duration,
        view: &View,
        params: PlacementParams,
        me: &InstanceId,
    ) -> Option<u64> {
        if !self.holdings.is_store_accepted() || now < self.unclaimed.next_scan(ttl) {
            return None;
        }
        self.stand_in(now, ttl, view, params, me);
        if self.missed().next().is_none() {
            self.reclaims.start_over();
            return None;
        }
        let theirs = self.missed().find(|resource| self.holdings.is_held_by_another(resource)).cloned();
        if let Some(resource) = &theirs {
            self.holdings.probe(now, resource, &mut self.pending);
        }
        self.reclaims.scan(now, ttl, theirs.is_some() && self.holdings.can_acquire())
    }

    /// What this member should own and does not hold.
    fn missed(&self) -> impl Iterator<Item = &Resource> {
        self.holdings.missed().filter(|resource| !self.stood_in.contains(*resource))
    }

    /// Acquires what was not claimed for too long and for which this member is next.
    fn stand_in(&mut self, now: Moment, ttl: Duration, view: &View, params: PlacementParams, me: &InstanceId) {
        let Self { holdings, names, wanted, wanted_names, stood_in, .. } = self;
        let free = || {
            let slots = holdings.free_slots(wanted.slots()).minus(wanted);
            let names = names.difference(wanted_names).cloned().map(Resource::Name).filter(|name| holdings.is_free(name));
            slots.iter().map(Resource::Slot).chain(names).filter(|resource| !stood_in.contains(resource)).collect()
        };
        let taken = self.unclaimed.scan(now, ttl, free, || TakeoverOrder::of(view, params, names), me);
        if !taken.is_empty() {
            self.cause = Cause::OwnerAbsent;
            self.stood_in.extend(taken);
            self.want_all(now);
        }
    }

    /// Gives back what these members own. Under a version rule the holder of a resource is its owner, so no member asks.
    pub(super) fn give_back(&mut self, askers: &[InstanceId]) {
        if askers.is_empty() || self.rolling.is_some() {
            return;
        }
        let Self { stood_in, unclaimed, .. } = self;
        let held = stood_in.len();
        stood_in.retain(|resource| !unclaimed.is_owned_by(askers, resource));
        self.wanted_changed |= stood_in.len() < held;
    }
}
