//! Forwards a request to one named member, or to any healthy one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{self, HeaderName};
use axum::response::{IntoResponse, Response};
use shardwise::proof::{Channel, Recipient};
use shardwise::requests::{self, ADDRESS_KEY, Answer, Method, encoded, is_path, path_to};
use shardwise::{InstanceId, Member, MemberState, View};
use tokio::sync::SemaphorePermit;

use crate::app::{App, FORWARDS_MOST, NamePath, PolicyPath, ServedGroup};
use crate::bodies::Room;
use crate::dial::{self, ANSWER_WITHIN, Callee, DialError, PeerMember};
use crate::page;
use crate::peers::{answer_here, no_path, requested, sent, token};
use crate::problem::{BAD_GATEWAY, Problem, Result, TOO_LATE, TOO_MANY, UNAVAILABLE, UNKNOWN_INSTANCE, UNREACHABLE};
use crate::target::Target;

/// How many members are tried for a request that any member may answer.
const TRIES: usize = 3;
/// How long the caller of a request that took too long waits until the member is notified.
const NOTIFIED_WITHIN: Duration = Duration::from_secs(1);
/// The most members that an error names.
const NAMED: usize = 20;
/// The member that has answered, percent-encoded.
const INSTANCE: HeaderName = HeaderName::from_static("shardwise-instance");

/// Forward a GET to one member.
///
/// The member answers `status` and every path for which its worker has a handler; the path may have further parts, separated by slashes.
/// Query and body (1 MiB at most, in both directions) are forwarded; credentials, cookies and other headers are not. If the group has no
/// such member, the answer is 404; if the member does not answer, it is 502, also while a dead member's record has not expired.
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

/// Forward a GET to any healthy member, another one than this if possible.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/any/{path}", tag = "members", operation_id = "of_any",
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
    let view = joined.observer()?.members();
    let id = InstanceId::new(whom).ok();
    let Some(member) = id.as_ref().and_then(|id| view.member(id)).filter(|member| is_there(member)) else {
        let why = format!("there is no living member of that name; {}", living(&view, None));
        return Err(count("unknown", UNKNOWN_INSTANCE.because(why)));
    };
    if is_me(joined, member) {
        return Ok(answered(member, answer_here(app, joined, &path, request).await?));
    }
    match ask(app, joined, member, &path, &request).await {
        Ok(answer) => Ok(answered(member, answer)),
        Err(failed) => {
            if failed == DialError::Late {
                suspect(app, joined, member).await;
            }
            Err(problem(&view, member, failed))
        }
    }
}

async fn bring_to_any(app: &App, joined: &ServedGroup, request: Request) -> Result<Response> {
    // The path follows "", v1, policies, the policy and any.
    let (path, request, _held) = taken(app, request, 5).await?;
    let view = joined.observer()?.members();
    let is_other =
        |member: &&Member| member.state == MemberState::Active && member.metadata.contains_key(ADDRESS_KEY) && !is_me(joined, member);
    let healthy: Vec<&Member> = view.members().iter().filter(is_other).collect();
    let first = app.next.fetch_add(1, Ordering::Relaxed);
    // A request that may have had an effect is not sent to a second member.
    let tries = healthy.len().min(if request.method == Method::Get { TRIES } else { 1 });
    let (begun, mut failure) = (Instant::now(), None);
    for n in 0..tries {
        // There is at least one healthy member if there is a try.
        let Some(member) = healthy.get(first.wrapping_add(n) % healthy.len()) else { break };
        match ask(app, joined, member, &path, &request).await {
            Ok(answer) => return Ok(answered(member, answer)),
            // An action that may have been done is not repeated, and a timeout has used up the time for another try.
            Err(failed) if request.method == Method::Post && matches!(failed, DialError::Broken(_) | DialError::Late) => {
                return Err(problem(&view, member, failed));
            }
            Err(failed) if begun.elapsed() >= ANSWER_WITHIN || failed == DialError::Late => return Err(problem(&view, member, failed)),
            // An earlier failure says more than an unreachable member.
            Err(DialError::Unreachable(_)) if failure.is_some() => {}
            Err(failed) => failure = Some((*member, failed)),
        }
    }
    // This member answers itself if it is the only one, or if it is healthy and no other can be reached.
    let me = view.member(joined.service.instance_id()).filter(|me| is_me(joined, me));
    if let Some(me) = me.filter(|me| failure.is_none() || me.state == MemberState::Active) {
        return Ok(answered(me, answer_here(app, joined, &path, request).await?));
    }
    let (member, failed) = failure.ok_or_else(|| UNAVAILABLE.because("this worker is not a member yet, and there is no other one"))?;
    let DialError::Unreachable(why) = failed else { return Err(problem(&view, member, failed)) };
    Err(count("unreachable", UNAVAILABLE.because(format!("{tries} members were tried and none is there: {why}"))))
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
    joined.service.requests_path() == path_to(joined.service.group_name(), &member.instance_id, member.incarnation)
}

async fn ask(
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

/// Notifies a member that its worker has not answered in time, at most once in five seconds. It only brings the member's own check forward.
async fn suspect(app: &App, joined: &ServedGroup, member: &Member) {
    if app.suspected.passes(&member.instance_id) {
        let report = requests::Request::new(Method::Post);
        let notified = ask(app, joined, member, "shardwise/suspect", &report);
        // Without a token or certificates members send no POST, and then the member is not notified.
        let _ = tokio::time::timeout(NOTIFIED_WITHIN, notified).await;
    }
}

fn answered(member: &Member, answer: Answer) -> Response {
    count("answered", ());
    ([(INSTANCE, encoded(member.instance_id.as_str()))], sent(answer)).into_response()
}

fn problem(view: &View, member: &Member, failed: DialError) -> Problem {
    let id = &member.instance_id;
    match failed {
        DialError::Unreachable(why) => {
            count("unreachable", UNREACHABLE.because(format!("{id} does not answer: {why}; {}", living(view, Some(id)))))
        }
        DialError::Barred(why) => count("barred", BAD_GATEWAY.because(format!("{id} was not asked: {why}"))),
        DialError::Broken(why) => {
            count("broken", BAD_GATEWAY.because(format!("{id} gives no answer, and it is unknown if it has done something: {why}")))
        }
        DialError::Late => count("late", TOO_LATE.because(format!("{id} takes too long, and it is unknown if it has done something"))),
    }
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
