//! Slots and names that their owner does not claim although it is in the view: it is refused, may not claim, or runs something else under
//! the group's name. The next member in line acquires them, and keeps them until the placement changes, as on a restart of the owner, or
//! until the owner asks for them (module `reclaim`).
//!
//! The share of a member that is away for a while is not taken over: its place is reserved.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{ClaimName, InstanceId, Moment, NameOwners, PlacementParams, REPLICAS_MAX, Replicas, Resource, View};

const SCANS_PER_TTL: u32 = 4;

/// Since when slots and names have had no holder.
#[derive(Debug, Default)]
pub(super) struct Unclaimed {
    since: BTreeMap<Resource, Moment>,
    scanned: Option<Moment>,
    /// The takeover order in the present group, once it was needed.
    order: Option<TakeoverOrder>,
}

/// The order of takeover in one group.
#[derive(Debug)]
pub(super) struct TakeoverOrder {
    slots: Replicas,
    names: NameOwners,
    /// Members whose share is reserved until they return.
    resting: BTreeSet<InstanceId>,
}

impl TakeoverOrder {
    pub(super) fn of(view: &View, params: PlacementParams, names: &BTreeSet<ClaimName>) -> Self {
        let resting = view.members().iter().filter(|member| member.state.rests()).map(|member| member.instance_id.clone()).collect();
        Self { slots: Replicas::of_view(view, params, REPLICAS_MAX), names: NameOwners::of_view(view, params, names), resting }
    }

    fn owner(&self, resource: &Resource) -> Option<&InstanceId> {
        match resource {
            Resource::Slot(slot) => self.slots.owners_of_slot(*slot, 1).next(),
            Resource::Name(name) => self.names.owner(name),
        }
    }

    /// Whether the resource is reserved for an owner that is away.
    fn rests(&self, resource: &Resource) -> bool {
        self.owner(resource).is_some_and(|owner| self.resting.contains(owner))
    }

    /// Whether `me` is the owner or one of the next `after` members.
    fn has(&self, resource: &Resource, after: usize, me: &InstanceId) -> bool {
        let count = after.saturating_add(1);
        match resource {
            Resource::Slot(slot) => self.slots.owners_of_slot(*slot, REPLICAS_MAX).take(count).any(|id| id == me),
            Resource::Name(name) => self.names.line(name).take(count).any(|id| id == me),
        }
    }
}

impl Unclaimed {
    /// Forgets the past: owners get their full time again.
    pub(super) fn start_over(&mut self) {
        self.since.clear();
        self.order = None;
    }

    /// Whether one of these members owns the resource; true if the owner is not known.
    pub(super) fn is_owned_by(&self, members: &[InstanceId], resource: &Resource) -> bool {
        self.order.as_ref().and_then(|order| order.owner(resource)).is_none_or(|owner| members.contains(owner))
    }

    pub(super) fn next_scan(&self, ttl: Duration) -> Moment {
        self.scanned.map_or(Moment::ZERO, |scanned| scanned.plus(ttl / SCANS_PER_TTL))
    }

    /// Checks, if it is time, which resources are free. Returns those that have been free for at least a TTL and for which `me` is next:
    /// the first member after the owner after one TTL, the second for two, and so on.
    pub(super) fn scan(
        &mut self,
        now: Moment,
        ttl: Duration,
        free: impl FnOnce() -> BTreeSet<Resource>,
        line: impl FnOnce() -> TakeoverOrder,
        me: &InstanceId,
    ) -> Vec<Resource> {
        if now < self.next_scan(ttl) {
            return Vec::new();
        }
        self.scanned = Some(now);
        let free = free();
        self.since.retain(|resource, _| free.contains(resource));
        for resource in free {
            self.since.entry(resource).or_insert(now);
        }
        let waited = |since: Moment| usize::try_from(now.since(since).as_nanos() / ttl.as_nanos().max(1)).unwrap_or(usize::MAX);
        let mut waiting = self.since.iter().map(|(resource, since)| (resource, waited(*since))).filter(|(_, ttls)| *ttls > 0).peekable();
        if waiting.peek().is_none() {
            return Vec::new();
        }
        let line = self.order.get_or_insert_with(line);
        waiting
            .filter(|(resource, ttls)| !line.rests(resource) && line.has(resource, *ttls, me))
            .map(|(resource, _)| resource.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Member, MemberState};

    const TTL: Duration = Duration::from_secs(4);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn id(id: &str) -> InstanceId {
        InstanceId::new(id).unwrap()
    }

    fn line() -> TakeoverOrder {
        let view = View::new(1, ["a", "b", "c"].map(|name| Member::named(id(name))).to_vec());
        TakeoverOrder::of(&view, PlacementParams { slots: 16, ..PlacementParams::default() }, &[ClaimName::new("leader").unwrap()].into())
    }

    fn everything() -> BTreeSet<Resource> {
        (0..16).map(Resource::Slot).chain([Resource::Name(ClaimName::new("leader").unwrap())]).collect()
    }

    #[test]
    fn what_is_free_counts_from_when_it_was_first_seen_so_and_not_while_it_is_held() {
        let mut unclaimed = Unclaimed::default();
        let free = |slots: &[u32]| slots.iter().copied().map(Resource::Slot).collect::<BTreeSet<_>>();
        let mut scan = |ms, slots: &[u32]| {
            // Of three members each is next after two TTLs at the latest.
            let mut taken: Vec<_> = ["a", "b", "c"]
                .iter()
                .flat_map(|me| {
                    let mut copy = Unclaimed { since: unclaimed.since.clone(), scanned: unclaimed.scanned, order: None };
                    copy.scan(at(ms), TTL, || free(slots), line, &id(me))
                })
                .collect();
            unclaimed.scan(at(ms), TTL, || free(slots), line, &id("nobody"));
            taken.sort_unstable();
            taken.dedup();
            taken
        };
        assert_eq!(scan(0, &[1, 2]), []);
        assert_eq!(scan(3_999, &[1, 2, 3]), []);
        assert_eq!(scan(5_000, &[1, 3]), [Resource::Slot(1)]);
        assert_eq!(scan(8_000, &[1, 2, 3]), [Resource::Slot(1), Resource::Slot(3)]);
        unclaimed.start_over();
        assert!(unclaimed.since.is_empty() && unclaimed.order.is_none());
        assert_eq!(unclaimed.scan(at(8_001), TTL, || panic!("too soon"), line, &id("a")), []);
    }

    #[test]
    fn what_belongs_to_an_away_member_is_left_alone() {
        for state in [MemberState::Away, MemberState::Pausing] {
            let members = ["a", "b", "c"].map(|name| Member::named(id(name)));
            let members = members.map(|member| if member.instance_id == id("b") { Member { state, ..member } } else { member });
            let names = [ClaimName::new("leader").unwrap()].into();
            let group =
                || TakeoverOrder::of(&View::new(1, members.to_vec()), PlacementParams { slots: 16, ..PlacementParams::default() }, &names);
            let placed = line();
            let of_b: Vec<_> = everything().into_iter().filter(|resource| placed.has(resource, 0, &id("b"))).collect();
            assert!(!of_b.is_empty() && of_b.len() < 17);
            let mut unclaimed = Unclaimed::default();
            unclaimed.scan(at(0), TTL, everything, group, &id("a"));
            // After many TTLs every member is in line.
            let taken = unclaimed.scan(at(400_000), TTL, everything, group, &id("a"));
            assert_eq!(taken, everything().into_iter().filter(|resource| !of_b.contains(resource)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_more_in_line_takes_it_with_each_ttl() {
        let group = line();
        for ttls in 1..4u64 {
            let takers = |resource: &Resource| {
                ["a", "b", "c"].iter().filter(|me| group.has(resource, usize::try_from(ttls).unwrap(), &id(me))).count()
            };
            let expected = usize::try_from(ttls + 1).unwrap().min(3);
            assert!(everything().iter().all(|resource| takers(resource) == expected), "after {ttls} TTLs");
        }
    }
}
