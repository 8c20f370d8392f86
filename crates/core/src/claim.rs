//! Claims: the holder of a slot or a name, and its epoch (exclusive mode; `docs/internals/backend-contract.md`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hex::hex_number;
use crate::{ClaimName, Incarnation, InstanceId};

/// The fencing token of one acquisition. It rises with every acquisition of a resource and never falls or repeats; epochs of one group
/// are comparable across resources. 1 to [`Epoch::MAX`], so that it fits BIGINT in SQL and a number in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Epoch(u64);

/// A number outside the range of epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not an epoch: epochs are numbers from 1 to {max}", max = Epoch::MAX.0)]
pub struct EpochError(pub u64);

impl Epoch {
    /// 2^53 - 1, the largest integer that every JSON reader represents exactly.
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

/// The backend's answer for one requested resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The member holds it under this epoch.
    Granted(Epoch),
    /// Another member holds it; the watch reports when it becomes free.
    Held,
    /// It is free, but the backend does not grant it yet (Consul's lock delay). No watch reports the end of that: ask again.
    NotYet,
}

/// What a claim is for. Slots and names of one group do not collide.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A slot of the group's ring, below [`SLOTS_MAX`](crate::SLOTS_MAX).
    Slot(u32),
    /// The name of a singleton, a daemon or a timer.
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

/// What your own write carries, so that your database can reject it once another member has acquired the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The slot of the key.
    pub slot: u32,
    /// The epoch under which it is held.
    pub epoch: Epoch,
}

/// One incarnation of a member, as the holder of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The member.
    pub instance_id: InstanceId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// A record in the backend with the holder of a resource and its epoch.
///
/// Only the answer to the acquisition gives the holder its epoch; other readers may see an older one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who holds it.
    pub holder: Holder,
    /// The epoch, as far as the reader can see.
    pub epoch: Epoch,
}

/// The random id of one store of claims. A wiped or replaced store has another id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(u64);

hex_number!(StoreId);

impl StoreId {
    /// Wraps the number that was drawn at random when the store was created.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The store of one group's claims, and a lower bound on its epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimStore {
    /// Its id.
    pub id: StoreId,
    /// Every epoch granted in this store is above it. After a wipe, the operator raises it above the highest epoch used before.
    pub floor: u64,
}

impl ClaimStore {
    /// The highest floor; it leaves half of the range for epochs.
    pub const FLOOR_MAX: u64 = 1 << 52;

    /// The epoch of the acquisition with the backend's number `number` (from 1, rising).
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
            "9007199254740992 is not an epoch: epochs are numbers from 1 to 9007199254740991"
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
