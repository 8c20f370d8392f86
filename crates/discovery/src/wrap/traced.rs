//! Every call as a tracing span, every failure as an event.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use shardwise_core::{ClaimName, ClaimStore, Epoch, GroupName, Resource};
use tracing::Instrument;

use super::{claims_of, notes_of, watched_claims};
use crate::{
    AcquireOutcome, Capabilities, Claims, ClaimsStream, Discovery, Grant, Note, Notes, RecordId, Registration, Result, ViewSnapshot,
    WatchStream, WriteOutcome,
};

/// Puts each call into a `discovery` span at debug level and logs failures with their kind.
#[derive(Debug, Clone)]
pub struct Traced<D> {
    inner: D,
}

impl<D: Discovery> Traced<D> {
    /// Traces the calls of `inner`.
    pub const fn new(inner: D) -> Self {
        Self { inner }
    }

    async fn traced<T>(&self, operation: &'static str, group: &GroupName, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let span = tracing::debug_span!("discovery", backend = self.capabilities().name, operation, %group);
        let result = call.instrument(span.clone()).await;
        if let Err(error) = &result {
            span.in_scope(|| tracing::debug!(%error, retryable = error.is_retryable(), "backend call failed"));
        }
        result
    }
}

#[async_trait]
impl<D: Discovery> Discovery for Traced<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.traced("register", &registration.group, self.inner.register(registration)).await
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.traced("renew", &record_id.group, self.inner.renew(record_id, ttl)).await
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.traced("update", &registration.group, self.inner.update(registration)).await
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.traced("deregister", &record_id.group, self.inner.deregister(record_id)).await
    }

    async fn step_away(&self, registration: &Registration, grace: Duration) -> Result<()> {
        self.traced("step_away", &registration.group, self.inner.step_away(registration, grace)).await
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.traced("members", group, self.inner.members(group)).await
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        let (backend, group_shown) = (self.capabilities().name, group.clone());
        let log = move |event: &Result<_>| {
            if let Err(error) = event {
                tracing::debug!(backend, group = %group_shown, %error, "watch failed");
            }
        };
        self.inner.watch(group, prove_every).inspect(log).boxed()
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        self.inner.as_claims().map(|_| self as &dyn Claims)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        self.inner.as_notes().map(|_| self as &dyn Notes)
    }
}

#[async_trait]
impl<D: Discovery> Claims for Traced<D> {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        let inner = claims_of(&self.inner, "claim_store")?;
        self.traced("claim_store", group, inner.claim_store(group, floor)).await
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let inner = claims_of(&self.inner, "acquire")?;
        self.traced("acquire", &record_id.group, inner.acquire(record_id, store, wanted)).await
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        let inner = claims_of(&self.inner, "release")?;
        self.traced("release", &record_id.group, inner.release(record_id, held)).await
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        let (backend, group_shown) = (self.capabilities().name, group.clone());
        let log = move |event: &Result<_>| {
            if let Err(error) = event {
                tracing::debug!(backend, group = %group_shown, %error, "watching claims failed");
            }
        };
        watched_claims(&self.inner, group, prove_every).inspect(log).boxed()
    }
}

#[async_trait]
impl<D: Discovery> Notes for Traced<D> {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let inner = notes_of(&self.inner, "note")?;
        self.traced("note", group, inner.note(group, name)).await
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        let inner = notes_of(&self.inner, "write_note")?;
        self.traced("write_note", group, inner.write_note(group, name, expected, text)).await
    }
}
