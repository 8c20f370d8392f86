//! Calls to the store and the sink as tasks, each with a timeout and exactly one resulting input.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::Histogram;
use tokio::task::{AbortHandle, Id, JoinSet};
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
    Input(EngineInput),
    Failed(StoreCall, Error),
}

#[derive(Debug, Clone, Copy)]
enum Job {
    Call(StoreCall),
    Send(SendId),
}

/// The tasks under way. Dropping this aborts them.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    tasks: JoinSet<JobOutcome>,
    by_task: HashMap<Id, Job>,
    sends: HashMap<SendId, AbortHandle>,
}

impl Jobs {
    pub(super) fn call(&mut self, call: StoreCall, work: impl Future<Output = Result<EngineInput>> + Send + 'static) {
        let span = traced::call(call);
        let work = work.instrument(span.clone());
        let handle = self.tasks.spawn(async move {
            let done = match timeout(CALL_TIMEOUT, work).await {
                Ok(Ok(input)) => JobOutcome::Input(input),
                Ok(Err(error)) => JobOutcome::Failed(call, error),
                Err(_) => {
                    let text = format!("the store has not answered within {CALL_TIMEOUT:?}: trying again");
                    JobOutcome::Failed(call, Error::new(ErrorKind::Unavailable, text))
                }
            };
            traced::done(&span, &done);
            done
        });
        self.by_task.insert(handle.id(), Job::Call(call));
    }

    pub(super) fn send(&mut self, id: SendId, batch: Arc<[Delivery]>, sink: &Arc<dyn Sink>, within: Duration, took: Histogram) {
        let sink = Arc::clone(sink);
        let span = traced::send(sink.name(), &batch);
        let handle = self.tasks.spawn(async move {
            let events = batch.len();
            let begun = Instant::now();
            let answer = timeout(within, sink.deliver(batch).instrument(span.clone())).await;
            took.record(begun.elapsed());
            let done = match answer {
                Ok(accepted) => JobOutcome::Input(EngineInput::Sent { id, accepted: reasoned(accepted, events), unknown_end: false }),
                Err(_) => JobOutcome::Input(broken_send(id, format!("{} has not answered within {within:?}", sink.name()))),
            };
            traced::done(&span, &done);
            done
        });
        self.by_task.insert(handle.id(), Job::Send(id));
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
            let (id, result) = match self.tasks.join_next_with_id().await {
                None => std::future::pending().await,
                Some(Ok((id, done))) => (id, Ok(done)),
                Some(Err(error)) => (error.id(), Err(error)),
            };
            let job = self.by_task.remove(&id);
            if let Some(Job::Send(send)) = job {
                self.sends.remove(&send);
            }
            match (result, job) {
                (Ok(done), _) => return done,
                (Err(error), Some(job)) if error.is_panic() => return panicked(job),
                // Cancelled on purpose.
                (Err(_), _) => {}
            }
        }
    }
}

fn panicked(job: Job) -> JobOutcome {
    match job {
        Job::Call(call) => JobOutcome::Failed(call, Error::new(ErrorKind::Internal, "the store's code panicked; see the log")),
        Job::Send(id) => JobOutcome::Input(broken_send(id, "the sink's code panicked; see the log".into())),
    }
}

fn broken_send(id: SendId, message: String) -> EngineInput {
    EngineInput::Sent { id, accepted: Acceptance::up_to(0, Refusal::retryable(message)), unknown_end: true }
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
