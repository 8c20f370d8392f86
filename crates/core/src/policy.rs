//! Validated policies: what a group has agreed on before anything is contacted.

use std::fmt;
use std::time::Duration;

use crate::{Fingerprint, GroupName, PolicyName, format_duration};

/// The most slots a circle may have.
pub const SLOTS_MAX: u32 = 65_536;
/// Slots of an eventual policy that names no number.
pub const SLOTS_DEFAULT: u32 = 16_384;
/// Slots of an exclusive policy, or one that drives an outbox, that names no number: each slot costs a claim or a fence row.
pub const SLOTS_OUTBOX: u32 = 1_024;
/// Points on the circle per unit of weight (chosen by measurement, see `docs/placement.md`).
pub const VIRTUAL_NODES_DEFAULT: u32 = 1_024;
/// The most points per unit of weight.
pub const VIRTUAL_NODES_MAX: u32 = 65_536;
/// The longest wait for work in flight at a handover or a leave.
pub const DRAIN_TIMEOUT_MAX: Duration = Duration::from_hours(24);
/// The longest time for which a member goes on without the backend.
pub const KEEP_FOR_MAX: Duration = Duration::from_hours(24);
const LOAD_MARGIN_MAX: u32 = 10_000;
const MIN_MEMBERS_MAX: u32 = crate::MEMBERS_MAX;
const TTL_MIN: Duration = Duration::from_millis(100);
const TTL_MAX: Duration = Duration::from_hours(24);

/// A setting that is not allowed: which, what it is, and what is allowed.
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

/// How keys find their owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PlacementKind {
    /// Protocol 1: slots on a ring of virtual nodes with bounded load.
    #[default]
    Ring,
}

impl PlacementKind {
    /// The name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ring => "ring",
        }
    }

    /// The number that stays with this algorithm for ever.
    pub const fn protocol(self) -> u32 {
        match self {
            Self::Ring => 1,
        }
    }
}

/// Who may hold a key while views differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OwnershipMode {
    /// Ownership is the placement of the newest view; two members may own one key while their views differ.
    #[default]
    Eventual,
}

impl OwnershipMode {
    /// The name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Eventual => "eventual",
        }
    }
}

/// What a member does when it loses the backend: its lease ends, or its view has been unproven for two TTLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BackendLoss {
    /// Owns nothing until it has joined again. Nothing is done twice.
    #[default]
    Stop,
    /// Goes on with its last view for at most this long, in state `stale`: nothing new is taken on, and work may be done twice.
    Keep {
        /// How long, from the deadline on.
        keep_for: Duration,
    },
}

/// How many members may vanish within one TTL before nobody takes over what they had, in percent of the active ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MaxLoss(u8);

impl MaxLoss {
    /// 1 to 99 percent; anything else is `None`.
    pub fn percent(percent: u32) -> Option<Self> {
        u8::try_from(percent).ok().filter(|percent| (1..=99).contains(percent)).map(Self)
    }

    /// Whether `missing` of `members` are more than may vanish.
    pub const fn is_exceeded(self, missing: usize, members: usize) -> bool {
        missing * 100 > members * self.0 as usize
    }
}

impl fmt::Display for MaxLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// How far above its fair share a member may be loaded, in thousandths; or not bounded at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadMargin {
    /// The classic ring: no bound.
    None,
    /// 0 to 10,000 thousandths; 50 means 5 %.
    Thousandths(u32),
}

impl LoadMargin {
    /// 5 %.
    pub const DEFAULT: Self = Self::Thousandths(50);

    /// Reads `"none"` or a decimal number from 0 to 10 with at most three decimals.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let wrong = || refuse("load_margin", text, "write \"none\" or a number from 0 to 10 with at most three decimals, such as 0.05");
        if text == "none" {
            return Ok(Self::None);
        }
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let decimals_kept = decimals.trim_end_matches('0');
        if !digits(whole) || !digits(decimals) || decimals_kept.len() > 3 {
            return Err(wrong());
        }
        let whole: u32 = whole.parse().map_err(|_| wrong())?;
        let thousandths: u32 = format!("{decimals_kept:0<3}").parse().map_err(|_| wrong())?;
        let margin = whole.checked_mul(1_000).and_then(|w| w.checked_add(thousandths)).ok_or_else(wrong)?;
        if margin <= LOAD_MARGIN_MAX { Ok(Self::Thousandths(margin)) } else { Err(wrong()) }
    }
}

impl Default for LoadMargin {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for LoadMargin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Thousandths(m) => {
                let text = format!("{}.{:03}", m / 1_000, m % 1_000);
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// Everything that decides who owns a slot, beside the members themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlacementParams {
    /// The algorithm.
    pub kind: PlacementKind,
    /// Slots of the circle, 1 to [`SLOTS_MAX`].
    pub slots: u32,
    /// Points per unit of weight, 1 to [`VIRTUAL_NODES_MAX`].
    pub virtual_nodes: u32,
    /// The bound on a member's share.
    pub load_margin: LoadMargin,
}

impl Default for PlacementParams {
    fn default() -> Self {
        Self { kind: PlacementKind::Ring, slots: SLOTS_DEFAULT, virtual_nodes: VIRTUAL_NODES_DEFAULT, load_margin: LoadMargin::DEFAULT }
    }
}

impl PlacementParams {
    /// Checks every number against its range.
    pub fn validated(self) -> Result<Self, PolicyError> {
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            return Err(refuse("slots", self.slots, format!("a number from 1 to {SLOTS_MAX} is allowed")));
        }
        if !(1..=VIRTUAL_NODES_MAX).contains(&self.virtual_nodes) {
            return Err(refuse("virtual_nodes", self.virtual_nodes, format!("a number from 1 to {VIRTUAL_NODES_MAX} is allowed")));
        }
        match self.load_margin {
            LoadMargin::Thousandths(m) if m > LOAD_MARGIN_MAX => Err(refuse("load_margin", self.load_margin, "at most 10 is allowed")),
            _ => Ok(self),
        }
    }
}

/// A named policy: the group, how keys are placed, how ownership is guarded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Its name in the settings.
    pub name: PolicyName,
    /// The group of workers it describes.
    pub group: GroupName,
    /// How keys are placed.
    pub placement: PlacementParams,
    /// How ownership is guarded.
    pub ownership: OwnershipMode,
    /// Below this number of active members nobody owns; 1 means no such gate.
    pub min_members: u32,
    /// How long a leaving member waits for work in flight.
    pub drain_timeout: Duration,
    /// What a member does without the backend.
    pub on_backend_loss: BackendLoss,
    /// When more members vanish within one TTL, nobody takes over what they had until enough are back or an operator confirms the loss;
    /// `None`: it is taken over however many they are.
    pub max_loss: Option<MaxLoss>,
}

impl Policy {
    /// A policy with every default: ring, eventual, [`SLOTS_DEFAULT`] slots, no gate, 30 s to drain.
    pub fn new(name: PolicyName, group: GroupName) -> Self {
        Self {
            name,
            group,
            placement: PlacementParams::default(),
            ownership: OwnershipMode::Eventual,
            min_members: 1,
            drain_timeout: Duration::from_secs(30),
            on_backend_loss: BackendLoss::Stop,
            max_loss: None,
        }
    }

    /// Checks every value against its range.
    pub fn validated(self) -> Result<Self, PolicyError> {
        let policy = Self { placement: self.placement.validated()?, ..self };
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
        Ok(policy)
    }

    /// The fingerprint of everything that members must agree on.
    pub fn fingerprint(&self) -> Fingerprint {
        let p = &self.placement;
        Fingerprint::of(&format!(
            "protocol={} placement={} slots={} virtual_nodes={} load_margin={} ownership={} min_members={} rejoin_grace=0 versions=none",
            p.kind.protocol(),
            p.kind.as_str(),
            p.slots,
            p.virtual_nodes,
            p.load_margin,
            self.ownership.as_str(),
            self.min_members,
        ))
    }
}

/// How a member stays alive: lease, renewal, and the margin by which it stops before its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// How long a record lives without renewal.
    pub ttl: Duration,
    /// Time between renewals.
    pub renew_every: Duration,
    /// How much earlier than the lease's end the member stops owning.
    pub stop_margin: Duration,
}

impl Timing {
    /// Checks that three renewals fit into a lease and that a renewal comes before the deadline. `renew_every` is a third of the TTL
    /// unless given.
    pub fn new(ttl: Duration, renew_every: Option<Duration>, stop_margin: Duration) -> Result<Self, PolicyError> {
        let renew = renew_every.unwrap_or(ttl / 3);
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            let allowed = format!("between {} and {} is allowed", format_duration(TTL_MIN), format_duration(TTL_MAX));
            return Err(refuse("ttl", format_duration(ttl), allowed));
        }
        if renew.is_zero() {
            return Err(refuse("renew_every", "0s", "more than zero is needed"));
        }
        if renew * 3 > ttl {
            let (ttl, least) = (format_duration(ttl), format_duration(renew * 3));
            return Err(refuse(
                "ttl",
                ttl,
                format!("it must cover three renewals: at least {least} with renew_every = {}", format_duration(renew)),
            ));
        }
        let timing = Self { ttl, renew_every: renew, stop_margin };
        if timing.owned_for(ttl) <= renew {
            let allowed = format!("with ttl = {} ownership would end before the first renewal; use less", format_duration(ttl));
            return Err(refuse("stop_margin", format_duration(stop_margin), allowed));
        }
        Ok(timing)
    }

    /// How long ownership lasts from the start of a renewal that granted `ttl`: 0.99 of it (1 % bounds the difference of two clocks'
    /// rates) less the margin.
    pub fn owned_for(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(ttl / 100).saturating_sub(self.stop_margin)
    }
}

impl Default for Timing {
    /// A TTL of 10 s, renewed every third of it, with a margin of 100 ms.
    fn default() -> Self {
        Self { ttl: Duration::from_secs(10), renew_every: Duration::from_secs(10) / 3, stop_margin: Duration::from_millis(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy::new(PolicyName::new("p").unwrap(), GroupName::new("g").unwrap())
    }

    #[test]
    fn load_margins_are_read_in_thousandths() {
        for (text, margin) in [("0.05", 50), ("0", 0), ("10", 10_000), ("1.5", 1_500), ("0.050", 50), ("0.001", 1)] {
            assert_eq!(LoadMargin::parse(text), Ok(LoadMargin::Thousandths(margin)), "{text}");
        }
        assert_eq!(LoadMargin::parse("none"), Ok(LoadMargin::None));
        for text in ["0.0005", "-1", "10.001", "11", "", ".5", "5.", "1e3", "None", "99999999999"] {
            assert!(LoadMargin::parse(text).is_err(), "{text}");
        }
        for margin in ["0.05", "0", "10", "1.5", "none"] {
            assert_eq!(LoadMargin::parse(margin).unwrap().to_string(), margin);
        }
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

    #[test]
    fn the_fingerprint_changes_with_whatever_members_must_agree_on_and_nothing_else() {
        let same = Policy { name: PolicyName::new("q").unwrap(), drain_timeout: Duration::ZERO, ..policy() };
        assert_eq!(policy().fingerprint(), same.fingerprint());
        let mut seen = vec![policy().fingerprint()];
        let changes: [fn(&mut Policy); 4] = [
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
}
