//! One live worker of a group.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hex::hex_number;
use crate::{Escaped, Fingerprint, InstanceId, Serves};

/// The largest weight; the smallest is 1.
pub const WEIGHT_MAX: u8 = 100;

/// A member's share of the work relative to others: 1 to [`WEIGHT_MAX`], default 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u8")]
pub struct Weight(u8);

impl Weight {
    /// The default weight.
    pub const ONE: Self = Self(1);

    /// A weight from 1 to [`WEIGHT_MAX`]; anything else is `None`.
    pub fn new(weight: u64) -> Option<Self> {
        u8::try_from(weight).ok().filter(|w| (1..=WEIGHT_MAX).contains(w)).map(Self)
    }

    /// The weight as a number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<u64> for Weight {
    type Error = String;
    fn try_from(weight: u64) -> Result<Self, String> {
        Self::new(weight).ok_or_else(|| format!("weight is {weight}; whole numbers from 1 to {WEIGHT_MAX} are allowed"))
    }
}

impl From<Weight> for u8 {
    fn from(weight: Weight) -> Self {
        weight.0
    }
}

/// A random number drawn at each start; it distinguishes a restarted member from its former run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

impl Incarnation {
    /// Wraps a number that the caller drew at random.
    pub const fn new(random: u64) -> Self {
        Self(random)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next incarnation, for a member that left and joins again in the same process.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

hex_number!(Incarnation);

/// Where a member can be reached, for display and for request forwarding; placement ignores it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    /// TCP port, 1 to 65,535.
    pub port: u16,
}

/// For display: control characters are escaped.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = Escaped(&self.host);
        if self.host.contains(':') { write!(f, "[{host}]:{}", self.port) } else { write!(f, "{host}:{}", self.port) }
    }
}

/// The state in a member's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Has its share.
    Active,
    /// Is leaving: still renews, and has no share.
    Draining,
    /// Is leaving for a while: finishes its work and still renews. It keeps its share, which is not served.
    Pausing,
    /// Has left for a while; its record stays. It keeps its share, which is not served, until it returns or the rejoin grace ends.
    Away,
}

impl MemberState {
    /// Whether the placement counts it.
    pub const fn has_share(self) -> bool {
        !matches!(self, Self::Draining)
    }

    /// Whether it keeps a share that is not served for a while.
    pub const fn rests(self) -> bool {
        matches!(self, Self::Pausing | Self::Away)
    }

    /// The name in records and in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Pausing => "pausing",
            Self::Away => "away",
        }
    }
}

/// A member that has vanished and keeps its share in the placement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Missing {
    /// Its id.
    pub instance_id: InstanceId,
    /// Its weight.
    pub weight: Weight,
}

/// The part of a record about vanished members (see `max_loss`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// More members vanished within one TTL than the policy allows: these keep their share until they return.
    Missing(Vec<Missing>),
    /// An operator confirmed that they are gone for good.
    Confirmed,
}

/// What a record says of a worker that is watched. Without it the worker is not watched, or works. Placement does not read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerHealth {
    /// Its checks fail, since that time in milliseconds since the Unix epoch by its machine's clock, which decides only the order in which
    /// members drain.
    Failing(u64),
    /// It has not been seen yet, or its lease has ended. The record is draining.
    Absent,
}

impl WorkerHealth {
    /// The name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failing(_) => "failing",
            Self::Absent => "absent",
        }
    }
}

/// One live worker of a group, as its record in the backend shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name in the group.
    pub instance_id: InstanceId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The backend's number for the moment it joined: later registrations have higher ones. Comparable only within one backend.
    pub joined: u64,
    /// Its address, if it gave one.
    pub address: Option<Address>,
    /// Its share relative to others.
    pub weight: Weight,
    /// Its failure domain, if it named one.
    pub zone: Option<String>,
    /// The worker's version, if it named one.
    pub version: Option<String>,
    /// Whether it has its share.
    pub state: MemberState,
    /// The health of its worker, if the worker is watched and does not work.
    pub worker: Option<WorkerHealth>,
    /// Its statement about vanished members.
    pub loss: Option<Loss>,
    /// How often it has asked for what others hold in its place; a member that sees another number gives that back. 0 in the record of
    /// an older version. The placement ignores it.
    pub reclaims: u64,
    /// The fingerprints it can serve: one, or two during a change of policy.
    pub fingerprints: Vec<Fingerprint>,
    /// What it serves; `None` in the record of an older version.
    pub serves: Option<Serves>,
    /// Metadata attached by the worker.
    pub metadata: BTreeMap<String, String>,
}

impl Member {
    /// An active member of weight 1 with only an id, for plans and tests.
    pub fn named(instance_id: InstanceId) -> Self {
        Self {
            instance_id,
            incarnation: Incarnation::new(0),
            joined: 0,
            address: None,
            weight: Weight::ONE,
            zone: None,
            version: None,
            state: MemberState::Active,
            worker: None,
            loss: None,
            reclaims: 0,
            fingerprints: Vec::new(),
            serves: None,
            metadata: BTreeMap::new(),
        }
    }
}
