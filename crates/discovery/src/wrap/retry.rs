//! Trying again what may work the next time.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable};
use shardwise_core::{ClaimName, ClaimStore, Epoch, GroupName, Resource};

use super::{claims_of, notes_of, watched_claims};
use crate::{
    AcquireOutcome, Capabilities, Claims, ClaimsStream, Discovery, Error, Grant, Note, Notes, RecordId, Registration, Result, ViewSnapshot,
    WatchStream, WriteOutcome,
};

/// Repeats calls that failed in a way that may pass, with growing, jittered pauses. A repeated call's [`Grant::started`] is the start
/// of the attempt that was answered.
#[derive(Debug, Clone)]
pub struct Retry<D> {
    inner: D,
    pauses: ExponentialBuilder,
}

impl<D> Retry<D> {
    /// Repeats each call of `inner` at most `times` times, with pauses from `first` doubling up to one second.
    pub fn new(inner: D, times: usize, first: Duration) -> Self {
        let pauses =
            ExponentialBuilder::new().with_min_delay(first).with_max_delay(Duration::from_secs(1)).with_max_times(times).with_jitter();
        Self { inner, pauses }
    }

    async fn again<T, F: Future<Output = Result<T>> + Send>(&self, call: impl FnMut() -> F + Send) -> Result<T> {
        call.retry(self.pauses).when(Error::is_retryable).await
    }
}

#[async_trait]
impl<D: Discovery> Discovery for Retry<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.again(|| self.inner.register(registration)).await
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.again(|| self.inner.renew(record_id, ttl)).await
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.again(|| self.inner.update(registration)).await
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.again(|| self.inner.deregister(record_id)).await
    }

    async fn step_away(&self, registration: &Registration, grace: Duration) -> Result<()> {
        self.again(|| self.inner.step_away(registration, grace)).await
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.again(|| self.inner.members(group)).await
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
impl<D: Discovery> Claims for Retry<D> {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        let inner = claims_of(&self.inner, "claim_store")?;
        self.again(|| inner.claim_store(group, floor)).await
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let inner = claims_of(&self.inner, "acquire")?;
        self.again(|| inner.acquire(record_id, store, wanted)).await
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        let inner = claims_of(&self.inner, "release")?;
        self.again(|| inner.release(record_id, held)).await
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        watched_claims(&self.inner, group, prove_every)
    }
}

#[async_trait]
impl<D: Discovery> Notes for Retry<D> {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let inner = notes_of(&self.inner, "note")?;
        self.again(|| inner.note(group, name)).await
    }

    /// A write that is repeated after its answer was lost may be told of itself as of somebody else's.
    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        let inner = notes_of(&self.inner, "write_note")?;
        self.again(|| inner.write_note(group, name, expected, text)).await
    }
}
