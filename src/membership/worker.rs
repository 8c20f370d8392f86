//! What is known of the worker that this member speaks for, where somebody watches it.

use std::sync::Arc;

use shardwise_core::WorkerHealth;
use tokio::sync::{Notify, watch};

/// The worker as its checks see it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkerReport {
    /// What the member's record says; `None` while the worker works, and if nobody watches it.
    pub health: Option<WorkerHealth>,
    /// Why the latest check failed; `None` after one that succeeded.
    pub failure: Option<Arc<str>>,
}

/// The report, which the driver writes into the record, and the wish to check again at once.
#[derive(Default)]
pub(crate) struct WorkerWatch {
    pub(crate) report: watch::Sender<WorkerReport>,
    /// Somebody has reason to believe that the worker does not work.
    pub(crate) suspected: Notify,
}

impl WorkerWatch {
    /// What the record is to say now.
    pub(crate) fn health(&self) -> Option<WorkerHealth> {
        self.report.borrow().health
    }
}
