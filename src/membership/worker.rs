//! What is known of the worker that this member speaks for, where somebody watches it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use shardwise_core::WorkerHealth;
use tokio::sync::{Notify, watch};

/// The worker as its checks see it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Somebody watches the worker.
    pub watched: bool,
    /// What the member's record says; `None` while the worker works, and if nobody watches it.
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
    /// Somebody has reason to believe that the worker does not work.
    pub(crate) suspected: Notify,
    /// The worker fails and keeps its share; written by the driver.
    pub(crate) is_spared: AtomicBool,
}
