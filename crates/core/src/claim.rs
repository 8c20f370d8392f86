//! Claims: who holds a slot or a name, and under which epoch (exclusive mode; `docs/internals/backend-contract.md`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ClaimName, Incarnation, InstanceId};

/// The fencing token of one acquisition: it rises with every acquisition of a resource and never falls or repeats, and those of one group
/// are comparable across resources. 1 to [`Epoch::MAX`], so that it fits BIGINT in SQL and a number in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Epoch(u64);

/// A number that is no epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no epoch: a number from 1 to {max} is one", max = Epoch::MAX.0)]
pub struct EpochError(pub u64);

impl Epoch {
    /// 2^53 - 1, the largest whole number that every JSON reader keeps.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Checks the range.
    pub const fn new(number: u64) -> Result<Self, EpochError> {
        if number == 0 || number > Self::MAX.0 { Err(EpochError(number)) } else { Ok(Self(number)) }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Epoch {
    type Error = EpochError;
    fn try_from(number: u64) -> Result<Self, EpochError> {
        Self::new(number)
    }
}

impl From<Epoch> for u64 {
    fn from(epoch: Epoch) -> Self {
        epoch.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The backend's answer for one resource that a member asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The member holds it under this epoch.
    Granted(Epoch),
    /// Another member holds it; the watch reports when it is free.
    Held,
    /// Nobody holds it, but the backend does not grant it yet (Consul's lock delay). No watch reports when it does: ask again.
    NotYet,
}

/// What a claim is on. Slots and names of one group do not collide.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A slot of the group's circle, below [`SLOTS_MAX`](crate::SLOTS_MAX).
    Slot(u32),
    /// A name of its own: a singleton, a daemon, a timer.
    Name(ClaimName),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "slot {slot}"),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// What the user's own write carries, so that his resource can refuse it once somebody else has had the slot since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The slot of the key.
    pub slot: u32,
    /// The epoch under which it is held.
    pub epoch: Epoch,
}

/// One life of one member, as the holder of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The member.
    pub instance_id: InstanceId,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// A record in the backend that says who holds a resource and under which epoch.
///
/// Only the answer to the acquisition tells the holder its epoch; what others read may be older than that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who holds it.
    pub holder: Holder,
    /// Under which epoch, as far as the reader can see.
    pub epoch: Epoch,
}

/// The random id of one store of claims. A store that was wiped or replaced has another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub(crate) u64);

impl StoreId {
    /// An id from its number; draw it at random where a store is made.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The store of one group's claims, and the number above which all its epochs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimStore {
    /// Its id.
    pub id: StoreId,
    /// Every epoch granted under this is above it. The operator raises it after a wipe, above the highest epoch used before.
    pub floor: u64,
}

impl ClaimStore {
    /// The highest floor: half of the range stays for epochs.
    pub const FLOOR_MAX: u64 = 1 << 52;

    /// The epoch of an acquisition that the backend numbered `number` (from 1, rising).
    pub const fn epoch(&self, number: u64) -> Result<Epoch, EpochError> {
        Epoch::new(self.floor.saturating_add(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_fit_bigint_and_json() {
        assert_eq!(Epoch::new(0), Err(EpochError(0)));
        assert_eq!(Epoch::new(9_007_199_254_740_991), Ok(Epoch::MAX));
        assert_eq!(
            Epoch::new(1 << 53).unwrap_err().to_string(),
            "9007199254740992 is no epoch: a number from 1 to 9007199254740991 is one"
        );
        assert_eq!(serde_json::to_string(&Epoch::MAX).unwrap(), "9007199254740991");
        assert!(serde_json::from_str::<Epoch>("0").is_err());
    }

    #[test]
    fn epochs_stand_above_the_floor() {
        let store = ClaimStore { id: StoreId::new(7), floor: ClaimStore::FLOOR_MAX };
        assert_eq!(store.epoch(3).map(Epoch::get), Ok(ClaimStore::FLOOR_MAX + 3));
        assert!(store.epoch(u64::MAX).is_err(), "a number beyond the range is an error, never a smaller epoch");
    }

    #[test]
    fn a_store_id_reads_what_it_shows_and_nothing_else() {
        for id in [StoreId::new(0), StoreId::new(0xab), StoreId::new(u64::MAX)] {
            assert_eq!(StoreId::from_hex(&id.to_string()), Some(id));
        }
        for wrong in ["", "ab", "+00000000000000f", "000000000000000g", "00000000000000000"] {
            assert_eq!(StoreId::from_hex(wrong), None, "{wrong}");
        }
    }
}
