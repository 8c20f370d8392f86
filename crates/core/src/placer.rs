//! Placements shared by all members of one process in the same group: the ring is kept, and each view is placed once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use crate::ownership::HeldShare;
use crate::{
    ClaimName, Holder, IncrementalRing, InstanceId, KeyOwners, PlacementParams, Resource, ShardKey, SlotOwners, SlotSet, Succession,
    TooManyPoints, View, Weight,
};

/// Above this many points a key placement should not run inside an async task: MD5 of so many takes some 15 ms.
const KEY_POINTS_LONG: u64 = 65_536;
/// The same for the ring, whose points are cheaper.
const RING_POINTS_LONG: u64 = 400_000;

/// The owners in a view: of each slot or, under a key placement, of each key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewPlacement {
    /// Slots have owners, and each key is in one slot.
    Slots(Arc<SlotOwners>),
    /// Keys have owners.
    Keys(Arc<KeyOwners>),
}

impl ViewPlacement {
    /// Places on `members`, given in any order; a repeated id counts once, with its first weight. `params` must be valid
    /// ([`PlacementParams::validated`]).
    ///
    /// # Errors
    ///
    /// [`TooManyPoints`], only under a key placement.
    pub fn place(members: impl IntoIterator<Item = (InstanceId, Weight)>, params: PlacementParams) -> Result<Self, TooManyPoints> {
        Ok(match params.kind.by_key() {
            None => Self::Slots(Arc::new(SlotOwners::place(members, params))),
            Some(placement) => Self::Keys(Arc::new(KeyOwners::place(members, placement, params.virtual_nodes)?)),
        })
    }

    /// The placement of a view. `params` must be valid ([`PlacementParams::validated`]).
    ///
    /// # Errors
    ///
    /// [`TooManyPoints`], only under a key placement.
    pub fn of_view(view: &View, params: PlacementParams) -> Result<Self, TooManyPoints> {
        Placer::new(params).place(view)
    }

    /// Whether placing `view` would give this placement again; computed without placing it.
    pub fn is_of(&self, view: &View) -> bool {
        match self {
            Self::Slots(owners) => owners.is_of(view),
            Self::Keys(owners) => owners.is_of(view),
        }
    }

    /// What one member holds; nothing for an unknown id.
    pub(crate) fn held_by(&self, instance_id: &InstanceId) -> HeldShare {
        match self {
            Self::Slots(owners) => HeldShare { slots: Arc::new(owners.slots_of(instance_id)), keys: None, grants: None },
            Self::Keys(owners) => HeldShare { slots: Arc::new(SlotSet::empty(0)), keys: Some(owners.share_of(instance_id)), grants: None },
        }
    }

    /// The members it was made from, sorted by the bytes of their ids.
    pub fn members(&self) -> &[(InstanceId, Weight)] {
        match self {
            Self::Slots(owners) => owners.members(),
            Self::Keys(owners) => owners.members(),
        }
    }

    /// The owner of a key; `None` without members.
    pub fn owner<K: ShardKey + ?Sized>(&self, key: &K) -> Option<&InstanceId> {
        match self {
            Self::Slots(owners) => owners.owner(key),
            Self::Keys(owners) => owners.owner(key),
        }
    }
}

/// Places views and keeps the ring and the last placement, so that a thousand members that share it compute each view once.
#[derive(Debug)]
pub struct Placer {
    params: PlacementParams,
    placing: Mutex<PlacerState>,
}

#[derive(Debug)]
struct PlacerState {
    ring: IncrementalRing,
    last: Option<ViewPlacement>,
}

impl PlacerState {
    fn last_by_key(&self) -> Option<&KeyOwners> {
        if let Some(ViewPlacement::Keys(last)) = &self.last { Some(last) } else { None }
    }
}

impl Placer {
    /// A placer without a placement yet. `params` must be valid ([`PlacementParams::validated`]).
    pub fn new(params: PlacementParams) -> Self {
        Self { params, placing: Mutex::new(PlacerState { ring: IncrementalRing::new(params), last: None }) }
    }

    /// The parameters of its placements.
    pub const fn params(&self) -> &PlacementParams {
        &self.params
    }

    /// Whether placing `view` takes so long that an async task should leave it to a blocking thread; answers at once. That is the case
    /// for the first placement of a large or heavy fleet: up to about 0.2 s on the ring and a second by a key placement. Later placements
    /// only add the points of newcomers.
    pub fn takes_long(&self, view: &View) -> bool {
        // A placement from scratch makes the most points.
        if !self.is_long(self.points_to_make(None, view)) {
            return false;
        }
        let placing = match self.placing.try_lock() {
            Ok(placing) => placing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another caller is placing such a fleet now, and waiting for it takes as long.
            Err(TryLockError::WouldBlock) => return true,
        };
        self.is_long(self.points_to_make(Some(&placing), view))
    }

    /// The number of points that placing `view` would make, starting from the last placement or from scratch.
    fn points_to_make(&self, last: Option<&PlacerState>, view: &View) -> u64 {
        let PlacementParams { kind, virtual_nodes, .. } = self.params;
        match (kind.by_key(), last) {
            (None, None) => SlotOwners::points_of(view, virtual_nodes),
            (None, Some(last)) => last.ring.points_to_make(view),
            (Some(placement), last) => KeyOwners::points_to_make(last.and_then(PlacerState::last_by_key), view, placement, virtual_nodes),
        }
    }

    const fn is_long(&self, points: u64) -> bool {
        points > if self.params.kind.by_key().is_none() { RING_POINTS_LONG } else { KEY_POINTS_LONG }
    }

    /// The placement of a view, equal to [`SlotOwners::of_view`] or [`KeyOwners::of_view`]; reuses the last one if it is of this view.
    ///
    /// # Errors
    ///
    /// [`TooManyPoints`], only under a key placement.
    pub fn place(&self, view: &View) -> Result<ViewPlacement, TooManyPoints> {
        // A panic here leaves a usable ring: the next view is compared with its contents.
        let mut placing = self.placing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = placing.last.as_ref().filter(|last| last.is_of(view)) {
            return Ok(last.clone());
        }
        let placed = match self.params.kind.by_key() {
            None => ViewPlacement::Slots(Arc::new(placing.ring.place_view(view))),
            Some(placement) => {
                ViewPlacement::Keys(Arc::new(KeyOwners::of_view_after(placing.last_by_key(), view, placement, self.params.virtual_nodes)?))
            }
        };
        placing.last = Some(placed.clone());
        Ok(placed)
    }

    /// The owners in a view given the present holders, equal to [`Succession::of_view`].
    pub(crate) fn succession<'a>(
        &self,
        view: &View,
        names: &BTreeSet<ClaimName>,
        holders: impl IntoIterator<Item = (&'a Resource, &'a Holder)>,
    ) -> Succession {
        let points = |members: &[_]| self.placing.lock().unwrap_or_else(PoisonError::into_inner).ring.points_of(members);
        Succession::new(view, self.params, names, holders, points)
    }

    /// The owner of each name in a view, equal to [`NameOwners::of_view`](crate::NameOwners::of_view), computed on the kept ring.
    pub fn place_names(&self, view: &View, names: &BTreeSet<ClaimName>) -> BTreeMap<ClaimName, InstanceId> {
        self.placing.lock().unwrap_or_else(PoisonError::into_inner).ring.place_names(view, names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyPlacement, Member, Moment, Ownership, PlacementKind, ServiceState};

    fn view(members: u32) -> View {
        View::new(u64::from(members), (0..members).map(|i| Member::named(InstanceId::new(format!("worker-{i}")).unwrap())).collect())
    }

    #[test]
    fn keys_are_placed_once_and_as_by_any_member() {
        for placement in [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring] {
            let params = PlacementParams { kind: PlacementKind::Key(placement), virtual_nodes: 16, ..PlacementParams::default() };
            let placer = Placer::new(params);
            let keys = |members| match placer.place(&view(members)) {
                Ok(ViewPlacement::Keys(owners)) => owners,
                other => panic!("no keys: {other:?}"),
            };
            for members in [3, 4, 4, 2, 0, 5] {
                let placed = keys(members);
                assert!(Arc::ptr_eq(&placed, &keys(members)));
                let anew = KeyOwners::of_view(&view(members), placement, 16).unwrap();
                assert_eq!(*placed, anew);
                assert!((0..200).all(|key| placed.owner(&key) == anew.owner(&key)));
            }
        }
    }

    #[test]
    fn what_takes_long_is_the_first_placement_of_many_points() {
        let heavy = |members: u32| {
            let weight = crate::Weight::new(100).unwrap();
            let named = |i| Member { weight, ..Member::named(InstanceId::new(format!("worker-{i}")).unwrap()) };
            View::new(u64::from(members), (0..members).map(named).collect())
        };
        let placer = |kind| Placer::new(PlacementParams { kind, virtual_nodes: 160, ..PlacementParams::default() });
        let python = placer(PlacementKind::Key(KeyPlacement::Uhashring));
        // 16,000 points each.
        assert!(!python.takes_long(&heavy(4)) && python.takes_long(&heavy(5)) && python.takes_long(&heavy(50)));
        let held = python.placing.lock().unwrap();
        assert!(!python.takes_long(&heavy(4)) && python.takes_long(&heavy(5)), "it does not wait to tell");
        drop(held);
        python.place(&heavy(5)).unwrap();
        assert!(!python.takes_long(&heavy(5)) && !python.takes_long(&heavy(9)), "only the points of newcomers are made");
        assert!(python.takes_long(&heavy(10)));
        assert!(!placer(PlacementKind::Key(KeyPlacement::Modulo)).takes_long(&heavy(1_000)), "it has no points");
    }

    #[test]
    fn on_the_ring_it_is_the_first_of_a_large_fleet_and_no_join() {
        let placer = Placer::new(PlacementParams::default());
        // 1,024 points each.
        assert!(!placer.takes_long(&view(390)) && placer.takes_long(&view(391)));
        let held = placer.placing.lock().unwrap();
        assert!(!placer.takes_long(&view(390)) && placer.takes_long(&view(391)), "it does not wait to tell");
        drop(held);
        placer.place(&view(600)).unwrap();
        // Merging a point costs as much as making four from scratch.
        assert!(!placer.takes_long(&view(600)) && !placer.takes_long(&view(697)) && !placer.takes_long(&view(503)));
        assert!(placer.takes_long(&view(698)) && placer.takes_long(&view(502)), "a hundred at once");
        assert!(placer.takes_long(&view(6_000)), "from here on everybody has fewer points");
    }

    /// While a placement is under way, readers that filter by the former one are not blocked.
    #[test]
    fn readers_do_not_wait_for_a_placement() {
        for kind in [PlacementKind::Ring, PlacementKind::Key(KeyPlacement::Uhashring)] {
            let placer = Placer::new(PlacementParams { kind, slots: 512, virtual_nodes: 16, ..PlacementParams::default() });
            let three = Arc::new(view(3));
            let placed = placer.place(&three).unwrap();
            let me = &three.members()[0].instance_id;
            let expected = (0..1_000_u32).filter(|key| placed.owner(key) == Some(me)).collect::<Vec<_>>();
            let before = Ownership::fixed(ServiceState::Active, SlotSet::empty(512), Arc::clone(&three), Moment::ZERO);
            let ownership = Ownership { held: placed.held_by(me), ..before };
            // As long as this is held, a placement is under way.
            let held = placer.placing.lock().unwrap();
            let (answer, answered) = std::sync::mpsc::channel();
            let reader = std::thread::spawn(move || {
                let keys: Vec<u32> = (0..1_000).collect();
                answer.send(ownership.filter_at(&keys, Moment::ZERO).into_iter().copied().collect::<Vec<_>>()).unwrap();
            });
            let filtered = answered.recv_timeout(std::time::Duration::from_mins(1)).expect("a reader waits for the thread that places");
            assert!(filtered == expected && !filtered.is_empty(), "{kind:?}");
            drop(held);
            reader.join().unwrap();
        }
    }

    #[test]
    fn a_view_is_placed_once_and_as_by_any_member() {
        let params = PlacementParams { slots: 512, ..PlacementParams::default() };
        let (one, other) = (Placer::new(params), Placer::new(params));
        for members in [3, 4, 4, 2, 0, 5] {
            let slots = |placer: &Placer| match placer.place(&view(members)) {
                Ok(ViewPlacement::Slots(owners)) => owners,
                other => panic!("no slots: {other:?}"),
            };
            let placed = slots(&one);
            assert_eq!(*placed, SlotOwners::of_view(&view(members), params));
            assert!(Arc::ptr_eq(&placed, &slots(&one)));
            assert!(!Arc::ptr_eq(&placed, &slots(&other)));
        }
    }
}
