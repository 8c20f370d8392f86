//! Inputs and actions of the claims state machine.

use std::sync::Arc;
use std::time::Duration;

use crate::policy::OnDrainTimeout;
use crate::{Epoch, Resource};

/// How a member gives up its claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldingRules {
    /// How long work in flight may continue.
    pub drain_timeout: Duration,
    /// Rule for work that outlasts `drain_timeout`.
    pub on_drain_timeout: OnDrainTimeout,
}

/// Why a call failed, as far as this state machine needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFailure {
    /// A retry may succeed.
    Retryable,
    /// A retry fails until the cause in this text is fixed.
    Permanent(Arc<str>),
    /// The store of claims in force differs from the one that was asked, or its floor was raised.
    OtherStore,
}

/// Something that the driver must do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimAction {
    /// Ask which store of claims the group has; answer with `opened` or `failed` under this attempt.
    OpenStore {
        /// Its number.
        attempt: u64,
    },
    /// Acquire these in the store in use; answer with `acquired` or `failed` under this attempt.
    Acquire {
        /// Its number.
        attempt: u64,
        /// The resources.
        wanted: Vec<Resource>,
    },
    /// Release these; answer with `released` or `failed` under this attempt.
    Release {
        /// Its number.
        attempt: u64,
        /// The resources, and the epoch of each claim.
        held: Vec<(Resource, Epoch)>,
    },
    /// New work may start on these from now on.
    Gained(Vec<(Resource, Epoch)>),
    /// These were draining and serve again; they were never released.
    Kept(Vec<Resource>),
    /// Accept no new work on these; answer with `idle` for each on which no work is in flight.
    Drain(Vec<Resource>),
    /// The drain timeout of these has passed: cancel their work.
    Cancel(Vec<Resource>),
    /// Other members hold these already, or no member does: cancel their work at once.
    Lost(Vec<Resource>),
    /// These are released although work on them may still run.
    Overlap(Vec<Resource>),
}
