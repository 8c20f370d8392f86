//! Requests in flight that can be cancelled by the id that their client has given them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::problem::{CANCELLED, CONFLICT, Result};

/// A policy and the id of a request.
type RequestKey = (String, String);

/// The requests in flight that have an id. There are no more than connections of clients.
#[derive(Debug, Default)]
pub(crate) struct CancelTable(Mutex<HashMap<RequestKey, CancellationToken>>);

/// A request in flight. Dropping this takes its id out of the table.
pub(crate) struct CancelScope<'a> {
    table: &'a CancelTable,
    key: Option<RequestKey>,
    cancelled: CancellationToken,
}

impl CancelTable {
    fn locked(&self) -> MutexGuard<'_, HashMap<RequestKey, CancellationToken>> {
        // A poisoned lock is safe: each change is one insertion or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins. An error if another one with that id is in flight.
    pub(crate) fn begin(&self, policy: &str, id: Option<String>) -> Result<CancelScope<'_>> {
        let (key, cancelled) = (id.map(|id| (policy.to_owned(), id)), CancellationToken::new());
        if let Some(key) = &key {
            match self.locked().entry(key.clone()) {
                Entry::Occupied(_) => {
                    return Err(CONFLICT.because("a request with this shardwise-request-id is in flight: give each request its own"));
                }
                Entry::Vacant(free) => {
                    free.insert(cancelled.clone());
                }
            }
        }
        Ok(CancelScope { table: self, key, cancelled })
    }

    /// Cancels a request. Returns whether it was in flight.
    pub(crate) fn cancel(&self, policy: &str, id: &str) -> bool {
        let cancelled = self.locked().get(&(policy.to_owned(), id.to_owned())).cloned();
        cancelled.inspect(CancellationToken::cancel).is_some()
    }
}

impl CancelScope<'_> {
    /// Waits for the request's end, and drops it when it is cancelled.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let cancelled = || CANCELLED.because("the request was cancelled by its id; its handler is ended if it has begun");
        self.cancelled.run_until_cancelled(work).await.unwrap_or_else(|| Err(cancelled()))
    }
}

impl Drop for CancelScope<'_> {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            self.table.locked().remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_request_is_cancelled_by_its_id_and_then_the_id_is_free() {
        let table = CancelTable::default();
        let id = || Some("a".to_owned());
        let scope = table.begin("p", id()).unwrap();
        assert_eq!(table.begin("p", id()).err().unwrap().status(), 409, "one request has one id");
        let other = table.begin("other", id()).unwrap();
        assert!(table.cancel("p", "a") && !table.cancel("p", "b"));
        assert_eq!(scope.run(pending::<Result<()>>()).await.unwrap_err().status(), 502);
        assert_eq!(other.run(async { Ok(7) }).await.map_err(|problem| problem.status()), Ok(7), "another policy's is not cancelled");
        drop((scope, other));
        assert!(!table.cancel("p", "a"));
        let without = table.begin("p", None).unwrap();
        assert!(table.begin("p", id()).is_ok() && table.locked().is_empty());
        assert_eq!(without.run(async { Ok(7) }).await.map_err(|problem| problem.status()), Ok(7));
    }
}
