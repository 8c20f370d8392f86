//! The work on one request: it is taken, begins, and ends with an answer or with a line in the log.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::handlers::{Handled, Handler, HandlerWork, RequestHandlers, Turn};
use super::{Answer, Request, Undelivered, WITHIN_MAX};
use crate::membership::OwnershipContext;

/// A request that waits for its turn is refused this long before its deadline, or a tenth of its time before it.
const REFUSED_BEFORE_END: Duration = Duration::from_millis(200);
/// The longest time for a handler whose caller does not wait for it.
const ACCEPTED_WITHIN: Duration = WITHIN_MAX;

impl RequestHandlers {
    /// Waits for the work and its answer. It ends with the caller that waits for it, and a panic of it is caught.
    pub(super) async fn worked(
        &self,
        context: &OwnershipContext,
        path: &str,
        work: impl Future<Output = Handled>,
        until: Instant,
    ) -> Handled {
        match timeout_at(until, AssertUnwindSafe(work).catch_unwind()).await {
            Ok(Ok(handled)) => handled.map(|answer| Answer { load: Some(self.load().into()), ..answer }),
            Ok(Err(_)) => Ok(panicked(context, path)),
            Err(_) => {
                let detail = "it has not answered within the time that its caller gives it, and was ended";
                Ok(Answer::problem(504, "too-late", "No answer in time", detail))
            }
        }
    }

    /// The same answer as of [`RequestHandlers::answer`] to a request of this process, in a task of its own: a handler that asks its own
    /// member, whose handler asks it again, would otherwise be polled inside of itself, down to the end of the stack. Requests of others
    /// come in the tasks of their streams.
    pub(crate) async fn answer_apart(context: &Arc<OwnershipContext>, request: Request, until: Instant, turn: Turn) -> Handled {
        let context = Arc::clone(context);
        let answering = async move { Self::answer(&context, request, until, turn).await };
        let task = AbortOnDropHandle::new(tokio::spawn(answering.in_current_span()));
        task.await.unwrap_or_else(|_| Err(Undelivered::Unknown("this worker is stopping".into())))
    }

    /// Waits until the handler takes the request, at most until shortly before `until`. An error is what the request comes to without any
    /// work on it.
    pub(super) async fn taken(
        context: &OwnershipContext,
        path: &str,
        handler: Handler,
        request: Request,
        until: Instant,
    ) -> std::result::Result<HandlerWork, Handled> {
        let left = until.saturating_duration_since(Instant::now());
        // So that the refusal reaches a caller that still waits. Otherwise it would have to take the request for one that may be handled.
        let before = until.checked_sub((left / 10).min(REFUSED_BEFORE_END)).unwrap_or(until);
        // No code of the user runs here, so it needs no task of its own.
        let taking = AssertUnwindSafe(async move { handler(request).await }).catch_unwind();
        match timeout_at(before, taking).await {
            Ok(Ok(taken)) => taken.map_err(Err),
            Ok(Err(_)) => Err(Ok(panicked(context, path))),
            // It waits in a queue, where no code of the user has seen it.
            Err(_) => Err(Err(Undelivered::Busy(None))),
        }
    }

    /// Waits until the work begins, and leaves it to a task of its own, which has the turn and a limit of its own.
    pub(super) async fn accepted(
        self: &Arc<Self>,
        context: &OwnershipContext,
        handler: Handler,
        request: Request,
        until: Instant,
        turn: Turn,
    ) -> Handled {
        let path = request.path.clone();
        let work = match Self::taken(context, &path, handler, request, until).await {
            Ok(work) => work,
            Err(handled) => return handled,
        };
        let (gone, policy, handlers) = (context.gone.clone(), context.policy.name.clone(), Arc::clone(self));
        let work = async move {
            let _turn = turn;
            // No caller waits for the outcome, so this is the only place where it is reported.
            let unfinished = match gone.run_until_cancelled(timeout(ACCEPTED_WITHIN, AssertUnwindSafe(work).catch_unwind())).await {
                Some(Ok(Ok(Ok(_)))) => return,
                Some(Ok(Ok(Err(undelivered)))) => undelivered.to_string(),
                Some(Ok(Err(_))) => "its handler panicked".to_owned(),
                Some(Err(_)) => format!("its handler took longer than {ACCEPTED_WITHIN:?} and was ended"),
                None => "this worker has left its group".to_owned(),
            };
            handlers.meters.unfinished();
            if let Some(count) = handlers.unfinished.another(()) {
                tracing::warn!(
                    %policy, path, count,
                    "a request that was accepted, and whose caller does not wait, was not handled to its end: {unfinished}; one line a \
                     minute at most"
                );
            }
        };
        tokio::spawn(work.in_current_span());
        Ok(Answer::text("").with_status(202))
    }
}

fn panicked(context: &OwnershipContext, path: &str) -> Answer {
    tracing::error!(policy = %context.policy.name, path, "a handler of requests panicked; the request was answered with 500");
    Answer::failed("it panicked; its own log says more")
}
