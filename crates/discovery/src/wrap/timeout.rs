//! A limit on how long a call may take.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{ClaimName, ClaimStore, Epoch, GroupName, Resource};

use super::{claims_of, notes_of, watched_claims};
use crate::{
    AcquireOutcome, Capabilities, Claims, ClaimsStream, Discovery, Error, ErrorKind, Grant, Note, Notes, RecordId, Registration, Result,
    ViewSnapshot, WatchStream, WriteOutcome,
};

/// Fails a call that takes longer than the limit. Watches have no limit: their silence is judged by the reader (clause 5).
#[derive(Debug, Clone)]
pub struct Timeout<D> {
    inner: D,
    limit: Duration,
}

impl<D> Timeout<D> {
    /// Gives each call of `inner` at most `limit`.
    pub const fn new(inner: D, limit: Duration) -> Self {
        Self { inner, limit }
    }

    async fn within<T>(&self, operation: &'static str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let late = |_| Error::new(ErrorKind::TimedOut, operation, format!("no answer within {:?}", self.limit));
        tokio::time::timeout(self.limit, call).await.map_err(late)?
    }
}

#[async_trait]
impl<D: Discovery> Discovery for Timeout<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.within("register", self.inner.register(registration)).await
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.within("renew", self.inner.renew(record_id, ttl)).await
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.within("update", self.inner.update(registration)).await
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.within("deregister", self.inner.deregister(record_id)).await
    }

    async fn step_away(&self, registration: &Registration, grace: Duration) -> Result<()> {
        self.within("step_away", self.inner.step_away(registration, grace)).await
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.within("members", self.inner.members(group)).await
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.inner.watch(group, prove_every)
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        self.inner.as_claims().map(|_| self as &dyn Claims)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        self.inner.as_notes().map(|_| self as &dyn Notes)
    }
}

#[async_trait]
impl<D: Discovery> Claims for Timeout<D> {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        let inner = claims_of(&self.inner, "claim_store")?;
        self.within("claim_store", inner.claim_store(group, floor)).await
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let inner = claims_of(&self.inner, "acquire")?;
        self.within("acquire", inner.acquire(record_id, store, wanted)).await
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        let inner = claims_of(&self.inner, "release")?;
        self.within("release", inner.release(record_id, held)).await
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        watched_claims(&self.inner, group, prove_every)
    }
}

#[async_trait]
impl<D: Discovery> Notes for Timeout<D> {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let inner = notes_of(&self.inner, "note")?;
        self.within("note", inner.note(group, name)).await
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        let inner = notes_of(&self.inner, "write_note")?;
        self.within("write_note", inner.write_note(group, name, expected, text)).await
    }
}
