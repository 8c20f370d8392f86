//! Forwards a request to one named member, or to any healthy one.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{self, HeaderName};
use axum::response::{IntoResponse, Response};
use shardwise::proof::{Channel, Recipient};
use shardwise::requests::{self, ADDRESS_KEY, Addressee, Answer, Method, SUSPECT, encoded, is_path, path_to};
use shardwise::{InstanceId, Member, MemberState, View};
use tokio::sync::SemaphorePermit;

use crate::app::{App, FORWARDS_MOST, NamePath, PolicyPath, ServedGroup};
use crate::bodies::Room;
use crate::dial::{self, ANSWER_WITHIN, Callee, DialError, PeerMember, Unhandled};
use crate::instance_parameter::take_instance;
use crate::page;
use crate::peers::{answer_here, no_path, requested, sent, token};
use crate::problem::{BAD_GATEWAY, NO_WORKER, Problem, Result, TOO_LATE, TOO_MANY, UNAVAILABLE, UNKNOWN_INSTANCE, UNREACHABLE};
use crate::target::Target;

/// How many members are tried in turn for a request that any member may answer.
const TRIES: usize = 3;
/// How long the caller of a request that took too long waits for the report to the member.
const REPORTED_WITHIN: Duration = Duration::from_secs(1);
/// The status of a member that has waited in vain for its worker or its handler.
const TIMEOUT: u16 = 504;
/// The most members that an error names.
const NAMED: usize = 20;
/// The member that has answered, percent-encoded.
const INSTANCE: HeaderName = HeaderName::from_static("shardwise-instance");

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
    let is_look = request.method() == http::Method::GET && request.uri().path().ends_with("/status");
    bring_to_one(&app, &joined, &whom, request).await.inspect_err(|problem| refused(&app, problem, is_look))
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

/// Checks a request and reads it completely, so that a slow sender takes no turn. Returns the undecoded path, the request to forward, and
/// the memory and the turn that it takes.
async fn taken(app: &App, request: Request, parts_before: usize) -> Result<(String, requests::Request, (Room, SemaphorePermit<'_>))> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().splitn(parts_before + 1, '/').nth(parts_before).unwrap_or_default();
    if !is_path(path) {
        return Err(no_path());
    }
    if head.method == http::Method::POST {
        page::may_act(app, &head.headers)?;
        tracing::info!(target: page::LOG, path, "an action is forwarded to a member, over HTTP");
    }
    let path = path.to_owned();
    let (request, room) = requested(app, &head, body).await?;
    let busy = |_| TOO_MANY.because(format!("at most {FORWARDS_MOST} requests are forwarded at a time; try again"));
    Ok((path, request, (room, app.forwards.try_acquire().map_err(busy)?)))
}

async fn bring_to_one(app: &App, joined: &ServedGroup, whom: &str, request: Request) -> Result<Response> {
    // The member's path follows "", v1, policies, the policy, instances and the member.
    let (path, request, _held) = taken(app, request, 6).await?;
    bring_to_member(app, joined, &joined.observer()?.members(), whom, &path, &request).await
}

async fn bring_to_member(
    app: &App,
    joined: &ServedGroup,
    view: &View,
    whom: &str,
    path: &str,
    request: &requests::Request,
) -> Result<Response> {
    let id = InstanceId::new(whom).ok();
    let Some(member) = id.as_ref().and_then(|id| view.member(id)).filter(|member| is_there(member)) else {
        let why = format!("there is no living member of that name; {}", living(view, None));
        return Err(count("unknown", UNKNOWN_INSTANCE.because(why)));
    };
    match ask(app, joined, member, path, request).await {
        Ok(answer) => Ok(answered(member, answer)),
        Err(failed) => Err(problem(view, member, failed)),
    }
}

async fn bring_to_any(app: &App, joined: &ServedGroup, request: Request) -> Result<Response> {
    // The path follows "", v1, policies, the policy and any.
    let (path, mut request, _held) = taken(app, request, 5).await?;
    request.to = Addressee::Any;
    let view = joined.observer()?.members();
    if let Some(whom) = take_instance(&mut request.query)? {
        return bring_to_member(app, joined, &view, &whom, &path, &request).await;
    }
    let choices = choices(app, joined, &view);
    let (begun, mut failure) = (Instant::now(), None);
    for &member in &choices {
        let failed = match ask(app, joined, member, &path, &request).await {
            Ok(answer) => return Ok(answered(member, answer)),
            Err(failed) => failed,
        };
        // An action that may have been done is not repeated, and a timeout has used up the time for another try.
        let is_last = failed.may_be_done() && request.method == Method::Post || failed == DialError::Late;
        if is_last || begun.elapsed() >= ANSWER_WITHIN {
            return Err(problem(&view, member, failed));
        }
        // An unreachable member says less to the caller than another failure.
        if failure.is_none() || !matches!(failed, DialError::Unreachable(_)) {
            failure = Some((member, failed));
        }
    }
    let (member, failed) = failure.ok_or_else(|| UNAVAILABLE.because("this worker is not a member yet, and there is no other one"))?;
    let DialError::Unreachable(why) = failed else { return Err(problem(&view, member, failed)) };
    Err(count("unreachable", UNAVAILABLE.because(format!("{} members were tried and none is there: {why}", choices.len()))))
}

/// The members to try for a request to any of them, in this order: [`TRIES`] healthy ones in turn, this one among them. If its turn does not
/// come, it is tried last, because that needs no network. If it is not healthy, it is tried only if no other member is.
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
fn refused(app: &App, problem: &Problem, is_look: bool) {
    let (status, why) = (problem.status(), problem.detail());
    if is_look {
        tracing::debug!(status, why, "a member could not be looked at");
    } else if let Some(count) = app.log.unbrought.another(status) {
        tracing::warn!(status, why, count, "a request was not forwarded to a member; one line a minute at most");
    }
}

fn is_there(member: &Member) -> bool {
    member.state != MemberState::Away
}

fn is_me(joined: &ServedGroup, member: &Member) -> bool {
    let service = &joined.service;
    // The id first: this is asked of every member.
    member.instance_id == *service.instance_id()
        && service.requests_path() == path_to(service.group_name(), &member.instance_id, member.incarnation)
}

/// The answer of that member, which may be this one. A member whose answer takes too long is suspected.
async fn ask(
    app: &App,
    joined: &ServedGroup,
    member: &Member,
    path: &str,
    request: &requests::Request,
) -> std::result::Result<Answer, DialError> {
    let answer = if is_me(joined, member) {
        answer_here(app, joined, path, Cow::Borrowed(request)).await.map_err(DialError::Unhandled)
    } else {
        call(app, joined, member, path, request).await
    };
    if answer.as_ref().map_or_else(|failed| *failed == DialError::Late, |answer| answer.status == TIMEOUT) {
        suspect(app, joined, member).await;
    }
    answer
}

async fn call(
    app: &App,
    joined: &ServedGroup,
    member: &Member,
    path: &str,
    request: &requests::Request,
) -> std::result::Result<Answer, DialError> {
    let Some(address) = member.metadata.get(ADDRESS_KEY) else {
        return Err(DialError::Barred(
            "it takes no requests: it has no sidecar, and does not listen for them at an address that others know".into(),
        ));
    };
    let target = &Target::of_member(address).ok_or_else(|| DialError::Barred("its record has no address that is one".into()))?;
    let (group, instance_id, incarnation) = (joined.service.group_name(), &member.instance_id, member.incarnation);
    let whom = PeerMember {
        networks: &joined.service.peers().networks,
        token: token(app, joined),
        recipient: Recipient { channel: Channel::Requests, group, instance_id, incarnation },
    };
    let (peers, limits, base) = (&app.options.peers, &app.options.limits, path_to(group, instance_id, incarnation));
    dial::ask(&Callee { peers, limits, target, base, member: Some(whom) }, path, request).await
}

/// Reports to a member that its worker has not answered in time, at most once in five seconds. It only brings the member's own check
/// forward.
async fn suspect(app: &App, joined: &ServedGroup, member: &Member) {
    if !app.suspected.passes(&member.instance_id) {
        return;
    }
    if is_me(joined, member) {
        return joined.service.suspect();
    }
    let report = requests::Request::new(Method::Post);
    let reported = call(app, joined, member, SUSPECT, &report);
    // Without a token or certificates members send no POST, and so no report.
    let _ = tokio::time::timeout(REPORTED_WITHIN, reported).await;
}

fn answered(member: &Member, answer: Answer) -> Response {
    count("answered", ());
    ([(INSTANCE, encoded(member.instance_id.as_str()))], sent(answer)).into_response()
}

fn problem(view: &View, member: &Member, failed: DialError) -> Problem {
    let (id, outcome) = (&member.instance_id, failed.outcome());
    let problem = match failed {
        DialError::Unreachable(why) => UNREACHABLE.because(format!("{id} does not answer: {why}; {}", living(view, Some(id)))),
        DialError::Unhandled(Unhandled::NoWorker(why)) => NO_WORKER.because(format!("the worker of {id} gives no valid answer: {why}")),
        DialError::Unhandled(Unhandled::Busy) => TOO_MANY.because(format!("{id} already answers as many requests as it may; try again")),
        DialError::Barred(why) => BAD_GATEWAY.because(format!("{id} was not asked: {why}")),
        DialError::Broken(why) => BAD_GATEWAY.because(format!("{id} gives no answer, and it is unknown if it has done something: {why}")),
        DialError::Late => TOO_LATE.because(format!("{id} takes too long, and it is unknown if it has done something")),
    };
    count(outcome, problem)
}

fn count<T>(outcome: &'static str, value: T) -> T {
    metrics::counter!(crate::metrics::FORWARDS.name, "outcome" => outcome).increment(1);
    value
}

/// The names of the live members, at most the first few, for an error.
fn living(view: &View, dead: Option<&InstanceId>) -> String {
    let living: Vec<&Member> = view.members().iter().filter(|member| is_there(member) && dead != Some(&member.instance_id)).collect();
    let names: Vec<_> = living.iter().take(NAMED).map(|member| member.instance_id.as_str()).collect();
    let more = living.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the living are: {}{more}", names.join(", "))
}
