//! Who should hold what while the group's versions differ (rule 8 of `docs/reference/placement.md`): whoever holds it keeps it, and what is free goes to
//! the newest version as long as that has room, then to the next older.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ring::{self, Point};
use crate::{
    ClaimName, Holder, InstanceId, Member, NameOwners, PlacementParams, Resource, SlotOwners, SlotSet, Version, View, Weight, hash_bytes,
    slot_start,
};

/// Whose one resource should be. A member is an index into the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assignment {
    /// This member holds it and keeps it.
    Held(u32),
    /// It is free, and this member takes it.
    Next(u32),
    /// It is free, and is to stay so.
    Nobody,
}

/// Who should hold each slot and each name, by a view and by who holds what: a pure function of both.
///
/// As long as the members do what it says it stays the same for the same view, whatever they have done of it: a slot that its next owner takes
/// changes nothing for the others. So it is made anew only where somebody does something else ([`Succession::follows`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Succession {
    /// The active members, in the order of the ids' bytes.
    members: Vec<Holder>,
    slots: Vec<Assignment>,
    names: BTreeMap<ClaimName, Assignment>,
}

impl Succession {
    /// By a view and by what its members hold. `names` are those that are to be placed; of a resource that is not listed nobody knows a holder.
    /// While members are [missing](View::missing) what is free stays so; while one is away, what the placement gives to that one. It makes the
    /// circle anew, which takes time for each point.
    pub fn of_view<'a>(
        view: &View,
        params: PlacementParams,
        names: &BTreeSet<ClaimName>,
        holders: impl IntoIterator<Item = (&'a Resource, &'a Holder)>,
    ) -> Self {
        Self::new(view, params, names, holders, |members| ring::circle(members, params.virtual_nodes, hash_bytes))
    }

    /// The same, with the points of the members on the circle from somewhere else. They are needed only if something is free.
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
            slots: vec![Assignment::Nobody; params.circle() as usize],
            names: names.iter().map(|name| (name.clone(), Assignment::Nobody)).collect(),
        };
        for (resource, holder) in holders {
            if let Some(member) = this.index_of(holder)
                && let Some(assignment) = this.assignment_mut(resource)
            {
                *assignment = Assignment::Held(member);
            }
        }
        let is_complete = this.slots.iter().chain(this.names.values()).all(|assignment| *assignment != Assignment::Nobody);
        if !is_complete && !members.is_empty() && view.missing().is_empty() {
            let kept = ReservedShare::of(view, params, names);
            this.place(&members, params, &kept, points);
        }
        this
    }

    /// Gives everything that is free to somebody, but for what is kept for those who are away.
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
            (0..params.circle()).zip(&mut self.slots).filter(|(slot, assignment)| assignment.is_held() || !kept.slots.contains(*slot));
        let capacities = ring::capacities(&weighed, params.circle(), params.load_margin);
        give(&points, &tiers, capacities, slots.map(|(slot, assignment)| (slot_start(slot, params.circle()), assignment)));
        // More names than there can be slots still have room, where each counts as one.
        let count = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let capacities = ring::capacities(&weighed, count, params.load_margin);
        let names = self.names.iter_mut().filter(|(name, assignment)| assignment.is_held() || !kept.names.contains(*name));
        give(&points, &tiers, capacities, names.map(|(name, assignment)| (hash_bytes(name.as_str().as_bytes()), assignment)));
    }

    /// Takes note of who holds a resource now; false if that is not what was to come, so that this is to be made anew.
    pub fn follows(&mut self, resource: &Resource, holder: Option<&Holder>) -> bool {
        let holder = holder.and_then(|holder| self.index_of(holder));
        let Some(assignment) = self.assignment_mut(resource) else { return true };
        match (*assignment, holder) {
            (Assignment::Held(member), Some(holder)) => member == holder,
            (Assignment::Next(member), Some(holder)) if member == holder => {
                *assignment = Assignment::Held(member);
                true
            }
            (Assignment::Next(_) | Assignment::Nobody, None) => true,
            _ => false,
        }
    }

    /// Who should hold a resource; `None` if nobody should, or if it is not placed here.
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
        let circle = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let me = self.number_of(me);
        let mine = (0..circle).zip(&self.slots).filter(|(_, assignment)| me.is_some() && assignment.member() == me);
        SlotSet::from_slots(circle, mine.map(|(slot, _)| slot))
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

    /// The number of a member in this very life.
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

/// What the placement gives to members that are away: it stays free until they are back.
struct ReservedShare {
    slots: SlotSet,
    names: BTreeSet<ClaimName>,
}

impl ReservedShare {
    fn of(view: &View, params: PlacementParams, names: &BTreeSet<ClaimName>) -> Self {
        let mut kept = Self { slots: SlotSet::empty(params.circle()), names: BTreeSet::new() };
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
            Self::Nobody => None,
        }
    }
}

/// For each member its place among the versions: 0 for the newest.
fn tiers(members: &[&Member]) -> Vec<usize> {
    let versions: Vec<_> = members.iter().map(|member| Reverse(Version::of(member.version.as_deref()))).collect();
    let mut newest_first = versions.clone();
    newest_first.sort_unstable();
    newest_first.dedup();
    // Every version is found; 0 keeps this total without a panic.
    versions.iter().map(|version| newest_first.binary_search(version).unwrap_or(0)).collect()
}

/// Gives what is free, in the order given, to the first point clockwise of its place whose member has room: of the members of the newest version
/// as long as one of them has, then of the next older.
fn give<'a>(points: &[Point], tiers: &[usize], capacities: Vec<u32>, assignments: impl Iterator<Item = (u64, &'a mut Assignment)>) {
    let mut room = capacities;
    let mut free = Vec::new();
    for (place, assignment) in assignments {
        match *assignment {
            // Whoever holds more than it would be given has no room, and keeps it all the same.
            Assignment::Held(member) => room[member as usize] = room[member as usize].saturating_sub(1),
            Assignment::Next(_) | Assignment::Nobody => free.push((place, assignment)),
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
