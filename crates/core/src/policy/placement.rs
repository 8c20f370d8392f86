//! How keys find their owner: the algorithm and its numbers, checked against their ranges.

use std::fmt;

use super::{PolicyError, refuse};

/// The most slots a ring may have.
pub const SLOTS_MAX: u32 = 65_536;
/// Default slots of an eventual policy.
pub const SLOTS_DEFAULT: u32 = 16_384;
/// Default slots of an exclusive policy, or of one that drives an outbox, where each slot costs a claim or a fence row.
pub const SLOTS_OUTBOX: u32 = 1_024;
/// Points on the ring per unit of weight (chosen by measurement, see `docs/reference/placement.md`).
pub const VIRTUAL_NODES_DEFAULT: u32 = 1_024;
/// The most points per unit of weight.
pub const VIRTUAL_NODES_MAX: u32 = 65_536;
const LOAD_MARGIN_MAX: u32 = 10_000;

/// How keys find their owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PlacementKind {
    /// Protocol 1: slots on a ring of virtual nodes with bounded load.
    #[default]
    Ring,
    /// Protocol 5: the ring, with the members of each weight together getting what their weight entitles them to.
    Quota,
    /// Another fleet's rule, applied to each key separately and without slots.
    Key(KeyPlacement),
}

impl PlacementKind {
    /// The name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Quota => "quota",
            Self::Key(placement) => placement.as_str(),
        }
    }

    /// The protocol number, which never changes for an algorithm.
    pub const fn protocol(self) -> u32 {
        match self {
            Self::Ring => 1,
            Self::Key(KeyPlacement::Uhashring) => 2,
            Self::Key(KeyPlacement::Modulo) => 3,
            Self::Key(KeyPlacement::Hashring) => 4,
            Self::Quota => 5,
        }
    }

    /// The algorithm with this name.
    pub fn named(name: &str) -> Option<Self> {
        let keys = [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring].map(Self::Key);
        [Self::Ring, Self::Quota].into_iter().chain(keys).find(|kind| kind.as_str() == name)
    }

    /// Whether it uses `virtual_nodes`.
    pub const fn uses_virtual_nodes(self) -> bool {
        matches!(self, Self::Ring | Self::Quota | Self::Key(KeyPlacement::Hashring))
    }

    /// The key placement, if it is one.
    pub const fn by_key(self) -> Option<KeyPlacement> {
        match self {
            Self::Ring | Self::Quota => None,
            Self::Key(placement) => Some(placement),
        }
    }
}

/// Another fleet's rule: an owner for each key separately, without slots (`docs/reference/key-placements.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyPlacement {
    /// Protocol 2: the Python package uhashring 2.4, `HashRing(ids).get_node(key)`.
    Uhashring,
    /// Protocol 3: FNV-1a in 32 bits modulo the number of members.
    Modulo,
    /// Protocol 4: the crate `hashring` with its default hasher.
    Hashring,
}

impl KeyPlacement {
    /// The name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Uhashring => "uhashring",
            Self::Modulo => "modulo",
            Self::Hashring => "hashring",
        }
    }
}

impl fmt::Display for KeyPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How far above its fair share a member may be loaded, in thousandths; or no bound.
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

/// Everything except the members themselves that decides the owner of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlacementParams {
    /// The algorithm.
    pub kind: PlacementKind,
    /// Slots of the ring, 1 to [`SLOTS_MAX`].
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
    /// Slots of the ring; 0 under a key placement, whatever `slots` says.
    pub const fn ring_slots(&self) -> u32 {
        match self.kind {
            PlacementKind::Ring | PlacementKind::Quota => self.slots,
            PlacementKind::Key(_) => 0,
        }
    }

    /// What members must agree on, without values that have no effect.
    pub(super) fn canonical(&self) -> String {
        let Self { kind, slots, virtual_nodes, load_margin } = self;
        let name = format!("protocol={} placement={}", kind.protocol(), kind.as_str());
        match kind {
            PlacementKind::Ring | PlacementKind::Quota => {
                format!("{name} slots={slots} virtual_nodes={virtual_nodes} load_margin={load_margin}")
            }
            PlacementKind::Key(KeyPlacement::Hashring) => format!("{name} virtual_nodes={virtual_nodes}"),
            PlacementKind::Key(KeyPlacement::Uhashring | KeyPlacement::Modulo) => name,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_and_a_number_of_its_own() {
        let kinds = ["ring", "uhashring", "modulo", "hashring", "quota"].map(|name| (name, PlacementKind::named(name).unwrap()));
        for ((name, kind), protocol) in kinds.into_iter().zip(1..) {
            assert_eq!((kind.as_str(), kind.protocol(), kind.by_key().is_none()), (name, protocol, ["ring", "quota"].contains(&name)));
        }
        assert_eq!(PlacementKind::named("rendezvous"), None);
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
}
