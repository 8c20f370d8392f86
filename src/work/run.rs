//! Background work that runs until it is stopped.

use std::future::Future;

use tokio_util::sync::CancellationToken;

/// Work in the background: [`crate::ShardingService::slots`], singletons, daemons, timers. Dropping it cancels the work.
#[must_use = "dropping it cancels the work"]
pub struct Run {
    stop: CancellationToken,
    finished: CancellationToken,
}

impl Run {
    /// Spawns `work` with a token that is cancelled when it has to end.
    pub(crate) fn spawn<W: Future<Output = ()> + Send + 'static>(work: impl FnOnce(CancellationToken) -> W) -> Self {
        let (stop, finished) = (CancellationToken::new(), CancellationToken::new());
        let work = work(stop.clone());
        let done = finished.clone().drop_guard();
        tokio::spawn(async move {
            work.await;
            drop(done);
        });
        Self { stop, finished }
    }

    /// Cancels the work and waits until it has ended.
    pub async fn stop(self) {
        self.stop.cancel();
        self.finished.cancelled().await;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
