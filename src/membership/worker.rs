//! What is known of the worker that this member speaks for: by checks of its health, and by its lease.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use shardwise_core::WorkerHealth;
use tokio::sync::{Notify, watch};

/// The worker as its checks and its lease show it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkerReport {
    /// The worker's health is checked.
    pub watched: bool,
    /// Whether the worker holds a lease; `None` if leases do not count.
    pub leased: Option<bool>,
    /// What the member's record says; `None` while the worker works, and if it is neither checked nor leased.
    pub health: Option<WorkerHealth>,
    /// The worker was seen and does not work any more: its member is drained, if the group can do without it.
    pub fails: bool,
    /// Why the latest check failed; `None` after one that succeeded.
    pub failure: Option<Arc<str>>,
    /// What the checks alone say.
    pub(crate) checked: Option<WorkerHealth>,
}

/// The report, which the driver writes into the record, and the wish to check again at once.
#[derive(Default)]
pub(crate) struct WorkerWatch {
    pub(crate) report: watch::Sender<WorkerReport>,
    /// A caller suspects that the worker does not work.
    pub(crate) suspected: Notify,
    /// The worker fails and keeps its share; written by the driver.
    pub(crate) is_spared: AtomicBool,
}

impl WorkerWatch {
    /// Changes the report. A worker without its lease is absent, whatever its checks say. Readers see only real changes.
    pub(crate) fn update(&self, change: impl FnOnce(&mut WorkerReport)) {
        self.report.send_if_modified(|report| {
            let before = report.clone();
            change(report);
            report.health = if report.leased == Some(false) { Some(WorkerHealth::Absent) } else { report.checked };
            *report != before
        });
    }
}
