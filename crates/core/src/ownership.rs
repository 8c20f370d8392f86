//! An immutable snapshot of what one member holds now, shared by readers.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::grants::Grants;
use crate::refusal::MemberRefusal;
use crate::{
    ClaimName, Epoch, Fence, Fingerprint, KeyShare, Moment, PlacementKind, PlacementParams, PolicyName, Resource, ShardKey, SlotSet, View,
    slot_of,
};

/// The state of a service (`docs/architecture.md`, "The life of a member").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServiceState {
    /// Not registered yet.
    Created,
    /// Registering, or waiting for the first view that shows this member.
    Joining,
    /// A member with its share.
    Active,
    /// Cut off from the backend, on its last view: keeps its share until the deadline, takes nothing new, and others may do the same
    /// work. Only under [`BackendLoss::Keep`](crate::BackendLoss).
    Stale,
    /// Leaving: takes nothing new.
    Draining,
    /// Deregistered.
    Left,
    /// Its lease expired or its view became too old; owns nothing until it has joined again.
    Fenced,
    /// The group or the backend does not accept it; [`Ownership::refusal`] has the reason: missing or expired rights, wrong settings, a
    /// living member with the same id, or other placement constants than the group's.
    ///
    /// It recovers by itself once the cause is gone. Refused by the backend, it retries about once per TTL, at least every 30 s and at
    /// most twice a second; refused by the group, it stays registered and takes part again with the first view that accepts it. The first
    /// join is different: `register_self` returns the reason at once and cancels the join.
    Refused,
    /// Sharding is switched off: this worker owns everything.
    Unsharded,
}

impl ServiceState {
    /// The state's name in output and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Joining => "joining",
            Self::Active => "active",
            Self::Stale => "stale",
            Self::Draining => "draining",
            Self::Left => "left",
            Self::Fenced => "fenced",
            Self::Refused => "refused",
            Self::Unsharded => "unsharded",
        }
    }
}

impl fmt::Display for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a service owns nothing at all, as opposed to owning none of the given keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this worker owns nothing: {state}, {hint}")]
pub struct NotOwning {
    /// The state of the service.
    pub state: ServiceState,
    /// Since when, on the service's clock.
    pub since: Moment,
    /// The cause and what to do.
    pub hint: String,
}

/// Why a key has no fence on this member now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotHeld {
    /// The service holds nothing.
    #[error("this worker holds nothing: it is {0}")]
    NotLive(ServiceState),
    /// The key's slot is not held on this member.
    #[error("slot {slot} is not held by this worker")]
    Elsewhere {
        /// The key's slot.
        slot: u32,
    },
    /// Another member owns the key, under a placement without slots.
    #[error("the key is not held by this worker: placement {} gives it to another member", placement.as_str())]
    KeyElsewhere {
        /// The placement that the group serves.
        placement: PlacementKind,
    },
    /// The name is not held on this member.
    #[error("the name is not held by this worker")]
    NameElsewhere,
    /// The policy's ownership is not exclusive, so there are no epochs.
    #[error("there are no epochs: the policy's ownership is not \"exclusive\"")]
    NoEpochs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldShare {
    /// Under a key placement, a ring without slots.
    pub(crate) slots: Arc<SlotSet>,
    /// `None` unless under a key placement.
    pub(crate) keys: Option<KeyShare>,
    /// `None` unless ownership is exclusive.
    pub(crate) grants: Option<Arc<Grants>>,
}

impl HeldShare {
    pub(crate) fn nothing(params: &PlacementParams) -> Self {
        Self { slots: Arc::new(SlotSet::empty(params.ring_slots())), keys: params.kind.by_key().map(|_| KeyShare::nothing()), grants: None }
    }

    pub(crate) fn emptied(&self) -> Self {
        Self { slots: Arc::new(SlotSet::empty(self.slots.slots())), keys: self.keys.as_ref().map(|_| KeyShare::nothing()), grants: None }
    }

    #[inline]
    pub(crate) fn holds<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        match &self.keys {
            None => self.slots.holds(key),
            Some(keys) => keys.holds(key),
        }
    }

    pub(crate) fn slots_owned(&self) -> Option<u32> {
        self.keys.is_none().then(|| self.slots.len())
    }
}

/// What one member holds at one moment: state, slots, and the deadline after which it holds nothing, whatever the bitmap says.
///
/// Reading takes no lock and allocates nothing. Every question about keys takes the present moment, so a process that wakes after a pause
/// with an old snapshot owns nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Ownership {
    pub(crate) state: ServiceState,
    pub(crate) since: Moment,
    pub(crate) held: HeldShare,
    /// `None`: it never ends (unsharded or frozen).
    pub(crate) deadline: Option<Moment>,
    /// Until when the record, and with it every claim of this incarnation, belongs to the member, including claims that drain.
    pub(crate) claims_end: Option<Moment>,
    pub(crate) view: Arc<View>,
    pub(crate) policy_fingerprint: Option<Fingerprint>,
    pub(crate) rebalancing_frozen: bool,
    /// For hints with a command; `None` if no policy was given, as in tests.
    pub(crate) policy: Option<PolicyName>,
    pub(crate) min_members: u32,
    pub(crate) refusal: Option<MemberRefusal>,
}

impl Ownership {
    /// The snapshot of a service that has not registered.
    pub fn created(params: &PlacementParams, since: Moment) -> Self {
        Self {
            state: ServiceState::Created,
            since,
            held: HeldShare::nothing(params),
            deadline: None,
            claims_end: None,
            view: Arc::default(),
            policy_fingerprint: None,
            rebalancing_frozen: false,
            policy: None,
            min_members: 1,
            refusal: None,
        }
    }

    /// A snapshot that never ends, with a fixed share, for tests.
    pub fn fixed(state: ServiceState, slots: SlotSet, view: Arc<View>, since: Moment) -> Self {
        let rebalancing_frozen = !view.missing().is_empty();
        let held = HeldShare { slots: Arc::new(slots), keys: None, grants: None };
        Self { state, held, view, rebalancing_frozen, ..Self::created(&PlacementParams::default(), since) }
    }

    /// A snapshot that never ends and owns everything, of a service with sharding switched off.
    pub fn unsharded(params: &PlacementParams, view: Arc<View>, since: Moment) -> Self {
        let keys = params.kind.by_key().map(|_| KeyShare::everything());
        let held = HeldShare { slots: Arc::new(SlotSet::full(params.ring_slots())), keys, grants: None };
        Self { state: ServiceState::Unsharded, held, view, ..Self::created(params, since) }
    }

    /// The last snapshot of a leaving service without a backend; it owns nothing.
    #[must_use]
    pub fn left(&self, since: Moment) -> Self {
        Self { state: ServiceState::Left, since, held: self.held.emptied(), ..self.clone() }
    }

    /// The state as of this snapshot. An `Active` snapshot past its deadline owns nothing.
    pub const fn state(&self) -> ServiceState {
        self.state
    }

    /// Since when it is in that state.
    pub const fn since(&self) -> Moment {
        self.since
    }

    /// The slots held until the deadline. Under a key placement the ring has no slots ([`SlotSet::slots`] is 0); see
    /// [`Ownership::keys`].
    pub fn slots(&self) -> &SlotSet {
        &self.held.slots
    }

    /// The number of slots held until the deadline; `None` under a key placement.
    pub fn slots_owned(&self) -> Option<u32> {
        self.held.slots_owned()
    }

    /// The keys held until the deadline; `None` unless under a key placement.
    pub const fn keys(&self) -> Option<&KeyShare> {
        self.held.keys.as_ref()
    }

    /// When ownership ends unless renewed; `None` if it never ends or nothing is owned.
    pub const fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Under exclusive ownership, when every claim ends unless the lease is renewed, including claims of slots that drain and are no
    /// longer owned. `None` while nothing can be claimed.
    pub const fn claims_end(&self) -> Option<Moment> {
        self.claims_end
    }

    /// The fence of `key` at `now`, for the user's own writes: its slot, and the epoch under which this member holds it.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn fence_at<K: ShardKey + ?Sized>(&self, key: &K, now: Moment) -> Result<Fence, NotHeld> {
        let slot = slot_of(key.key_hash(), self.held.slots.slots());
        self.epoch_at(&Resource::Slot(slot), now).map(|epoch| Fence { slot, epoch })
    }

    /// The epoch under which a slot or a name is held at `now`.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub fn epoch_at(&self, resource: &Resource, now: Moment) -> Result<Epoch, NotHeld> {
        if !self.is_live_at(now) {
            return Err(NotHeld::NotLive(self.state_at(now)));
        }
        let grants = self.held.grants.as_ref().ok_or(NotHeld::NoEpochs)?;
        match resource {
            Resource::Slot(slot) => grants.of_slot(*slot).ok_or(NotHeld::Elsewhere { slot: *slot }),
            Resource::Name(name) => grants.names().get(name).copied().ok_or(NotHeld::NameElsewhere),
        }
    }

    /// The slots held, each with its epoch, ascending; empty unless ownership is exclusive.
    pub fn fences(&self) -> impl Iterator<Item = Fence> + '_ {
        let grants = self.held.grants.as_deref();
        let slots = grants.into_iter().flat_map(|_| self.held.slots.iter());
        slots.filter_map(move |slot| Some(Fence { slot, epoch: grants?.of_slot(slot)? }))
    }

    /// The names held, each with its epoch: singletons, daemons, timers.
    pub fn names(&self) -> impl Iterator<Item = (&ClaimName, Epoch)> {
        self.held.grants.iter().flat_map(|grants| grants.names()).map(|(name, epoch)| (name, *epoch))
    }

    /// The fingerprint in force: of the policy with its `placement`, or with its `next`. `None` until the member has been active;
    /// afterwards a member that is no longer active keeps the last one.
    pub const fn policy_fingerprint(&self) -> Option<Fingerprint> {
        self.policy_fingerprint
    }

    /// The view it was computed from.
    pub const fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Why the group or the backend refused this member, if it did.
    pub const fn refusal(&self) -> Option<&MemberRefusal> {
        self.refusal.as_ref()
    }

    /// Whether vanished members keep their share because there are more than `max_loss` allows. The view's records list them, or this
    /// member's record is about to.
    pub const fn rebalancing_frozen(&self) -> bool {
        self.rebalancing_frozen
    }

    /// Whether anything can be owned at `now`: active, stale or unsharded, and before the deadline.
    #[inline]
    pub fn is_live_at(&self, now: Moment) -> bool {
        matches!(self.state, ServiceState::Active | ServiceState::Stale | ServiceState::Unsharded)
            && self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Whether `key` is held at `now`.
    #[inline]
    pub fn owns_at<K: ShardKey + ?Sized>(&self, key: &K, now: Moment) -> bool {
        self.is_live_at(now) && self.held.holds(key)
    }

    /// Why nothing is owned at `now`; `None` if something can be. An active member may have no slots and then owns no key.
    pub fn not_owning_at(&self, now: Moment) -> Option<NotOwning> {
        let gated = self.state == ServiceState::Active && self.view.active() < self.min_members as usize;
        (!self.is_live_at(now) || gated).then(|| NotOwning { state: self.state_at(now), since: self.since, hint: self.hint_at(now) })
    }

    /// The state at `now`: an active or stale snapshot past its deadline is fenced, whether or not a timer has fired.
    pub fn state_at(&self, now: Moment) -> ServiceState {
        let may_end = matches!(self.state, ServiceState::Active | ServiceState::Stale);
        if may_end && !self.is_live_at(now) { ServiceState::Fenced } else { self.state }
    }

    fn hint_at(&self, now: Moment) -> String {
        match self.state_at(now) {
            ServiceState::Created => "call register_self first".into(),
            ServiceState::Joining => "the backend has not confirmed this member yet; wait, or look at the log for its errors".into(),
            ServiceState::Active if self.view.all_draining() && self.view.members().iter().any(|member| member.worker.is_some()) => {
                "all members are drained or their workers do not work, so no key has an owner; see shardwise members".into()
            }
            // This member is active, so its own record drains because an operator wants it, and not because it leaves.
            ServiceState::Active if self.view.all_draining() => {
                let policy = self.policy.as_ref().map(|name| format!(" --policy {name}")).unwrap_or_default();
                format!("all members are drained, so no key has an owner; to undo it, run shardwise undrain ID{policy}")
            }
            ServiceState::Active => {
                format!("{} active members, min_members is {}; start more workers", self.view.active(), self.min_members)
            }
            ServiceState::Stale => "the backend is out of reach; it keeps what it has".into(),
            ServiceState::Draining => "it is leaving; finish the work in flight".into(),
            ServiceState::Left => "it has left the group; call register_self to join again".into(),
            ServiceState::Fenced => "its lease has expired; it joins again as soon as the backend answers".into(),
            ServiceState::Refused => self.refusal.as_ref().map_or_else(|| "refused".into(), ToString::to_string),
            ServiceState::Unsharded => "sharding is switched off".into(),
        }
    }
}

impl fmt::Debug for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share: &dyn fmt::Debug = self.held.keys.as_ref().map_or(&self.held.slots, |keys| keys);
        write!(f, "{} with {share:?} until {:?} at revision {}", self.state, self.deadline, self.view.revision())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InstanceId, KeyOwners, KeyPlacement, Member, MemberState, PlacementKind, Weight};

    fn active_until(deadline: u64) -> Ownership {
        let mut ownership = Ownership::fixed(ServiceState::Active, SlotSet::full(64), Arc::default(), Moment::ZERO);
        (ownership.deadline, ownership.min_members) = (Some(Moment::from_nanos(deadline)), 0);
        ownership
    }

    #[test]
    fn past_the_deadline_nothing_is_owned_and_the_state_says_fenced() {
        let ownership = active_until(100);
        assert!(ownership.owns_at("k", Moment::from_nanos(99)));
        assert!(!ownership.owns_at("k", Moment::from_nanos(100)));
        assert_eq!(ownership.not_owning_at(Moment::from_nanos(99)), None);
        assert_eq!(ownership.not_owning_at(Moment::from_nanos(100)).unwrap().state, ServiceState::Fenced);
    }

    #[test]
    fn where_all_members_are_drained_the_hint_says_so_and_how_to_undo_it() {
        let member = |id: &str, state| Member { state, ..Member::named(InstanceId::new(id).unwrap()) };
        let hint = |members: Vec<Member>| {
            let mut ownership = active_until(100);
            (ownership.view, ownership.min_members) = (Arc::new(View::new(1, members)), 2);
            ownership.policy = Some(PolicyName::new("workers").unwrap());
            ownership.not_owning_at(Moment::ZERO).unwrap().hint
        };
        let drained = hint(vec![member("a", MemberState::Draining), member("b", MemberState::Draining)]);
        assert_eq!(drained, "all members are drained, so no key has an owner; to undo it, run shardwise undrain ID --policy workers");
        let one_is_left = hint(vec![member("a", MemberState::Draining), member("b", MemberState::Active)]);
        assert_eq!(one_is_left, "1 active members, min_members is 2; start more workers");
    }

    #[test]
    fn under_a_key_placement_the_keys_count_and_the_deadline_as_ever() {
        let members = ["a", "b"].map(|id| (InstanceId::new(id).unwrap(), Weight::ONE));
        let owners = Arc::new(KeyOwners::place(members.clone(), KeyPlacement::Modulo, 1).unwrap());
        let mine = HeldShare { slots: Arc::new(SlotSet::empty(0)), keys: Some(owners.share_of(&members[0].0)), grants: None };
        let ownership = Ownership { held: mine, ..active_until(100) };
        let keys: Vec<u32> = (0..1_000).collect();
        let expected: Vec<&u32> = keys.iter().filter(|key| owners.owner(*key) == Some(&members[0].0)).collect();
        let (now, late) = (Moment::from_nanos(99), Moment::from_nanos(100));
        assert!(expected.len() > 400 && expected.len() < 600);
        assert_eq!(ownership.filter_at(&keys, now), expected);
        assert_eq!(ownership.filter_indices_at(&keys, now).len(), expected.len());
        assert_eq!((ownership.count_at(&keys, now), ownership.count_at(&keys, late)), (expected.len(), 0));
        assert!(ownership.owns_at(expected[0], now) && !ownership.owns_at(expected[0], late));
        assert!(ownership.filter_at(&keys, late).is_empty());
        assert_eq!(ownership.slots_owned(), None);
    }

    #[test]
    fn unsharded_owns_everything_for_ever() {
        for (kind, slots) in [(PlacementKind::Ring, Some(16_384)), (PlacementKind::Key(KeyPlacement::Uhashring), None)] {
            let params = PlacementParams { kind, ..PlacementParams::default() };
            let ownership = Ownership::unsharded(&params, Arc::default(), Moment::ZERO);
            assert!(ownership.owns_at("anything", Moment::from_nanos(u64::MAX)));
            assert_eq!(ownership.slots_owned(), slots);
        }
    }
}
