//! The callers that wait for a change. A change runs in its own task, so that a caller that gives up leaves no lock and no half of
//! a change behind. Through this module the change notices that its caller is gone.

use tokio::sync::watch;

use crate::error::{Failure, Result};

pub(crate) struct Caller(watch::Sender<()>);

impl Caller {
    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_closed()
    }

    /// The answer of `work`, which is dropped where it stands if the caller gives up.
    pub(crate) async fn or_gone<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.0.closed() => Err(Failure::GivenUp),
            answer = work => answer,
        }
    }
}

/// Runs a change in its own task. The change decides how far it goes once its caller is gone.
pub(crate) async fn to_the_end<T, F>(change: impl FnOnce(Caller) -> F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    // Dropped with this future.
    let (caller, _waiting) = watch::channel(());
    tokio::spawn(change(Caller(caller))).await.unwrap_or(Err(Failure::ShuttingDown))
}
