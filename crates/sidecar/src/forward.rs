//! Forwards a request to one named member, or to any healthy one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http;
use axum::response::Response;
use shardwise::requests::{self, ADDRESS_KEY, Addressee, Answer, Attempt, MemberEndpoint, Method, SUSPECT, Undelivered};
use shardwise::{InstanceId, Member, MemberState, View, trace};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;
use tracing::{Instrument, field};

use crate::app::{App, FORWARDS_MAX, ServedGroup};
use crate::bodies::Room;
use crate::cancel_table::CancelScope;
use crate::instance_parameter::take_instance;
use crate::member_request::{self, sent};
use crate::page;
use crate::path_parameters::{NamePath, PolicyPath};
use crate::problem::{Problem, Result, TOO_MANY, UNAVAILABLE, UNKNOWN_INSTANCE};
use crate::request_terms::RequestTerms;
use crate::unanswered::{UNREACHED, Unanswered, count, is_there, living};
use crate::worker_requests::NO_WORKER;

/// How long a member may take, over all members that are tried, unless the client says it: longer than a handler of the clients' libraries.
const ANSWER_WITHIN: Duration = Duration::from_secs(12);
/// A connection that was unusable before a request breaks this soon.
const BROKEN_WITHIN: Duration = Duration::from_secs(1);
/// How many members are tried in turn for a request that any member may answer.
const TRIES: usize = 3;
/// How long the caller of a request that took too long waits for the report to the member.
const REPORTED_WITHIN: Duration = Duration::from_secs(1);
/// The status of a member that has waited in vain for its worker or its handler.
pub(crate) const TIMEOUT: u16 = 504;
/// Why a member without an address is not asked.
const NO_ADDRESS: &str = "it takes no requests: it has no sidecar and does not listen for them at an address that others know, or it is an older \
    version, which this one does not call";

/// Forward a GET to one member.
///
/// The member answers `status` and every path for which its worker has a handler; the path may have further parts, separated by slashes.
/// Query and body (1 MiB at most, in both directions) are forwarded; credentials, cookies and other headers are not. The worker sees the
/// header `shardwise-to: instance`. If the group has no such member, the answer is 404; if the member or its worker does not answer, it is
/// 502, also while a dead member's record has not expired.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/instances/{instance_id}/{path}", tag = "members", operation_id = "of_one",
    responses((
        status = 200, description = "The answer of the member, of any media type",
        content((serde_json::Value = "application/json"), (String = "text/plain"), (Vec<u8> = "application/octet-stream")),
        headers(("shardwise-instance" = String, description = "The member that answered"))
    ))
)]
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(whom): NamePath,
    request: Request,
) -> Result<Response> {
    // The page requests this from each member every few seconds and shows failures itself.
    let is_status = request.method() == http::Method::GET && request.uri().path().ends_with("/status");
    bring_to_one(&app, &joined, &whom, request).await.inspect_err(|problem| refused(&app, problem, is_status))
}

/// Forward a GET to any healthy member.
///
/// The members take turns, this one included. One that cannot be reached, or whose worker cannot, is passed over; a POST is sent to another
/// one only if it was certainly not handled. The worker sees the header `shardwise-to: any`.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/any/{path}", tag = "members", operation_id = "of_any",
    params(("instance" = Option<String>, Query, description = "Ask this member only. The worker does not see this parameter")),
    responses((
        status = 200, description = "The answer of the member, of any media type",
        content((serde_json::Value = "application/json"), (String = "text/plain"), (Vec<u8> = "application/octet-stream")),
        headers(("shardwise-instance" = String, description = "The member that answered"))
    ))
)]
pub(crate) async fn any(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, request: Request) -> Result<Response> {
    bring_to_any(&app, &joined, request).await.inspect_err(|problem| refused(&app, problem, false))
}

/// A request to forward, what else the client says, and the scope in which it may be cancelled.
type TakenRequest<'a> = (requests::Request, RequestTerms, CancelScope<'a>);

/// Checks a request and reads it completely, so that a slow sender takes no turn. Also returns the memory and the turn that it takes.
async fn taken<'a>(
    app: &'a App,
    joined: &ServedGroup,
    request: Request,
    parts_before: usize,
) -> Result<(TakenRequest<'a>, (Room, SemaphorePermit<'a>))> {
    let ((head, body), policy) = (request.into_parts(), joined.service.policy().name.as_str());
    let (request, terms, scope, room) = member_request::taken(app, policy, &head, body, parts_before).await?;
    let busy = |_| TOO_MANY.because(format!("at most {FORWARDS_MAX} requests are forwarded at a time; try again"));
    let turn = app.forwards.try_acquire().map_err(busy)?;
    if request.method == Method::Post {
        tracing::info!(target: page::LOG, path = request.path, "an action is forwarded to a member, over HTTP");
    }
    Ok(((request, terms, scope), (room, turn)))
}

/// As long as the client waits.
fn attempt(terms: &RequestTerms) -> Attempt {
    Attempt::until(Instant::now() + terms.within.unwrap_or(ANSWER_WITHIN))
}

async fn bring_to_one(app: &App, joined: &ServedGroup, whom: &str, request: Request) -> Result<Response> {
    // The member's path follows "", v1, policies, the policy, instances and the member.
    let ((request, terms, scope), _held) = taken(app, joined, request, 6).await?;
    let (view, attempt) = (joined.observer()?.members(), attempt(&terms));
    scope.run(bring_to_member(app, joined, &view, whom, &request, &attempt)).await
}

async fn bring_to_member(
    app: &App,
    joined: &ServedGroup,
    view: &View,
    whom: &str,
    request: &requests::Request,
    attempt: &Attempt,
) -> Result<Response> {
    let id = InstanceId::new(whom).ok();
    let Some(member) = id.as_ref().and_then(|id| view.member(id)).filter(|member| is_there(member)) else {
        let why = format!("there is no living member of that name; {}", living(view, None));
        return Err(count("unknown", UNKNOWN_INSTANCE.because(why)));
    };
    match ask(app, joined, member, request, attempt).await {
        Ok(answer) => Ok(answered(member, answer)),
        Err(failed) => Err(failed.problem(view, member)),
    }
}

async fn bring_to_any(app: &App, joined: &ServedGroup, request: Request) -> Result<Response> {
    // The path follows "", v1, policies, the policy and any.
    let ((mut request, terms, scope), _held) = taken(app, joined, request, 5).await?;
    request.to = Addressee::Any;
    let (view, attempt) = (joined.observer()?.members(), attempt(&terms));
    match take_instance(&mut request.query)? {
        Some(whom) => scope.run(bring_to_member(app, joined, &view, &whom, &request, &attempt)).await,
        None => scope.run(bring_in_turn(app, joined, &view, &request, &attempt)).await,
    }
}

async fn bring_in_turn(app: &App, joined: &ServedGroup, view: &View, request: &requests::Request, attempt: &Attempt) -> Result<Response> {
    let choices = choices(app, joined, view);
    let mut failure: Option<(&Member, Unanswered)> = None;
    for &member in &choices {
        let failed = match ask(app, joined, member, request, attempt).await {
            Ok(answer) => return Ok(answered(member, answer)),
            Err(failed) => failed,
        };
        // An action that may have been done is not repeated, and after a timeout no time is left for another try.
        let is_over = failed.why.may_have_been_handled() && !request.is_repeatable() || Instant::now() >= attempt.until;
        if failure.as_ref().is_none_or(|(_, known)| says_more(&failed, known)) {
            failure = Some((member, failed));
        }
        if is_over && let Some((member, failed)) = &failure {
            return Err(failed.problem(view, member));
        }
    }
    let (member, failed) = failure.ok_or_else(|| UNAVAILABLE.because("this worker is not a member yet, and there is no other one"))?;
    if failed.outcome() != UNREACHED {
        return Err(failed.problem(view, member));
    }
    Err(count(UNREACHED, UNAVAILABLE.because(format!("{} members were tried and none is there: {}", choices.len(), failed.why))))
}

/// Whether the caller learns this failure instead of an earlier one. What may have been done is never hidden, and an unreachable member
/// says less than another failure.
fn says_more(failed: &Unanswered, known: &Unanswered) -> bool {
    !known.why.may_have_been_handled() && (failed.why.may_have_been_handled() || failed.outcome() != UNREACHED)
}

/// The members to try for a request to any of them, in this order: [`TRIES`] healthy ones in turn, this one among them. If its turn does
/// not come, it is tried last, because that needs no network. If it is not healthy, it is tried only if no other member is.
fn choices<'a>(app: &App, joined: &ServedGroup, view: &'a View) -> Vec<&'a Member> {
    let is_choice =
        |member: &&Member| member.state == MemberState::Active && (member.metadata.contains_key(ADDRESS_KEY) || is_me(joined, member));
    let mut choices: Vec<&Member> = view.members().iter().filter(is_choice).collect();
    let first = app.next.fetch_add(1, Ordering::Relaxed) % choices.len().max(1);
    choices.rotate_left(first);
    choices.truncate(TRIES);
    let me = view.member(joined.service.instance_id()).filter(|me| is_me(joined, me));
    let is_missing = |me: &&Member| !choices.iter().any(|choice| choice.instance_id == me.instance_id);
    let last = me.filter(is_missing).filter(|me| me.state == MemberState::Active || choices.is_empty());
    choices.extend(last);
    choices
}

/// Logs from time to time that a request was not forwarded, or at debug level if such requests are repeated often. The line contains the
/// member's name, and no other data of the caller and no secret.
pub(crate) fn refused(app: &App, problem: &Problem, is_status: bool) {
    let (status, why) = (problem.status(), problem.detail());
    if is_status {
        tracing::debug!(status, why, "a member could not be looked at");
    } else if let Some(count) = app.log.unbrought.another(status) {
        tracing::warn!(status, why, count, "a request was not forwarded to a member; one line a minute at most");
    }
}

fn is_me(joined: &ServedGroup, member: &Member) -> bool {
    // The id first: this is asked of every member.
    member.instance_id == *joined.service.instance_id() && member.incarnation == joined.service.incarnation()
}

/// The answer of that member, which may be this one. A member whose answer takes too long is suspected.
async fn ask(
    app: &App,
    joined: &ServedGroup,
    member: &Member,
    request: &requests::Request,
    attempt: &Attempt,
) -> std::result::Result<Answer, Unanswered> {
    // The request is copied, because another member may still get it.
    let answer = if is_me(joined, member) {
        let within = attempt.until.saturating_duration_since(Instant::now());
        joined.service.answer_within(request.clone(), within).await.map_err(|why| Unanswered::of(why, attempt))
    } else {
        call(joined, member, request, attempt).await
    };
    if answer.as_ref().map_or_else(Unanswered::is_late, |answer| answer.status == TIMEOUT) {
        suspect(app, joined, member).await;
    }
    answer
}

/// Brings a request to another member.
async fn call(
    joined: &ServedGroup,
    member: &Member,
    request: &requests::Request,
    attempt: &Attempt,
) -> std::result::Result<Answer, Unanswered> {
    let (method, id) = (if request.method == Method::Get { "GET" } else { "POST" }, member.instance_id.as_str());
    let span = tracing::info_span!(
        "ask",
        otel.name = format!("{method} member"),
        otel.kind = "client",
        otel.status_code = field::Empty,
        "error.type" = field::Empty,
        http.request.method = method,
        http.response.status_code = field::Empty,
        "shardwise.instance" = id
    );
    let answer = called(joined, member, request, attempt).instrument(span.clone()).await.map_err(|why| Unanswered::of(why, attempt));
    match &answer {
        Ok(answer) => {
            span.record("http.response.status_code", answer.status);
        }
        Err(failed) => trace::failed(&span, failed.outcome()),
    }
    answer
}

async fn called(
    joined: &ServedGroup,
    member: &Member,
    request: &requests::Request,
    attempt: &Attempt,
) -> std::result::Result<Answer, Undelivered> {
    let address = member.metadata.get(ADDRESS_KEY).ok_or_else(|| Undelivered::Barred(NO_ADDRESS.into()))?;
    let endpoint = MemberEndpoint { instance_id: member.instance_id.clone(), incarnation: member.incarnation, address: address.clone() };
    let (connections, begun) = (joined.service.connections(), Instant::now());
    let mut answer = connections.bring(&endpoint, request, attempt).await;
    // What may be repeated is sent again if its connection broke at once: then it had been unusable for a while.
    let is_broken = matches!(&answer, Err(Undelivered::Unknown(why)) if !why.starts_with(NO_WORKER));
    if request.is_repeatable() && is_broken && begun.elapsed() < BROKEN_WITHIN {
        let again = connections.bring(&endpoint, request, attempt).await;
        // The first attempt of an action may have been handled, whatever is known of the second one.
        let is_known = again.is_ok() || request.method == Method::Get;
        if is_known || again.as_ref().is_err_and(Undelivered::may_have_been_handled) {
            answer = again;
        }
    }
    let answer = answer?;
    if matches!(answer.status, 200..=299 | 400..=599) {
        Ok(answer)
    } else {
        Err(Undelivered::Unknown(format!("it answers with status {}, which is not passed on", answer.status)))
    }
}

/// Reports to a member that its worker has not answered in time, at most once in five seconds. It only brings the member's own check
/// forward.
pub(crate) async fn suspect(app: &App, joined: &ServedGroup, member: &Member) {
    if !app.suspected.passes(&member.instance_id) {
        return;
    }
    if is_me(joined, member) {
        return joined.service.suspect();
    }
    let mut report = requests::Request::new(Method::Post);
    report.path = SUSPECT.into();
    // Without a token or certificates members send no POST, and so no report.
    let _ = call(joined, member, &report, &Attempt::until(Instant::now() + REPORTED_WITHIN)).await;
}

fn answered(member: &Member, answer: Answer) -> Response {
    count("answered", ());
    sent(&member.instance_id, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_caller_learns_that_an_action_may_have_been_done_whatever_other_members_say() {
        let attempt = Attempt::until(Instant::now() + Duration::from_secs(1));
        let of = |why| Unanswered::of(why, &attempt);
        let [unknown, busy, unsent] =
            [Undelivered::Unknown("cut off".into()), Undelivered::Busy(None), Undelivered::Unsent("refused".into())].map(of);
        assert!(says_more(&unknown, &busy) && says_more(&unknown, &unsent) && says_more(&busy, &unsent));
        for (failed, known) in [(&busy, &unknown), (&unsent, &unknown), (&unsent, &busy), (&unsent, &unsent)] {
            assert!(!says_more(failed, known), "{} instead of {}", failed.outcome(), known.outcome());
        }
    }
}
