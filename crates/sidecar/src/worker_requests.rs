//! Members' requests to the local worker: what no handler of this process answers is forwarded to it.

use std::sync::Arc;

use shardwise::requests::{Answer, Method, Request, Undelivered};

use crate::app::{App, ServedGroup};
use crate::server::members;
use crate::worker_client::WorkerFailure;

/// The beginning of the cause where the worker of a living member did nothing. Whether the request may be sent again does not depend on it,
/// only the words for its caller.
pub(crate) const NO_WORKER: &str = "its worker gives no valid answer: ";
/// Worth another attempt.
const STOPPING: &str = "this worker is stopping";

/// Forwards to the local worker what no handler of this process answers, whichever member of this process is asked.
pub(crate) fn forward(app: &Arc<App>) {
    if app.worker.is_none() {
        return;
    }
    for (_, joined) in members(&app.policies) {
        // The service holds this, and must not be kept alive by it.
        let (app, group) = (Arc::downgrade(app), Arc::downgrade(joined));
        joined.service.on_others(move |request| {
            let (app, group) = (app.clone(), group.clone());
            async move {
                let (Some(app), Some(joined)) = (app.upgrade(), group.upgrade()) else { return Err(Undelivered::Unsent(STOPPING.into())) };
                ask_worker(&app, &joined, &request).await
            }
        });
    }
}

/// The worker's answer, with a limit on concurrent requests. A worker that gives none is suspected not to work.
async fn ask_worker(app: &App, joined: &ServedGroup, request: &Request) -> Result<Answer, Undelivered> {
    let Some(worker) = &app.worker else { return Err(Undelivered::Unsent(STOPPING.into())) };
    let _turn = app.worker_turns.try_acquire().map_err(|_| Undelivered::Busy(None))?;
    let failed = match worker.ask(request).await {
        Ok(answer) => return Ok(answer),
        Err(failed) => failed,
    };
    joined.service.suspect();
    let (why, is_late) = (failed.to_string(), failed == WorkerFailure::Late);
    if !is_late && let Some(count) = app.log.unanswered.another(()) {
        tracing::warn!(why, count, "the local worker does not answer; one line a minute at most");
    }
    // A read may be sent to another member even if the worker has begun it; after a timeout no time is left for that.
    if !failed.may_have_begun() || request.method == Method::Get && !is_late {
        return Err(Undelivered::Unsent(format!("{NO_WORKER}{why}")));
    }
    Ok(Answer::problem(if is_late { 504 } else { 502 }, "worker", "The local worker does not answer", &why))
}
