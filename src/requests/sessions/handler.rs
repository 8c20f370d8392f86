//! Handlers of requests to sessions.

use std::future::ready;
use std::sync::Arc;

use shardwise_core::routing::SessionId;

use super::registry::{SessionUse, Sessions};
use super::session::Session;
use crate::error::Result;
use crate::requests::caller::Routing;
use crate::requests::handlers::{Handler, HandlerDecision, HandlerWork, RequestHandlers, answered};
use crate::requests::{Addressee, Answer, Request, Undelivered};
use crate::service::ShardingService;

/// A request to a session, at the member that opened it.
#[derive(Debug)]
#[non_exhaustive]
pub struct SessionRequest {
    /// The session.
    pub session: Session,
    /// The request.
    pub request: Request,
}

impl ShardingService {
    /// Answers requests to sessions of this member at `path` ([`To::Session`](crate::requests::To::Session)). Everything else is as with
    /// [`ShardingService::on_request`].
    ///
    /// A request to a session that has ended is answered with status 410 and the kind `session-ended`, one with a malformed id with 400 and
    /// `bad-session`, without a call of the handler. The idle time does not run during a request. If the session's longest life is over or
    /// its member leaves during a request, the handler is dropped where it awaits, and the sender learns that the outcome is unknown.
    ///
    /// # Errors
    ///
    /// As with [`ShardingService::on_request`].
    pub fn on_session<W, A>(&self, path: &str, handler: impl Fn(SessionRequest) -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = A> + Send + 'static,
        A: Into<Answer>,
    {
        let context = &self.membership().ownership_context;
        let (sessions, routing, handler) = (Sessions::of(context), Arc::clone(Routing::of(self)), Arc::new(handler));
        let taking = move |mut request: Request| -> HandlerDecision {
            let Some(id) = request.session.take().and_then(|id| id.parse::<SessionId>().ok()) else { return refuse(&request, MALFORMED) };
            if id.minter() != sessions.life.incarnation() {
                routing.is_following();
                let minter = routing.minter_of(&id, sessions.life.instance_id());
                return Box::pin(ready(Err(Undelivered::NotMine(minter))));
            }
            let Some(used) = sessions.begin(&id) else { return refuse(&request, ENDED) };
            let handler = Arc::clone(&handler);
            let handled = handle(used, request, move |request| async move { handler(request).await.into() });
            let work: HandlerWork = Box::pin(async move { Ok(handled.await) });
            Box::pin(ready(Ok(work)))
        };
        let taking: Handler = Arc::new(taking);
        RequestHandlers::of(context).register(Addressee::Session, path, &taking)
    }
}

/// Why a request has no session: the status, the kind, the title and the detail of the answer.
type SessionProblem = (u16, &'static str, &'static str, &'static str);

const MALFORMED: SessionProblem = (400, "bad-session", "This is not a session", "it is not the id of a session of this version");
const ENDED: SessionProblem =
    (410, "session-ended", "The session has ended", "it was closed, was idle for too long, or its longest life is over");

/// Refuses it by an answer. A request whose caller does not wait for one is barred instead, or it would count as accepted.
fn refuse(request: &Request, (status, kind, title, detail): SessionProblem) -> HandlerDecision {
    let barred = || Undelivered::Barred(format!("{title}: {detail}"));
    let refused = if request.tell { Err(barred()) } else { Ok(answered(Answer::problem(status, kind, title, detail))) };
    Box::pin(ready(refused))
}

/// Handles it, as long as the session lives.
async fn handle<W>(used: SessionUse, request: Request, handler: impl FnOnce(SessionRequest) -> W) -> Answer
where
    W: Future<Output = Answer>,
{
    let session = used.session.clone();
    tokio::select! {
        biased;
        answer = handler(SessionRequest { session, request }) => answer,
        // An answer, because there is no session any more to which it could be sent again.
        why = used.session.state.aborted() => Answer::unknown(&format!("the session has ended meanwhile: {}", why.as_str())),
    }
}
