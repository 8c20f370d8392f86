//! Updates the member's record after its creation: one task writes the newest version, so that nothing queues up behind a slow backend
//! and an older version never overwrites a newer one.

use std::sync::Arc;
use std::time::Duration;

use shardwise_discovery::{Discovery, Registration};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::membership::calls::limited;

/// How often an update is tried, and the pause between two tries. After that a renewal requests it again.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// The wanted state of the record.
#[derive(Clone)]
pub(super) struct RecordUpdate {
    pub(super) registration: Arc<Registration>,
    /// The log message if it fails.
    pub(super) or_else: &'static str,
}

/// The task that updates the record, started by the first update.
#[derive(Default)]
pub(super) struct RecordUpdater(Option<RecordWriter>);

struct RecordWriter {
    wanted: watch::Sender<RecordUpdate>,
    task: JoinHandle<()>,
}

impl RecordUpdater {
    /// Updates the record, as soon as a call under way has been answered; `limit` is for one call. Replaces an earlier update.
    pub(super) fn want(&mut self, backend: &Arc<dyn Discovery>, limit: Duration, wish: RecordUpdate) {
        if let Some(writer) = &self.0 {
            writer.wanted.send_replace(wish);
            return;
        }
        let (sender, mut wanted) = watch::channel(wish);
        wanted.mark_changed();
        let task = tokio::spawn(write(Arc::clone(backend), limit, wanted));
        self.0 = Some(RecordWriter { wanted: sender, task });
    }

    /// The last update since the record was created.
    pub(super) fn wanted(&self) -> Option<RecordUpdate> {
        self.0.as_ref().map(|writer| writer.wanted.borrow().clone())
    }

    /// Cancels the update: the record is being created again, or is not needed.
    pub(super) fn give_up(&mut self) {
        if let Some(writer) = self.0.take() {
            writer.task.abort();
        }
    }

    /// Tries the last update once more and waits for it, at most for `within`.
    pub(super) async fn finish(self, within: Duration) {
        let Some(RecordWriter { wanted, mut task }) = self.0 else { return };
        drop(wanted);
        if tokio::time::timeout(within, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// Writes updates until the updater is dropped. Logs a failure once until one succeeds: renewals request it again.
async fn write(backend: Arc<dyn Discovery>, limit: Duration, mut wanted: watch::Receiver<RecordUpdate>) {
    let mut said = None;
    while wanted.changed().await.is_ok() {
        for attempt in 1..=ATTEMPTS {
            let RecordUpdate { registration, or_else } = wanted.borrow_and_update().clone();
            match limited(limit, &*backend, "update", async { backend.update(&registration).await }).await {
                Ok(()) => {
                    said = None;
                    break;
                }
                Err(error) if error.is_retryable() && attempt < ATTEMPTS => {
                    // A newer update does not wait, nor does a leaver.
                    if let Ok(Err(_leaving)) = tokio::time::timeout(PAUSE, wanted.changed()).await {
                        return;
                    }
                }
                Err(error) => {
                    if said.replace(or_else) != Some(or_else) {
                        tracing::warn!(%error, "{or_else}");
                    }
                    break;
                }
            }
        }
    }
}
