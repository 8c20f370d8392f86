//! What the member's record says once it is made: one task writes the newest wish, so that nothing queues up behind a slow backend and an
//! older wish never comes after a newer one.

use std::sync::Arc;
use std::time::Duration;

use shardwise_discovery::{Discovery, Registration};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::membership::calls::limited;

/// How often a wish is tried, and the pause between two tries. After that a renewal asks again.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// How the record ought to be.
#[derive(Clone)]
pub(super) struct RecordUpdate {
    pub(super) registration: Arc<Registration>,
    /// What to say if it cannot be had.
    pub(super) or_else: &'static str,
}

/// The task that changes the record, once there was something to change.
#[derive(Default)]
pub(super) struct RecordUpdater(Option<RecordWriter>);

struct RecordWriter {
    wanted: watch::Sender<RecordUpdate>,
    task: JoinHandle<()>,
}

impl RecordUpdater {
    /// Has the record changed, as soon as the call that may be on its way is answered; `limit` is for one call. Whatever else was wanted
    /// before is wanted no more.
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

    /// What was wanted last, since the record was made.
    pub(super) fn wanted(&self) -> Option<RecordUpdate> {
        self.0.as_ref().map(|writer| writer.wanted.borrow().clone())
    }

    /// Wants nothing any more: the record is made anew, or is not needed.
    pub(super) fn give_up(&mut self) {
        if let Some(writer) = self.0.take() {
            writer.task.abort();
        }
    }

    /// Has what was wanted last tried once more and waits for that, at most so long.
    pub(super) async fn finish(self, within: Duration) {
        let Some(RecordWriter { wanted, mut task }) = self.0 else { return };
        drop(wanted);
        if tokio::time::timeout(within, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// Writes what is wanted until the updater is gone. What cannot be had is said once until something could: renewals ask again.
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
                    // A newer wish need not wait, and a leaver does not.
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
