//! Calls of the backend: each has a time limit, and a panic in it is a failed call and nothing more, because the worker must go on, be
//! fenced, and be able to leave.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use shardwise_core::GroupName;
use shardwise_discovery::{Discovery, Error, ErrorKind, WatchStream};

/// First pause before a watch that has ended is opened again; doubled until there is news.
const REWATCH_FIRST: Duration = Duration::from_millis(200);
/// Longest such pause.
const REWATCH_LONGEST: Duration = Duration::from_secs(1);

/// The answer of a call, or an error that may pass if there is none within the limit.
pub(crate) async fn limited<T>(limit: Duration, operation: &'static str, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_panic)) => Err(panicked(operation)),
        Err(_) => Err(Error::new(ErrorKind::TimedOut, operation, format!("no answer within {limit:?}"))),
    }
}

/// A watch that is opened again when it ends.
pub(crate) fn follow(backend: &Arc<dyn Discovery>, group: &GroupName, prove_every: Duration) -> WatchStream {
    let (backend, group) = (Arc::clone(backend), group.clone());
    let open = move || {
        let (backend, group) = (Arc::clone(&backend), group.clone());
        let watch = stream::once(async move { backend.watch(&group, prove_every) }).flatten();
        AssertUnwindSafe(watch).catch_unwind().map(|event| event.unwrap_or_else(|_panic| Err(panicked("watch")))).boxed()
    };
    let begin = (open(), REWATCH_FIRST);
    let followed = stream::unfold(begin, move |(mut watch, mut pause)| {
        let open = open.clone();
        async move {
            loop {
                match watch.next().await {
                    Some(Ok(event)) => return Some((Ok(event), (watch, REWATCH_FIRST))),
                    Some(Err(error)) => return Some((Err(error), (watch, pause))),
                    None => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(REWATCH_LONGEST);
                        watch = open();
                    }
                }
            }
        }
    });
    followed.boxed()
}

fn panicked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the backend's own code panicked; the panic is on standard error")
}
