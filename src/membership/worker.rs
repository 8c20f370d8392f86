//! What is known of the worker that this member speaks for, if the worker is watched.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use shardwise_core::WorkerHealth;
use tokio::sync::{Notify, watch};

/// The worker as its checks see it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Whether the worker is watched.
    pub watched: bool,
    /// What the member's record says; `None` while the worker works, and if it is not watched.
    pub health: Option<WorkerHealth>,
    /// The worker was seen and does not work any more: its member is drained, if the group can do without it.
    pub fails: bool,
    /// Why the latest check failed; `None` after one that succeeded.
    pub failure: Option<Arc<str>>,
}

/// The report, which the driver writes into the record, and the wish to check again at once.
#[derive(Default)]
pub(crate) struct WorkerWatch {
    pub(crate) report: watch::Sender<WorkerReport>,
    /// Notified when the worker is suspected not to work.
    pub(crate) suspected: Notify,
    /// The worker fails and keeps its share; written by the driver.
    pub(crate) is_spared: AtomicBool,
}
