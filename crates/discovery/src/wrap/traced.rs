//! Every call as a tracing span, every failure as an event.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use shardwise_core::GroupName;
use tracing::Instrument;

use crate::{Capabilities, Discovery, Grant, Registration, Result, Seat, Snapshot, WatchStream};

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

    async fn renew(&self, seat: &Seat, ttl: Duration) -> Result<Grant> {
        self.traced("renew", &seat.group, self.inner.renew(seat, ttl)).await
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.traced("update", &registration.group, self.inner.update(registration)).await
    }

    async fn deregister(&self, seat: &Seat) -> Result<()> {
        self.traced("deregister", &seat.group, self.inner.deregister(seat)).await
    }

    async fn members(&self, group: &GroupName) -> Result<Snapshot> {
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
}
