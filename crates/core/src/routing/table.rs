//! The sets of all destinations, derived from one view.

use std::sync::Arc;

use super::{Candidates, MemberSet, NoRoute, PeerLoad, Routes, SessionId, Width, WidthHints};
use crate::{
    Holder, Holders, Incarnation, InstanceId, KeyOwners, Member, MemberState, Moment, Replicas, Resource, ShardKey, View, ViewPlacement,
    slot_of,
};

/// In place of an index: that member is not in the view, or does not serve its share now.
const NO_MEMBER: u32 = u32::MAX;

/// The members that may serve each destination, as one process knows them at one moment. Immutable: a later view or other claims make
/// another table, and readers swap it. Reading takes no lock and, except for [`RouteTable::labelled`], allocates nothing.
///
/// Members are indices into [`View::members`] of [`RouteTable::view`]; an index is valid for this table only.
#[derive(Debug, Clone)]
pub struct RouteTable {
    view: Arc<View>,
    /// One for each member of the view.
    loads: Box<[Arc<PeerLoad>]>,
    owners: OwnerTable,
    active: Box<[u32]>,
    /// Sorted; for sessions.
    incarnations: Box<[(Incarnation, u32)]>,
}

#[derive(Debug, Clone)]
enum OwnerTable {
    Unknown,
    Slots(SlotRanks),
    Keys(Arc<KeyOwners>),
}

/// The members of each slot: its owner, then its successors.
#[derive(Debug, Clone)]
struct SlotRanks {
    slots: u32,
    /// How many members each slot has, at most [`Width::MAX`].
    each: usize,
    indices: Box<[u32]>,
}

fn position(view: &View, id: &InstanceId) -> Option<usize> {
    view.members().binary_search_by(|member| member.instance_id.cmp(id)).ok()
}

fn index(position: usize) -> u32 {
    // A view has at most MEMBERS_MAX members.
    u32::try_from(position).unwrap_or(NO_MEMBER)
}

impl SlotRanks {
    /// `ranked` has `each` positions in `placed` for every slot. A member that rests keeps its share, and no other one serves it.
    fn of<'a>(view: &View, slots: u32, placed: impl Iterator<Item = &'a InstanceId>, each: usize, ranked: &[u32]) -> Self {
        let serving = |id| position(view, id).filter(|at| view.members().get(*at).is_some_and(|member| !member.state.rests()));
        let serving: Vec<u32> = placed.map(|id| serving(id).map_or(NO_MEMBER, index)).collect();
        let width = each.min(usize::from(Width::MAX.get()));
        let ranks = ranked.chunks_exact(each.max(1)).flat_map(|ranks| ranks.iter().take(width));
        let indices = ranks.map(|at| serving.get(*at as usize).copied().unwrap_or(NO_MEMBER)).collect();
        Self { slots, each: width, indices }
    }

    #[inline]
    fn of_key(&self, hash: u64) -> &[u32] {
        let begin = slot_of(hash, self.slots) as usize * self.each;
        self.indices.get(begin..begin + self.each).unwrap_or_default()
    }
}

impl RouteTable {
    /// The table under eventual ownership. `placement` is that of the view; `None` while this process cannot compute it.
    ///
    /// `successors` must be of the same view, with as many members as the policy's largest width. Without them every key has width 1. They
    /// take long to compute ([`Replicas::of_view`]), so a caller may leave them out until the first hot key. `before` is the table that
    /// this one replaces: the loads of members that stay are kept, and those of all others are dropped with it.
    pub fn eventual(view: Arc<View>, placement: Option<&ViewPlacement>, successors: Option<&Replicas>, before: Option<&Self>) -> Self {
        let owners = match (placement, successors) {
            (None, _) => OwnerTable::Unknown,
            (Some(ViewPlacement::Keys(owners)), _) => OwnerTable::Keys(Arc::clone(owners)),
            (Some(ViewPlacement::Slots(_)), Some(replicas)) => {
                let (slots, placed, each, ranked) = replicas.parts();
                OwnerTable::Slots(SlotRanks::of(&view, slots, placed.iter(), each, ranked))
            }
            (Some(ViewPlacement::Slots(owners)), None) => {
                let placed = owners.members().iter().map(|(id, _)| id);
                OwnerTable::Slots(SlotRanks::of(&view, owners.params().slots, placed, 1, owners.indices()))
            }
        };
        Self::of(view, owners, before)
    }

    /// The table under exclusive ownership: the holder of a slot alone serves its keys. `slots` is the size of the ring. `before` as in
    /// [`RouteTable::eventual`]. It takes time linear in the number of slots, so merge changes of claims that come together.
    pub fn exclusive(view: Arc<View>, slots: u32, holders: &Holders, before: Option<&Self>) -> Self {
        let mut indices = vec![NO_MEMBER; slots as usize];
        for (resource, held) in holders.iter() {
            if let Resource::Slot(slot) = resource
                && let Some(holder) = indices.get_mut(*slot as usize)
            {
                *holder = holder_in(&view, &held.claim.holder).unwrap_or(NO_MEMBER);
            }
        }
        let owners =
            if holders.is_known() { OwnerTable::Slots(SlotRanks { slots, each: 1, indices: indices.into() }) } else { OwnerTable::Unknown };
        Self::of(view, owners, before)
    }

    fn of(view: Arc<View>, owners: OwnerTable, before: Option<&Self>) -> Self {
        let known = |member: &Member| {
            let before = before?;
            let at = position(&before.view, &member.instance_id)?;
            let is_same = before.view.members().get(at)?.incarnation == member.incarnation;
            before.loads.get(at).filter(|_| is_same).cloned()
        };
        let loads = view.members().iter().map(|member| known(member).unwrap_or_default()).collect();
        let active = indices_where(&view, |member| member.state == MemberState::Active && view.belongs(member));
        let mut incarnations: Vec<(Incarnation, u32)> = view.members().iter().map(|member| member.incarnation).zip(0..).collect();
        incarnations.sort_unstable();
        Self { loads, owners, active, incarnations: incarnations.into(), view }
    }

    /// The view that it was derived from.
    pub const fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The record of a member.
    pub fn member(&self, index: u32) -> Option<&Member> {
        self.view.members().get(index as usize)
    }

    /// The load of a member, as this process knows it.
    pub fn peer_load(&self, index: u32) -> Option<&Arc<PeerLoad>> {
        self.loads.get(index as usize)
    }

    /// A set of this table with what is known of its members' loads, for a pick.
    pub const fn candidates<'a>(&'a self, set: &'a [u32], now: Moment) -> Candidates<'a> {
        Candidates::new(self, set, now)
    }

    /// The members for a key. Under eventual ownership these are its owner and, as far as it is spread, its successors: by the operator's
    /// route of the key, else by what its owner reported. A member that a route skips is left out, unless that leaves none.
    ///
    /// # Errors
    ///
    /// [`NoRoute::NoView`], [`NoRoute::NoMembers`], [`NoRoute::Unserved`].
    #[inline]
    pub fn owners<K: ShardKey + ?Sized>(&self, key: &K, now: Moment, hints: &WidthHints, routes: &Routes) -> Result<MemberSet, NoRoute> {
        let ranks = match &self.owners {
            OwnerTable::Unknown => return Err(NoRoute::NoView),
            OwnerTable::Keys(owners) => {
                let owner = owners.owner(key).ok_or(NoRoute::NoMembers)?;
                return self.instance(owner).map_err(|_| NoRoute::Unserved);
            }
            OwnerTable::Slots(ranks) => ranks,
        };
        let hash = key.key_hash();
        match ranks.of_key(hash) {
            [] => Err(NoRoute::NoMembers),
            [only] => serving(&[*only]),
            all => self.spread(all, hash, now, hints, routes),
        }
    }

    /// The first members of `ranks` as far as the key is spread.
    fn spread(&self, ranks: &[u32], hash: u64, now: Moment, hints: &WidthHints, routes: &Routes) -> Result<MemberSet, NoRoute> {
        let Some(route) = routes.get(hash) else {
            let width = usize::from(hints.width_at(now, hash).get());
            return serving(ranks.get(..width).unwrap_or(ranks));
        };
        let width = usize::from(route.width().get());
        let is_skipped = |index: u32| self.member(index).is_some_and(|member| route.skips(&member.instance_id));
        let mut set = MemberSet::EMPTY;
        let kept = ranks.iter().copied().filter(|index| !is_skipped(*index)).take(width);
        kept.filter(|index| *index != NO_MEMBER).for_each(|index| set.push(index));
        if set.as_slice().is_empty() { serving(ranks.get(..width).unwrap_or(ranks)) } else { Ok(set) }
    }

    /// Whether keys may have several members. Otherwise [`RouteTable::owners`] depends on no moment, hint or route.
    #[inline]
    pub const fn spreads(&self) -> bool {
        matches!(&self.owners, OwnerTable::Slots(ranks) if ranks.each > 1)
    }

    /// Whether that member may serve the key: it is the owner or, by the largest width, a successor. For the receiver of a request, which
    /// decides by its own view.
    pub fn accepts<K: ShardKey + ?Sized>(&self, key: &K, instance_id: &InstanceId) -> bool {
        match &self.owners {
            OwnerTable::Unknown => false,
            OwnerTable::Keys(owners) => owners.owner(key) == Some(instance_id),
            OwnerTable::Slots(ranks) => {
                let me = position(&self.view, instance_id).map(index);
                me.is_some_and(|me| ranks.of_key(key.key_hash()).contains(&me))
            }
        }
    }

    /// The active members: for requests that any member may serve.
    ///
    /// # Errors
    ///
    /// [`NoRoute::NoMembers`].
    pub fn active(&self) -> Result<&[u32], NoRoute> {
        if self.active.is_empty() { Err(NoRoute::NoMembers) } else { Ok(&self.active) }
    }

    /// The active members whose metadata has that value under that name. It reads every record: keep the result as long as the table.
    pub fn labelled(&self, name: &str, value: &str) -> Box<[u32]> {
        let has_label = |index: &u32| self.member(*index).and_then(|member| member.metadata.get(name)).is_some_and(|has| has == value);
        self.active.iter().copied().filter(has_label).collect()
    }

    /// The member of that name.
    ///
    /// # Errors
    ///
    /// [`NoRoute::UnknownMember`]; [`NoRoute::Unserved`] if it is away.
    pub fn instance(&self, instance_id: &InstanceId) -> Result<MemberSet, NoRoute> {
        let at = position(&self.view, instance_id).ok_or(NoRoute::UnknownMember)?;
        self.here(index(at)).ok_or(NoRoute::Unserved)
    }

    /// The holder of a name, by its claim; `None` while no member holds it.
    ///
    /// # Errors
    ///
    /// [`NoRoute::Unserved`].
    pub fn holder(&self, holder: Option<&Holder>) -> Result<MemberSet, NoRoute> {
        let index = holder.and_then(|holder| holder_in(&self.view, holder));
        index.map(MemberSet::one).ok_or(NoRoute::Unserved)
    }

    /// The member that opened a session. `came` is when the request came. `proven` is when the view was last proven current, read before
    /// this table, so that the table is at least as new.
    ///
    /// # Errors
    ///
    /// [`NoRoute::SessionEnded`] if that incarnation is missing from a view that was proven after the request came, else
    /// [`NoRoute::Unproven`].
    pub fn session(&self, session: &SessionId, came: Moment, proven: Option<Moment>) -> Result<MemberSet, NoRoute> {
        let minter = self.incarnations.binary_search_by_key(&session.minter(), |(incarnation, _)| *incarnation).ok();
        let here = minter.and_then(|at| self.incarnations.get(at)).and_then(|(_, index)| self.here(*index));
        here.ok_or(if proven.is_some_and(|proven| proven > came) { NoRoute::SessionEnded } else { NoRoute::Unproven })
    }

    /// That member, unless it is away: then its record is there and its process is not.
    fn here(&self, index: u32) -> Option<MemberSet> {
        self.member(index).filter(|member| member.state != MemberState::Away).map(|_| MemberSet::one(index))
    }
}

/// Those of `ranks` that serve.
fn serving(ranks: &[u32]) -> Result<MemberSet, NoRoute> {
    let mut set = MemberSet::EMPTY;
    ranks.iter().filter(|index| **index != NO_MEMBER).for_each(|index| set.push(*index));
    if set.as_slice().is_empty() { Err(NoRoute::Unserved) } else { Ok(set) }
}

fn holder_in(view: &View, holder: &Holder) -> Option<u32> {
    let at = position(view, &holder.instance_id)?;
    let is_same = view.members().get(at)?.incarnation == holder.incarnation;
    is_same.then(|| index(at))
}

fn indices_where(view: &View, is_in: impl Fn(&Member) -> bool) -> Box<[u32]> {
    view.members().iter().zip(0..).filter(|(member, _)| is_in(member)).map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests;
