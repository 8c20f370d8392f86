//! Owners while the group's versions differ (rule 8 of `docs/reference/placement.md`): the holder of a resource keeps it, and a free one
//! goes to the newest version that has room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ring::{self, Point};
use crate::{
    ClaimName, Holder, InstanceId, Member, NameOwners, PlacementParams, Resource, SlotOwners, SlotSet, Version, View, Weight, hash_bytes,
    slot_start,
};

/// The assignment of one resource. A member is an index into `members`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assignment {
    /// This member holds it and keeps it.
    Held(u32),
    /// It is free, and this member acquires it.
    Next(u32),
    /// It is free and stays free.
    Unassigned,
}

/// The assignment of each slot and each name: a pure function of a view and of the present holders.
///
/// While members act as assigned, the result for a view stays the same, however many of its steps they have taken: a slot acquired by its
/// next owner changes nothing for the others. So it is recomputed only after some other acquisition ([`Succession::follows`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Succession {
    /// The active members, in the order of the ids' bytes.
    members: Vec<Holder>,
    slots: Vec<Assignment>,
    names: BTreeMap<ClaimName, Assignment>,
}

impl Succession {
    /// Assigns by a view and by what its members hold. `names` are the names to place; a resource that is not in `holders` counts as
    /// free. While members are [missing](View::missing), free resources stay free; while a member is away, its share does. This computes
    /// the whole ring, in time proportional to the number of points.
    pub fn of_view<'a>(
        view: &View,
        params: PlacementParams,
        names: &BTreeSet<ClaimName>,
        holders: impl IntoIterator<Item = (&'a Resource, &'a Holder)>,
    ) -> Self {
        Self::new(view, params, names, holders, |members| ring::sorted_points(members, params.virtual_nodes, hash_bytes))
    }

    /// Like [`Succession::of_view`], with a source for the members' points on the ring, which is called only if a resource is free.
    pub(crate) fn new<'a>(
        view: &View,
        params: PlacementParams,
        names: &BTreeSet<ClaimName>,
        holders: impl IntoIterator<Item = (&'a Resource, &'a Holder)>,
        points: impl FnOnce(&[(InstanceId, Weight)]) -> Vec<Point>,
    ) -> Self {
        let members: Vec<&Member> = view.eligible(view.group_fingerprint()).filter(|member| !member.state.rests()).collect();
        let holder = |member: &&Member| Holder { instance_id: member.instance_id.clone(), incarnation: member.incarnation };
        let mut this = Self {
            members: members.iter().map(holder).collect(),
            slots: vec![Assignment::Unassigned; params.ring_slots() as usize],
            names: names.iter().map(|name| (name.clone(), Assignment::Unassigned)).collect(),
        };
        for (resource, holder) in holders {
            if let Some(member) = this.index_of(holder)
                && let Some(assignment) = this.assignment_mut(resource)
            {
                *assignment = Assignment::Held(member);
            }
        }
        let is_complete = this.slots.iter().chain(this.names.values()).all(|assignment| *assignment != Assignment::Unassigned);
        if !is_complete && !members.is_empty() && view.missing().is_empty() {
            let kept = ReservedShare::of(view, params, names);
            this.place(&members, params, &kept, points);
        }
        this
    }

    /// Assigns every free resource, except those reserved for members that are away.
    fn place(
        &mut self,
        members: &[&Member],
        params: PlacementParams,
        kept: &ReservedShare,
        points: impl FnOnce(&[(InstanceId, Weight)]) -> Vec<Point>,
    ) {
        let weighed: Vec<_> = members.iter().map(|member| (member.instance_id.clone(), member.weight)).collect();
        let points = points(&weighed);
        let tiers = tiers(members);
        let slots =
            (0..params.ring_slots()).zip(&mut self.slots).filter(|(slot, assignment)| assignment.is_held() || !kept.slots.contains(*slot));
        let capacities = ring::capacities(&weighed, params.ring_slots(), params.load_margin);
        give(&points, &tiers, capacities, slots.map(|(slot, assignment)| (slot_start(slot, params.ring_slots()), assignment)));
        // Even more names than the largest number of slots have room, since the capacities are computed for their number.
        let count = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let capacities = ring::capacities(&weighed, count, params.load_margin);
        let names = self.names.iter_mut().filter(|(name, assignment)| assignment.is_held() || !kept.names.contains(*name));
        give(&points, &tiers, capacities, names.map(|(name, assignment)| (hash_bytes(name.as_str().as_bytes()), assignment)));
    }

    /// Records the present holder of a resource; false if this is not the expected one, so that the succession must be recomputed.
    pub fn follows(&mut self, resource: &Resource, holder: Option<&Holder>) -> bool {
        let holder = holder.and_then(|holder| self.index_of(holder));
        let Some(assignment) = self.assignment_mut(resource) else { return true };
        match (*assignment, holder) {
            (Assignment::Held(member), Some(holder)) => member == holder,
            (Assignment::Next(member), Some(holder)) if member == holder => {
                *assignment = Assignment::Held(member);
                true
            }
            (Assignment::Next(_) | Assignment::Unassigned, None) => true,
            _ => false,
        }
    }

    /// The member that should hold a resource; `None` if none should, or if the resource is not placed here.
    pub fn owner(&self, resource: &Resource) -> Option<&InstanceId> {
        let assignment = match resource {
            Resource::Slot(slot) => self.slots.get(*slot as usize),
            Resource::Name(name) => self.names.get(name),
        };
        let member = assignment.and_then(|assignment| assignment.member())?;
        Some(&self.members[member as usize].instance_id)
    }

    /// The slots that this member should hold.
    pub fn slots_of(&self, me: &InstanceId) -> SlotSet {
        let slots = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let me = self.number_of(me);
        let mine = (0..slots).zip(&self.slots).filter(|(_, assignment)| me.is_some() && assignment.member() == me);
        SlotSet::from_slots(slots, mine.map(|(slot, _)| slot))
    }

    /// The names that this member should hold.
    pub fn names_of(&self, me: &InstanceId) -> impl Iterator<Item = &ClaimName> {
        let me = self.number_of(me);
        self.names.iter().filter(move |(_, assignment)| me.is_some() && assignment.member() == me).map(|(name, _)| name)
    }

    fn number_of(&self, id: &InstanceId) -> Option<u32> {
        let at = self.members.binary_search_by(|member| member.instance_id.cmp(id)).ok()?;
        u32::try_from(at).ok()
    }

    /// The index of a member of this incarnation.
    fn index_of(&self, holder: &Holder) -> Option<u32> {
        self.number_of(&holder.instance_id).filter(|at| self.members[*at as usize].incarnation == holder.incarnation)
    }

    fn assignment_mut(&mut self, resource: &Resource) -> Option<&mut Assignment> {
        match resource {
            Resource::Slot(slot) => self.slots.get_mut(*slot as usize),
            Resource::Name(name) => self.names.get_mut(name),
        }
    }
}

/// What the placement gives to members that are away: it stays free until they return.
struct ReservedShare {
    slots: SlotSet,
    names: BTreeSet<ClaimName>,
}

impl ReservedShare {
    fn of(view: &View, params: PlacementParams, names: &BTreeSet<ClaimName>) -> Self {
        let mut kept = Self { slots: SlotSet::empty(params.ring_slots()), names: BTreeSet::new() };
        let resting: Vec<_> = view.members().iter().filter(|member| member.state.rests()).map(|member| &member.instance_id).collect();
        if resting.is_empty() {
            return kept;
        }
        let (by_slot, by_name) = (SlotOwners::of_view(view, params), NameOwners::of_view(view, params, names));
        kept.names = names.iter().filter(|name| by_name.owner(name).is_some_and(|owner| resting.contains(&owner))).cloned().collect();
        for id in resting {
            kept.slots = kept.slots.union(&by_slot.slots_of(id));
        }
        kept
    }
}

impl Assignment {
    const fn is_held(self) -> bool {
        matches!(self, Self::Held(_))
    }

    const fn member(self) -> Option<u32> {
        match self {
            Self::Held(member) | Self::Next(member) => Some(member),
            Self::Unassigned => None,
        }
    }
}

/// The rank of each member's version: 0 for the newest.
fn tiers(members: &[&Member]) -> Vec<usize> {
    let versions: Vec<_> = members.iter().map(|member| Reverse(Version::of(member.version.as_deref()))).collect();
    let mut newest_first = versions.clone();
    newest_first.sort_unstable();
    newest_first.dedup();
    // Every version is found; 0 avoids a panic.
    versions.iter().map(|version| newest_first.binary_search(version).unwrap_or(0)).collect()
}

/// Assigns the free resources, in the given order. Each goes to the first point clockwise of its place whose member has room, among the
/// members of the newest version that has any room.
fn give<'a>(points: &[Point], tiers: &[usize], capacities: Vec<u32>, assignments: impl Iterator<Item = (u64, &'a mut Assignment)>) {
    let mut room = capacities;
    let mut free = Vec::new();
    for (place, assignment) in assignments {
        match *assignment {
            // A member that holds more than its capacity has no room and keeps what it holds.
            Assignment::Held(member) => room[member as usize] = room[member as usize].saturating_sub(1),
            Assignment::Next(_) | Assignment::Unassigned => free.push((place, assignment)),
        }
    }
    let mut by_tier = vec![Vec::new(); tiers.iter().max().map_or(0, |last| last + 1)];
    for point in points.iter().filter(|point| room[point.member as usize] > 0) {
        by_tier[tiers[point.member as usize]].push(*point);
    }
    let mut free = free.into_iter();
    for (tier, points) in by_tier.iter().enumerate() {
        let members = || tiers.iter().zip(&room).filter(|(of, _)| **of == tier);
        let mut left: u64 = members().map(|(_, room)| u64::from(*room)).sum();
        while left > 0
            && let Some((place, assignment)) = free.next()
        {
            let first = points.partition_point(|point| point.hash < place);
            let clockwise = points[first..].iter().chain(&points[..first]);
            // Every member has a point, so there is one.
            if let Some(member) = clockwise.map(|point| point.member).find(|member| room[*member as usize] > 0) {
                room[member as usize] -= 1;
                left -= 1;
                *assignment = Assignment::Next(member);
            }
        }
    }
}

#[cfg(test)]
mod tests;
