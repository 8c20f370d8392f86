//! What the machine of claims is told and what it asks for.

use std::sync::Arc;
use std::time::Duration;

use crate::{Epoch, Resource};

/// What happens to a resource whose work does not end in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnDrainTimeout {
    /// The claim is kept until the work ends, or the lease does: nothing runs twice.
    #[default]
    Hold,
    /// It is given to the next member though work may still run here; counted as an overlap.
    Release,
}

/// How a member lets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldingRules {
    /// How long work in flight may go on.
    pub drain_timeout: Duration,
    /// What happens then.
    pub on_drain_timeout: OnDrainTimeout,
}

/// Why a call failed, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFailure {
    /// May work later.
    Retryable,
    /// Will not work until somebody changes something.
    Permanent(Arc<str>),
    /// The store of claims in force is another one than the one asked, or its floor was raised.
    OtherStore,
}

/// Something for the driver to carry out, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimAction {
    /// Ask which store of claims the group has; answer with `opened` or `failed` under this attempt.
    OpenStore {
        /// Its number.
        attempt: u64,
    },
    /// Ask for these of the store in use; answer with `acquired` or `failed` under this attempt.
    Acquire {
        /// Its number.
        attempt: u64,
        /// What is asked for.
        wanted: Vec<Resource>,
    },
    /// Give these back; answer with `released` or `failed` under this attempt.
    Release {
        /// Its number.
        attempt: u64,
        /// What, and under which epoch it was held.
        held: Vec<(Resource, Epoch)>,
    },
    /// These serve from now on.
    Gained(Vec<(Resource, Epoch)>),
    /// These serve again: they had been draining and were not let go of.
    Kept(Vec<Resource>),
    /// No new work on these; answer with `idle` for each on which nothing is in flight.
    Drain(Vec<Resource>),
    /// The work in flight on these has had its time: tell it to stop.
    Cancel(Vec<Resource>),
    /// These are somebody else's already, or nobody's: tell their work at once.
    Lost(Vec<Resource>),
    /// These are given away though work on them may still run.
    Overlap(Vec<Resource>),
}
