//! Who waits for a change. Changes run in tasks of their own, so that a caller who gives up leaves no lock and no half of a change behind;
//! here they see that nobody waits any more.

use tokio::sync::watch;

use crate::error::{Failure, Result};

/// Whoever waits for a change.
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

/// Runs a change in a task of its own. It decides itself how far it goes once its caller is gone.
pub(crate) async fn to_the_end<T, F>(change: impl FnOnce(Caller) -> F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    // Dropped with this future.
    let (caller, _waiting) = watch::channel(());
    tokio::spawn(change(Caller(caller))).await.unwrap_or(Err(Failure::ShuttingDown))
}
