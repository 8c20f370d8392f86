//! Calls of the backend: each has a timeout, and a panic in it only counts as a failed call, because the worker must continue, be fenced,
//! and be able to leave.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, stream};
use shardwise_core::{Backoff, GroupName};
use shardwise_discovery::{ClaimsStream, Discovery, Error, ErrorKind, WatchStream};
use tokio::time::Instant;
use tracing::{Instrument, Span, field};

use crate::telemetry::metrics::kind_of;
use crate::telemetry::trace;

/// A watch of a group proves its view this often within one TTL.
pub(crate) const PROOFS_PER_TTL: u32 = 4;
/// First pause before a watch that has ended or keeps failing is read again; doubled until it reports something.
const REWATCH_FIRST: Duration = Duration::from_millis(200);
/// Longest such pause.
const REWATCH_LONGEST: Duration = Duration::from_secs(1);
/// This many consecutive errors are passed on at once. Errors of a watch that take long each do not count.
const ERRORS_AT_ONCE: u32 = 5;

/// The result of a call, or a retryable error if it does not answer within the limit. Each call is a span.
pub(crate) async fn limited<T>(
    limit: Duration,
    backend: &dyn Discovery,
    operation: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let span = span_of(backend, operation);
    let answer = answered(limit, backend, operation, call).instrument(span.clone()).await;
    if let Err(error) = &answer {
        trace::failed(&span, kind_of(error));
    }
    answer
}

/// Spans of frequent calls have the level `DEBUG`.
fn span_of(backend: &dyn Discovery, operation: &'static str) -> Span {
    let name = backend.capabilities().name;
    macro_rules! span {
        ($level:ident) => {
            tracing::span!(
                tracing::Level::$level,
                "backend",
                otel.name = format!("{name} {operation}"),
                otel.kind = "client",
                otel.status_code = field::Empty,
                "error.type" = field::Empty,
                "shardwise.backend" = name,
                "shardwise.operation" = operation
            )
        };
    }
    if matches!(operation, "renew" | "members" | "note") { span!(DEBUG) } else { span!(INFO) }
}

async fn answered<T>(
    limit: Duration,
    backend: &dyn Discovery,
    operation: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_panic)) => Err(panicked(operation)),
        Err(_) => {
            let name = backend.capabilities().name;
            let context = format!("no answer within {limit:?}; check discovery.{name}, and that nothing between is slow or silent");
            Err(Error::new(ErrorKind::TimedOut, operation, context))
        }
    }
}

/// A watch of members that reopens when it ends, and slows down while it keeps failing.
pub(crate) fn follow(backend: &Arc<dyn Discovery>, group: &GroupName, prove_every: Duration) -> WatchStream {
    let (backend, group) = (Arc::clone(backend), group.clone());
    followed(move || {
        let (backend, group) = (Arc::clone(&backend), group.clone());
        stream::once(async move { backend.watch(&group, prove_every) }).flatten().boxed()
    })
}

/// Like [`follow`], for claims; ends at once if the backend has none.
pub(crate) fn follow_claims(backend: &Arc<dyn Discovery>, group: &GroupName, prove_every: Duration) -> ClaimsStream {
    let (backend, group) = (Arc::clone(backend), group.clone());
    followed(move || {
        let (backend, group) = (Arc::clone(&backend), group.clone());
        let open =
            async move { backend.as_claims().map_or_else(|| stream::empty().boxed(), |claims| claims.watch_claims(&group, prove_every)) };
        stream::once(open).flatten().boxed()
    })
}

fn followed<T: Send + 'static>(open: impl Fn() -> EventStream<T> + Send + 'static) -> EventStream<T> {
    let open = move || AssertUnwindSafe(open()).catch_unwind().map(|event| event.unwrap_or_else(|_panic| Err(panicked("watch")))).boxed();
    let followed = ReconnectingWatch { watch: open(), open, backoff: Backoff::new(REWATCH_FIRST, REWATCH_LONGEST), errors: 0 };
    stream::unfold(followed, |mut followed| async move {
        let event = followed.next().await;
        Some((event, followed))
    })
    .boxed()
}

type EventStream<T> = BoxStream<'static, Result<T, Error>>;

struct ReconnectingWatch<T, F> {
    watch: EventStream<T>,
    open: F,
    backoff: Backoff,
    /// Consecutive errors in quick succession.
    errors: u32,
}

impl<T, F: Fn() -> EventStream<T>> ReconnectingWatch<T, F> {
    async fn next(&mut self) -> Result<T, Error> {
        let mut rested = self.errors >= ERRORS_AT_ONCE;
        if rested {
            self.back_off().await;
        }
        loop {
            let asked = Instant::now();
            match self.watch.next().await {
                Some(Ok(event)) => {
                    self.backoff.reset();
                    self.errors = 0;
                    return Ok(event);
                }
                Some(Err(error)) => {
                    self.errors = if asked.elapsed() < REWATCH_FIRST { self.errors.saturating_add(1) } else { 0 };
                    return Err(error);
                }
                None => {
                    if !std::mem::take(&mut rested) {
                        self.back_off().await;
                    }
                    self.watch = (self.open)();
                }
            }
        }
    }

    async fn back_off(&mut self) {
        tokio::time::sleep(self.backoff.fail()).await;
    }
}

fn panicked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the backend's own code panicked; the panic is on standard error")
}
