//! Members' requests to the local worker: what no handler of this process answers is forwarded to it. A request to a key or a name is taken
//! by this member's own claims first, and under exclusive ownership only if the worker's lease was granted it; it is held until the worker
//! has answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use shardwise::core::routing::SessionId;
use shardwise::requests::{Addressee, Answer, Held, Owned, Request, Undelivered};

use crate::app::{App, ServedGroup, members};
use crate::worker_client::WorkerFailure;
use crate::worker_head::WorkerFence;

/// The beginning of the cause where the member lives and its worker gave no answer. Whether the request may be sent again does not depend
/// on it, only the words for its caller.
pub(crate) const NO_WORKER: &str = "its worker gives no valid answer: ";
/// A worker that had less time says nothing by its silence: its caller has changed its mind.
const SILENT_MIN: Duration = Duration::from_secs(1);
/// Worth another attempt.
const STOPPING: &str = "this worker is stopping";

/// What has become of a request.
type WorkerAnswer = Result<Answer, Undelivered>;

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
                take(&app, &joined, request).await
            }
        });
    }
}

/// Takes a request, or says which member should.
async fn take(app: &App, joined: &ServedGroup, request: Request) -> WorkerAnswer {
    match request.to {
        Addressee::Owner => joined.service.handle_owned(request, |owned| ask_as_owner(app, joined, owned)).await,
        Addressee::Holder => joined.service.handle_held(request, |held| ask_as_holder(app, joined, held)).await,
        Addressee::Session => match request.session.as_deref().unwrap_or_default().parse::<SessionId>() {
            Ok(id) => {
                joined.service.check_session(&id)?;
                // The worker knows whether it has opened it.
                ask_worker(app, joined, &request, None).await
            }
            Err(error) => Ok(Answer::problem(400, "bad-session", "This is not a session", &error.to_string())),
        },
        _ => ask_worker(app, joined, &request, None).await,
    }
}

/// `owned` has the guard of the key until the worker has answered.
async fn ask_as_owner(app: &App, joined: &ServedGroup, owned: Owned) -> WorkerAnswer {
    let fence = owned.fence();
    // A slot that this member has and its worker not yet, or not any more, goes to the next attempt.
    if joined.leases.are_required() && !fence.is_some_and(|fence| joined.leases.opens_slot(fence)) {
        return Err(Undelivered::NotMine(None));
    }
    let fence = fence.map(|fence| WorkerFence { slot: Some(fence.slot), epoch: fence.epoch });
    let mut request = owned.request;
    request.key = Some(owned.key);
    ask_worker(app, joined, &request, fence).await
}

/// The same for a name.
async fn ask_as_holder(app: &App, joined: &ServedGroup, held: Held) -> WorkerAnswer {
    if !joined.leases.opens_name(&held.name, held.epoch) {
        return Err(Undelivered::NotMine(None));
    }
    let fence = WorkerFence { slot: None, epoch: held.epoch };
    let mut request = held.request;
    request.name = Some(held.name);
    ask_worker(app, joined, &request, Some(fence)).await
}

/// The worker's answer, with a limit on concurrent requests. A worker that gives none is suspected not to work; one that refuses works.
async fn ask_worker(app: &App, joined: &ServedGroup, request: &Request, fence: Option<WorkerFence>) -> WorkerAnswer {
    let Some(worker) = &app.worker else { return Err(Undelivered::Unsent(STOPPING.into())) };
    let _turn = app.worker_turns.try_acquire().map_err(|_| Undelivered::Busy(None))?;
    let mut awaited = AwaitedWorker { app, joined, begun: Instant::now(), is_there: false };
    let asked = worker.ask(request, fence).await;
    awaited.is_there = true;
    let failed = match asked {
        Ok(answer) => return Ok(answer),
        Err(WorkerFailure::Refused(status)) => return Err(refused(status)),
        Err(failed) => failed,
    };
    joined.service.suspect();
    let (why, is_late) = (failed.to_string(), failed == WorkerFailure::Late);
    if !is_late && let Some(count) = app.log.unanswered.another(()) {
        tracing::warn!(why, count, "the local worker does not answer; one line a minute at most");
    }
    if !failed.may_have_begun() {
        return Err(Undelivered::Unsent(format!("{NO_WORKER}{why}")));
    }
    // Its caller may send it again, to another member too; after a timeout no time is left for that.
    if request.is_repeatable() && !is_late {
        return Err(Undelivered::Unknown(format!("{NO_WORKER}{why}")));
    }
    Ok(Answer::problem(if is_late { 504 } else { 502 }, "worker", "The local worker does not answer", &why))
}

/// What the worker's refusal with that status means. It has not begun with the request.
fn refused(status: StatusCode) -> Undelivered {
    match status {
        StatusCode::MISDIRECTED_REQUEST => Undelivered::NotMine(None),
        StatusCode::TOO_MANY_REQUESTS => Undelivered::Busy(None),
        other => Undelivered::Unsent(format!("{NO_WORKER}{}", WorkerFailure::Refused(other))),
    }
}

/// A worker whose answer is not waited for any longer, because its deadline has passed or its caller has gone, is suspected if it has been
/// silent for a second, at most once in five seconds.
struct AwaitedWorker<'a> {
    app: &'a App,
    joined: &'a ServedGroup,
    begun: Instant,
    is_there: bool,
}

impl Drop for AwaitedWorker<'_> {
    fn drop(&mut self) {
        let service = &self.joined.service;
        if !self.is_there && self.begun.elapsed() >= SILENT_MIN && self.app.suspected.passes(service.instance_id()) {
            service.suspect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_worker_says_that_the_request_may_go_on() {
        assert_eq!(refused(StatusCode::MISDIRECTED_REQUEST), Undelivered::NotMine(None));
        assert_eq!(refused(StatusCode::TOO_MANY_REQUESTS), Undelivered::Busy(None));
        for other in [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE, StatusCode::FORBIDDEN] {
            assert!(!refused(other).may_have_been_handled(), "{other}");
            let why = refused(other).to_string();
            assert!(why.starts_with(NO_WORKER) && why.contains(&format!("status {}", other.as_u16())), "{why}");
        }
    }
}
