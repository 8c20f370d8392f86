//! Calls to the store and the sink as tasks, each with a timeout and exactly one resulting input.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use metrics::Histogram;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tracing::Instrument;

use super::traced;
use crate::decide::{EngineInput, SendId, StoreCall};
use crate::sink::{Acceptance, Refusal};
use crate::{Delivery, Error, ErrorKind, Result, Sink};

/// The timeout of a call to the store; longer than a call waits for a lock.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) enum JobOutcome {
    Called(StoreCall, Result<EngineInput>),
    /// See [`EngineInput::Sent`].
    Sent {
        id: SendId,
        accepted: Acceptance,
        unknown_end: bool,
    },
}

/// The tasks under way. Dropping this aborts them.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    tasks: JoinSet<JobOutcome>,
    sends: HashMap<SendId, AbortHandle>,
}

impl Jobs {
    pub(super) fn call(&mut self, call: StoreCall, work: impl Future<Output = Result<EngineInput>> + Send + 'static) {
        let span = traced::call(call);
        let failed = move |kind, text: &str| JobOutcome::Called(call, Err(Error::new(kind, text)));
        let job = async move {
            let done = match timeout(CALL_TIMEOUT, work.instrument(span.clone())).await {
                Ok(answer) => JobOutcome::Called(call, answer),
                Err(_) => failed(ErrorKind::Unavailable, &format!("the store has not answered within {CALL_TIMEOUT:?}: trying again")),
            };
            traced::done(&span, &done);
            done
        };
        let panicked = move |_| failed(ErrorKind::Internal, "the store's code panicked; see the log");
        self.tasks.spawn(AssertUnwindSafe(job).catch_unwind().map(move |done| done.unwrap_or_else(panicked)));
    }

    pub(super) fn send(&mut self, id: SendId, batch: Arc<[Delivery]>, sink: &Arc<dyn Sink>, within: Duration, took: Histogram) {
        let sink = Arc::clone(sink);
        let span = traced::send(sink.name(), &batch);
        let broken = move |text: String| {
            let accepted = Acceptance::up_to(0, Refusal::retryable(text));
            JobOutcome::Sent { id, accepted, unknown_end: true }
        };
        let job = async move {
            let events = batch.len();
            let begun = Instant::now();
            let answer = timeout(within, sink.deliver(batch).instrument(span.clone())).await;
            took.record(begun.elapsed());
            let done = match answer {
                Ok(accepted) => JobOutcome::Sent { id, accepted: reasoned(accepted, events), unknown_end: false },
                Err(_) => broken(format!("{} has not answered within {within:?}", sink.name())),
            };
            traced::done(&span, &done);
            done
        };
        let panicked = move |_| broken("the sink's code panicked; see the log".into());
        let handle = self.tasks.spawn(AssertUnwindSafe(job).catch_unwind().map(move |done| done.unwrap_or_else(panicked)));
        self.sends.insert(id, handle);
    }

    /// Aborts a send; no input follows.
    pub(super) fn cancel(&mut self, id: SendId) {
        if let Some(handle) = self.sends.remove(&id) {
            handle.abort();
        }
    }

    /// The next task that ends; waits forever if there is none.
    pub(super) async fn next(&mut self) -> JobOutcome {
        loop {
            match self.tasks.join_next().await {
                None => std::future::pending().await,
                Some(Ok(done)) => {
                    if let JobOutcome::Sent { id, .. } = &done {
                        self.sends.remove(id);
                    }
                    return done;
                }
                // Cancelled on purpose: tasks catch their own panics.
                Some(Err(_)) => {}
            }
        }
    }
}

/// Adds a reason where a sink stops early without one, because the publisher would otherwise retry in a busy loop.
fn reasoned(mut accepted: Acceptance, events: usize) -> Acceptance {
    let unreasoned = || Some(Refusal::retryable("the sink took only part of the batch and gave no reason"));
    if accepted.events < events && accepted.refusal.is_none() {
        accepted.refusal = unreasoned();
    }
    for (taken, refusal) in accepted.apart.values_mut() {
        if *taken == 0 && refusal.is_none() {
            *refusal = unreasoned();
        }
    }
    accepted
}
