//! Trying again what may work the next time.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable};
use shardwise_core::GroupName;

use crate::{Capabilities, Discovery, Error, Grant, Registration, Result, Seat, Snapshot, WatchStream};

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

    async fn renew(&self, seat: &Seat, ttl: Duration) -> Result<Grant> {
        self.again(|| self.inner.renew(seat, ttl)).await
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.again(|| self.inner.update(registration)).await
    }

    async fn deregister(&self, seat: &Seat) -> Result<()> {
        self.again(|| self.inner.deregister(seat)).await
    }

    async fn members(&self, group: &GroupName) -> Result<Snapshot> {
        self.again(|| self.inner.members(group)).await
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.inner.watch(group, prove_every)
    }
}
