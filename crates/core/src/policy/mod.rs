//! Validated policies: what a group agrees on before a backend is contacted.

mod on_drain_timeout;
mod placement;
mod timing;
mod version_rule;

use std::fmt;
use std::time::Duration;

pub use on_drain_timeout::OnDrainTimeout;
pub use placement::{
    KeyPlacement, LoadMargin, PlacementKind, PlacementParams, SLOTS_DEFAULT, SLOTS_MAX, SLOTS_OUTBOX, VIRTUAL_NODES_DEFAULT,
    VIRTUAL_NODES_MAX,
};
pub use timing::Timing;
pub use version_rule::VersionRule;

use crate::{ClaimStore, Fingerprint, GroupName, PolicyName, format_duration};

/// The longest wait for work in flight at a handover or a leave.
pub const DRAIN_TIMEOUT_MAX: Duration = Duration::from_hours(24);
/// The longest time for which a member continues without the backend.
pub const KEEP_FOR_MAX: Duration = Duration::from_hours(24);
/// The shortest `rejoin_grace` other than zero: not every backend supports less.
pub const REJOIN_GRACE_MIN: Duration = Duration::from_secs(2);
/// The longest `rejoin_grace`.
pub const REJOIN_GRACE_MAX: Duration = Duration::from_hours(1);
const MIN_MEMBERS_MAX: u32 = crate::MEMBERS_MAX;

/// A value that is not allowed: the setting, the value, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}: {allowed}")]
pub struct PolicyError {
    /// The setting's key.
    pub key: &'static str,
    /// Its value, as written.
    pub value: String,
    /// What is allowed, as an instruction.
    pub allowed: String,
}

fn refuse(key: &'static str, value: impl fmt::Display, allowed: impl Into<String>) -> PolicyError {
    PolicyError { key, value: value.to_string(), allowed: allowed.into() }
}

/// Whether two members may own a key while their views differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OwnershipMode {
    /// Ownership is the placement of the newest view; two members may own one key while their views differ.
    #[default]
    Eventual,
    /// A slot is owned only while its claim is held in the backend, under an epoch; at most one member holds it.
    Exclusive,
}

impl OwnershipMode {
    /// The name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Eventual => "eventual",
            Self::Exclusive => "exclusive",
        }
    }

    /// The mode with this name in the settings.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Eventual, Self::Exclusive].into_iter().find(|mode| mode.as_str() == name)
    }
}

/// What a member does when it loses the backend: its lease ends, or its view has not been proven current for two TTLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BackendLoss {
    /// Owns nothing until it has joined again. No work runs twice.
    #[default]
    Stop,
    /// Continues with its last view for at most `keep_for`, in state `stale`: it takes nothing new, and work may run twice.
    Keep {
        /// How long, from the deadline on.
        keep_for: Duration,
    },
}

/// How many members may vanish within one TTL before takeovers stop, in percent of the active members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MaxLoss(u8);

impl MaxLoss {
    /// 1 to 99 percent; anything else is `None`.
    pub fn percent(percent: u32) -> Option<Self> {
        u8::try_from(percent).ok().filter(|percent| (1..=99).contains(percent)).map(Self)
    }

    /// Whether losing `missing` of `members` exceeds the limit.
    pub const fn is_exceeded(self, missing: usize, members: usize) -> bool {
        missing * 100 > members * self.0 as usize
    }
}

impl fmt::Display for MaxLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// A named policy: the group, its placement and its kind of ownership.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Its name in the settings.
    pub name: PolicyName,
    /// The group of workers it describes.
    pub group: GroupName,
    /// How keys are placed.
    pub placement: PlacementParams,
    /// The next placement: it applies from the first view in which every member lists it; until then `placement` does. Members with and
    /// without it work together.
    pub next: Option<PlacementParams>,
    /// How ownership is guarded.
    pub ownership: OwnershipMode,
    /// With fewer active members than this no member owns anything; 1 disables the gate.
    pub min_members: u32,
    /// How long a leaving member waits for work in flight; under exclusive ownership also how long work may continue in a slot that goes
    /// to another member.
    pub drain_timeout: Duration,
    /// What happens to a slot whose work outlasts `drain_timeout`. Exclusive ownership only.
    pub on_drain_timeout: OnDrainTimeout,
    /// Every epoch is above it. After the store of claims was wiped or replaced, the operator sets it above the highest epoch used
    /// before; at most [`ClaimStore::FLOOR_MAX`]. Exclusive ownership only.
    pub epoch_floor: u64,
    /// Who owns what while the members' versions differ. Exclusive ownership only.
    pub version_rule: VersionRule,
    /// How long a leaving member keeps its place: the placement counts it, and its slots are not served, until it returns under the same
    /// id or this time has passed. Zero disables it. Members must agree on it.
    pub rejoin_grace: Duration,
    /// What a member does without the backend.
    pub on_backend_loss: BackendLoss,
    /// If more members vanish within one TTL, their slots are not taken over until enough of them return or an operator confirms the
    /// loss. `None`: every loss is taken over.
    pub max_loss: Option<MaxLoss>,
}

impl Policy {
    /// A policy with every default: ring, eventual, [`SLOTS_DEFAULT`] slots, no gate, 30 s to drain.
    pub fn new(name: PolicyName, group: GroupName) -> Self {
        Self {
            name,
            group,
            placement: PlacementParams::default(),
            next: None,
            ownership: OwnershipMode::Eventual,
            min_members: 1,
            drain_timeout: Duration::from_secs(30),
            on_drain_timeout: OnDrainTimeout::Hold,
            epoch_floor: 0,
            version_rule: VersionRule::None,
            rejoin_grace: Duration::ZERO,
            on_backend_loss: BackendLoss::Stop,
            max_loss: None,
        }
    }

    /// Checks every value against its range.
    pub fn validated(self) -> Result<Self, PolicyError> {
        let policy = Self { placement: self.placement.validated()?, next: self.next.map(validated_next).transpose()?, ..self };
        if policy.next.is_some_and(|next| policy.fingerprint_with(&next) == policy.fingerprint()) {
            return Err(refuse("next", "the same as the policy", "set the keys that change, or remove it"));
        }
        if let (Some(max_loss), Some(placement)) = (policy.max_loss, policy.by_key()) {
            let allowed =
                format!("remove it: with placement {placement} the other fleet takes over the keys of every member that vanishes");
            return Err(refuse("max_loss", max_loss, allowed));
        }
        if !(1..=MIN_MEMBERS_MAX).contains(&policy.min_members) {
            return Err(refuse("min_members", policy.min_members, format!("a number from 1 to {MIN_MEMBERS_MAX} is allowed")));
        }
        if policy.drain_timeout > DRAIN_TIMEOUT_MAX {
            let value = format_duration(policy.drain_timeout);
            return Err(refuse("drain_timeout", value, format!("at most {} is allowed", format_duration(DRAIN_TIMEOUT_MAX))));
        }
        if let BackendLoss::Keep { keep_for } = policy.on_backend_loss
            && (keep_for.is_zero() || keep_for > KEEP_FOR_MAX)
        {
            let allowed = format!("more than zero and at most {} is allowed", format_duration(KEEP_FOR_MAX));
            return Err(refuse("keep_for", format_duration(keep_for), allowed));
        }
        policy.check_rejoin_grace()?;
        policy.check_exclusive()?;
        Ok(policy)
    }

    fn check_rejoin_grace(&self) -> Result<(), PolicyError> {
        if self.rejoin_grace.is_zero() {
            return Ok(());
        }
        let refuse = |allowed| Err(refuse("rejoin_grace", format_duration(self.rejoin_grace), allowed));
        if !(REJOIN_GRACE_MIN..=REJOIN_GRACE_MAX).contains(&self.rejoin_grace) {
            let (least, max) = (format_duration(REJOIN_GRACE_MIN), format_duration(REJOIN_GRACE_MAX));
            return refuse(format!("0s or from {least} to {max} is allowed"));
        }
        match self.by_key() {
            Some(placement) => {
                refuse(format!("remove it: with placement {placement} the other fleet takes over the keys of every member that leaves"))
            }
            None => Ok(()),
        }
    }

    /// Checks the settings that depend on `ownership`.
    fn check_exclusive(&self) -> Result<(), PolicyError> {
        if self.epoch_floor > ClaimStore::FLOOR_MAX {
            return Err(refuse("epoch_floor", self.epoch_floor, format!("at most {} is allowed", ClaimStore::FLOOR_MAX)));
        }
        if self.ownership != OwnershipMode::Exclusive {
            return self.version_rule.allowed_without_claims();
        }
        if let Some(placement) = self.by_key() {
            let allowed =
                format!("placement {placement} has no slots that could be claimed; write placement = \"ring\" or ownership = \"eventual\"");
            return Err(refuse("ownership", "exclusive", allowed));
        }
        if let Some(next) = self.next.filter(|next| next.slots != self.placement.slots) {
            let allowed = format!(
                "claims are on slots, so their number cannot change while members run: keep {} and change the rest, or start a new group",
                self.placement.slots
            );
            return Err(refuse("next.slots", next.slots, allowed));
        }
        if matches!(self.on_backend_loss, BackendLoss::Keep { .. }) {
            let allowed = "a claim ends with the lease, and nothing can be kept beyond it; remove it or write ownership = \"eventual\"";
            return Err(refuse("on_backend_loss", "keep", allowed));
        }
        Ok(())
    }

    /// The fingerprint of everything that members must agree on.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint_with(&self.placement)
    }

    /// The fingerprints in a member's record: the one with `placement`, then, with a `next`, the one with that.
    pub fn fingerprints(&self) -> Vec<Fingerprint> {
        self.placements().map(|placement| self.fingerprint_with(&placement)).collect()
    }

    /// The placement in a view whose members agree on `group` ([`View::group_fingerprint`](crate::View)); `None` if this policy cannot
    /// serve it. It is `placement` if no member lists a fingerprint.
    pub fn serving(&self, group: Option<Fingerprint>) -> Option<PlacementParams> {
        let Some(group) = group else { return Some(self.placement) };
        self.placements().find(|placement| self.fingerprint_with(placement) == group)
    }

    fn placements(&self) -> impl Iterator<Item = PlacementParams> {
        std::iter::once(self.placement).chain(self.next)
    }

    /// The key placement of `placement` or `next`, if either is one.
    pub fn by_key(&self) -> Option<KeyPlacement> {
        self.placements().find_map(|params| params.kind.by_key())
    }

    fn fingerprint_with(&self, placement: &PlacementParams) -> Fingerprint {
        Fingerprint::of(&format!(
            "{} ownership={} min_members={} rejoin_grace={} versions={}",
            placement.canonical(),
            self.ownership.as_str(),
            self.min_members,
            self.rejoin_grace.as_millis(),
            self.version_rule.as_str(),
        ))
    }
}

/// Checks `next` against the same ranges; errors name its settings as written.
fn validated_next(next: PlacementParams) -> Result<PlacementParams, PolicyError> {
    next.validated().map_err(|error| {
        let key = match error.key {
            "slots" => "next.slots",
            "virtual_nodes" => "next.virtual_nodes",
            "load_margin" => "next.load_margin",
            _ => "next",
        };
        PolicyError { key, ..error }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy::new(PolicyName::new("p").unwrap(), GroupName::new("g").unwrap())
    }

    #[test]
    fn impossible_policies_name_key_value_and_what_is_allowed() {
        let mut zero = policy();
        zero.placement.slots = 0;
        assert_eq!(zero.validated().unwrap_err().to_string(), "slots is 0: a number from 1 to 65536 is allowed");
        let mut gate = policy();
        gate.min_members = 0;
        assert_eq!(gate.validated().unwrap_err().key, "min_members");
        let short = Timing::new(Duration::from_secs(2), Some(Duration::from_secs(1)), Duration::ZERO).unwrap_err();
        assert_eq!(short.to_string(), "ttl is 2s: it must cover three renewals: at least 3s with renew_every = 1s");
        let margin = Timing::new(Duration::from_secs(1), None, Duration::from_secs(1)).unwrap_err();
        assert_eq!(margin.key, "stop_margin");
        assert!(Timing::new(Duration::from_secs(1), None, Duration::from_millis(100)).is_ok());
    }

    /// Consul grants half of the TTL to a member that claims.
    #[test]
    fn a_lease_that_ends_before_its_first_renewal_is_refused_and_the_longest_margin_named() {
        let timing = |ttl, margin| Timing::new(Duration::from_millis(ttl), None, Duration::from_millis(margin)).unwrap();
        let short = |ttl, margin| timing(ttl, margin).check_lease(Duration::from_millis(ttl / 2)).unwrap_err().to_string();
        assert_eq!(
            short(10_000, 5_000),
            "stop_margin is 5s: with ttl = 10s, of which the backend grants 5s, ownership would end before the first renewal; use less than 3283ms, or a longer ttl"
        );
        assert!(short(10_000, 4_000).starts_with("stop_margin is 4s: "), "fenced before each renewal, for ever");
        assert!(short(300, 100).contains("use less than 98ms"));
        for (ttl, margin) in [(10_000, 3_283), (300, 98), (2_000, 100)] {
            assert_eq!(timing(ttl, margin).check_lease(Duration::from_millis(ttl / 2)), Ok(()));
        }
        assert_eq!(timing(10_000, 5_000).check_lease(Duration::from_secs(10)), Ok(()), "where all of it is granted");
    }

    #[test]
    fn the_fingerprint_changes_with_whatever_members_must_agree_on_and_nothing_else() {
        let same = Policy { name: PolicyName::new("q").unwrap(), drain_timeout: Duration::ZERO, ..policy() };
        assert_eq!(policy().fingerprint(), same.fingerprint());
        let mut seen = vec![policy().fingerprint()];
        let changes: [fn(&mut Policy); 6] = [
            |p| p.rejoin_grace = Duration::from_secs(30),
            |p| p.rejoin_grace = Duration::from_secs(31),
            |p| p.placement.slots = 1_024,
            |p| p.placement.virtual_nodes = 160,
            |p| p.placement.load_margin = LoadMargin::None,
            |p| p.min_members = 2,
        ];
        for change in changes {
            let mut other = policy();
            change(&mut other);
            assert!(!seen.contains(&other.fingerprint()));
            seen.push(other.fingerprint());
        }
    }

    /// A wire format: workers in other languages compute it by docs/reference/placement.md.
    #[test]
    fn the_fingerprint_of_the_defaults_stays_what_it_is() {
        assert_eq!(policy().fingerprint().to_string(), "e4da8007a6415212");
    }

    #[test]
    fn the_fingerprint_of_a_key_placement_covers_what_counts_there_and_nothing_else() {
        let by = |placement, change: fn(&mut PlacementParams)| {
            let mut policy = policy();
            policy.placement.kind = PlacementKind::Key(placement);
            change(&mut policy.placement);
            policy.fingerprint()
        };
        let mut seen = vec![policy().fingerprint()];
        for placement in [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring] {
            let fingerprint = by(placement, |_| ());
            assert!(!seen.contains(&fingerprint), "{placement}");
            seen.push(fingerprint);
            assert_eq!(by(placement, |p| p.slots = 7), fingerprint);
            assert_eq!(by(placement, |p| p.load_margin = LoadMargin::None), fingerprint);
            assert_eq!(by(placement, |p| p.virtual_nodes = 7) == fingerprint, placement != KeyPlacement::Hashring);
        }
    }

    #[test]
    fn a_key_placement_has_no_max_loss_now_or_next() {
        let keys = PlacementParams { kind: PlacementKind::Key(KeyPlacement::Modulo), ..PlacementParams::default() };
        let careful = Policy { max_loss: MaxLoss::percent(50), ..policy() };
        for policy in [Policy { placement: keys, ..careful.clone() }, Policy { next: Some(keys), ..careful }] {
            assert_eq!(
                policy.clone().validated().unwrap_err().to_string(),
                "max_loss is 50%: remove it: with placement modulo the other fleet takes over the keys of every member that vanishes"
            );
            assert!(Policy { max_loss: None, ..policy }.validated().is_ok());
        }
    }

    #[test]
    fn a_place_is_kept_for_two_seconds_to_an_hour_and_for_slots_alone() {
        let with = |ms| Policy { rejoin_grace: Duration::from_millis(ms), ..policy() };
        for ms in [0, 2_000, 3_600_000] {
            assert!(with(ms).validated().is_ok(), "{ms} ms");
        }
        for (ms, value) in [(1, "1ms"), (1_999, "1999ms"), (3_600_001, "3600001ms")] {
            let said = with(ms).validated().unwrap_err().to_string();
            assert_eq!(said, format!("rejoin_grace is {value}: 0s or from 2s to 1h is allowed"));
        }
        let keys = PlacementParams { kind: PlacementKind::Key(KeyPlacement::Modulo), ..PlacementParams::default() };
        for policy in [Policy { placement: keys, ..with(2_000) }, Policy { next: Some(keys), ..with(2_000) }] {
            let said = policy.validated().unwrap_err().to_string();
            assert_eq!(
                said,
                "rejoin_grace is 2s: remove it: with placement modulo the other fleet takes over the keys of every member that leaves"
            );
        }
    }

    #[test]
    fn exclusive_ownership_claims_slots_and_nothing_else() {
        let exclusive = Policy { ownership: OwnershipMode::Exclusive, ..policy() };
        assert!(exclusive.clone().validated().is_ok());
        assert_ne!(exclusive.fingerprint(), policy().fingerprint());
        let by_key = PlacementParams { kind: PlacementKind::Key(KeyPlacement::Modulo), ..PlacementParams::default() };
        let other_slots = PlacementParams { slots: 1_024, ..PlacementParams::default() };
        let refused = |policy: Policy| policy.validated().unwrap_err().to_string();
        let no_slots = "ownership is exclusive: placement modulo has no slots that could be claimed; write placement = \"ring\" or ownership = \"eventual\"";
        assert_eq!(refused(Policy { placement: by_key, ..exclusive.clone() }), no_slots);
        assert_eq!(refused(Policy { next: Some(by_key), ..exclusive.clone() }), no_slots);
        assert_eq!(
            refused(Policy { next: Some(other_slots), ..exclusive.clone() }),
            "next.slots is 1024: claims are on slots, so their number cannot change while members run: keep 16384 and change the rest, \
             or start a new group"
        );
        let keep = BackendLoss::Keep { keep_for: Duration::from_secs(1) };
        assert_eq!(
            refused(Policy { on_backend_loss: keep, ..exclusive.clone() }),
            "on_backend_loss is keep: a claim ends with the lease, and nothing can be kept beyond it; remove it or write ownership = \"eventual\""
        );
        assert_eq!(
            refused(Policy { epoch_floor: (1 << 52) + 1, ..exclusive.clone() }),
            "epoch_floor is 4503599627370497: at most 4503599627370496 is allowed"
        );
        let upgrading = Policy { version_rule: VersionRule::Newest, ..exclusive.clone() }.validated().unwrap();
        assert_ne!(upgrading.fingerprint(), exclusive.fingerprint(), "all members must agree on it");
        for placement in [upgrading.placement, by_key] {
            assert_eq!(
                refused(Policy { ownership: OwnershipMode::Eventual, placement, ..upgrading.clone() }),
                "version_rule is newest: it is about who keeps a claim; write ownership = \"exclusive\" too, which needs placement = \"ring\", \
                 or write version_rule = \"none\""
            );
        }
    }

    #[test]
    fn a_next_is_served_beside_the_present_placement_and_has_to_differ_from_it() {
        let next = PlacementParams { slots: 1_024, ..PlacementParams::default() };
        let (old, changing) = (policy(), Policy { next: Some(next), ..policy() }.validated().unwrap());
        let done = Policy { placement: next, ..policy() };
        assert_eq!(changing.fingerprints(), [old.fingerprint(), done.fingerprint()]);
        assert_eq!((changing.fingerprint(), old.fingerprints()), (old.fingerprint(), vec![old.fingerprint()]));
        assert_eq!(changing.serving(Some(old.fingerprint())), Some(old.placement));
        assert_eq!(changing.serving(Some(done.fingerprint())), Some(next));
        assert_eq!((old.serving(Some(done.fingerprint())), old.serving(None)), (None, Some(old.placement)));
        let same = Policy { next: Some(old.placement), ..policy() }.validated().unwrap_err().to_string();
        assert_eq!(same, "next is the same as the policy: set the keys that change, or remove it");
        let none = Policy { next: Some(PlacementParams { virtual_nodes: 0, ..next }), ..policy() };
        assert_eq!(none.validated().unwrap_err().to_string(), "next.virtual_nodes is 0: a number from 1 to 65536 is allowed");
    }
}
