//! Requests from other members to this one, and what it answers: the worker's own handlers, `status`, and whatever the worker beside answers.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use secrecy::ExposeSecret;
use shardwise::requests::{self, Answer, Method, PEER_HEADER, REFUSED, SPOKEN, is_path};

use crate::app::{App, Joined};
use crate::body;
use crate::connections::Certified;
use crate::dial::{self, Failed, Whom};
use crate::forward::FORWARDS_MOST;
use crate::gate::bearer;
use crate::options::Token;
use crate::problem::{Problem, Result};

/// What the paths of members' requests begin with.
pub(crate) const PEERS: &str = "/v1/peers/";

/// A request that a member has brought here.
pub(crate) async fn peers(State(app): State<Arc<App>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let (mut response, by) = match let_in(&app, &head) {
        Ok((joined, path, method)) => match requested(&app, &head, body, method).await {
            Ok(request) => match answer_here(&app, joined, path, request).await {
                Ok(answer) => (sent(answer), SPOKEN),
                Err(problem) => (problem.into_response(), REFUSED),
            },
            Err(problem) => (problem.into_response(), REFUSED),
        },
        Err(problem) => {
            if let Some(refused) = app.strangers.another(problem.status()) {
                tracing::warn!(status = problem.status(), refused, "requests between members were not let in; one line a minute at most");
            }
            (problem.into_response(), REFUSED)
        }
    };
    response.headers_mut().insert(PEER_HEADER, HeaderValue::from_static(by));
    response
}

/// A request for a member here: for whom, at which path, and how.
type Brought<'a> = (&'a Arc<Joined>, &'a str, Method);

/// What it is, if it comes from a member and there is a place for it.
fn let_in<'a>(app: &'a App, head: &'a Parts) -> Result<Brought<'a>> {
    let brought = comes_from_a_member(app, head)?;
    app.admit()?;
    if is_path(brought.1) { Ok(brought) } else { Err(no_path()) }
}

/// What it is, if whoever brings it shows what members are to show.
///
/// # Errors
///
/// Why it is not let in.
pub(crate) fn comes_from_a_member<'a>(app: &'a App, head: &'a Parts) -> Result<Brought<'a>> {
    if !head.headers.contains_key(PEER_HEADER) {
        return Err(Problem::forbidden("only members of the group are answered here; ask for …/instances/ or …/any/"));
    }
    let path = head.uri.path();
    let found = app.policies.values().find_map(|joined| Some((joined, path.strip_prefix(joined.service.requests_path())?)));
    let (joined, path) = found.ok_or_else(|| Problem::misdirected("the member that was asked for is not here, or not any more"))?;
    let method = method_of(head)?;
    admits(app, joined, head, method)?;
    Ok((joined, path, method))
}

/// Whoever shows what members are to show: a certificate, a token, or both. Where neither is set, on this machine, and only to read.
fn admits(app: &App, joined: &Joined, head: &Parts, method: Method) -> Result<()> {
    let is_mutual = app.peers.is_mutual();
    if is_mutual && head.extensions.get::<Certified>().is_none() {
        return Err(Problem::forbidden("members show a certificate here: start theirs with --peer-cert and --peer-key"));
    }
    match token(app, joined) {
        Some(token) if bearer(&head.headers).is_some_and(|shown| token.is(shown)) => Ok(()),
        Some(_) => Err(Problem::unauthorized()),
        None if is_mutual || app.token.is_none() && method == Method::Get => Ok(()),
        None => Err(Problem::forbidden(
            "without a peer token or certificates only GET is answered, and nothing where an operator's token is set: --peer-token-file, --peer-cert",
        )),
    }
}

/// What members show each other: as the command line has it, or else the settings.
pub(crate) fn token(app: &App, joined: &Joined) -> Option<Token> {
    let set = || joined.service.peers().token.as_ref().map(|token| Token::of(token.expose_secret().as_bytes()));
    app.peers.token.clone().or_else(set)
}

pub(crate) fn method_of(head: &Parts) -> Result<Method> {
    match head.method.as_str() {
        "GET" => Ok(Method::Get),
        "POST" => Ok(Method::Post),
        _ => Err(Problem::method_not_allowed("GET, POST")),
    }
}

pub(crate) fn no_path() -> Problem {
    Problem::bad_request(
        "a member's path has parts of letters, digits and -._~ with single slashes between them, nothing encoded, 256 bytes at most",
    )
}

/// What is handed over of a request: method, query, the body and its type.
pub(crate) async fn requested(app: &App, head: &Parts, body: Body, method: Method) -> Result<requests::Request> {
    let query = head.uri.query();
    if query.is_some_and(|query| query.len() > requests::QUERY_BYTES_MAX) {
        return Err(Problem::bad_request(format!("a query has at most {} bytes", requests::QUERY_BYTES_MAX)));
    }
    if method == Method::Get && !body.is_end_stream() {
        return Err(Problem::bad_request("a GET has no body here; send what it takes in the query, or POST"));
    }
    let mut request = requests::Request::new(method);
    request.query = query.map(str::to_owned);
    request.content_type = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
    request.body = body::whole(body, &app.limits).await?;
    Ok(request)
}

/// What this member answers, to so many at a time.
pub(crate) async fn answer_here(app: &App, joined: &Joined, path: &str, request: requests::Request) -> Result<Answer> {
    let busy = |_| Problem::too_many(format!("{FORWARDS_MOST} requests are answered here at a time, and no more"));
    let _turn = app.peers.answers.try_acquire().map_err(busy)?;
    Ok(answered(app, joined, path, request).await)
}

async fn answered(app: &App, joined: &Joined, path: &str, request: requests::Request) -> Answer {
    let Some(beside) = app.peers.forward_to.as_ref().filter(|_| !joined.service.answers_at(path)) else {
        return joined.service.answer(path, request).await;
    };
    let problem = |status, why: &str| Answer::problem(status, "worker", "The worker beside this sidecar does not answer", why);
    match dial::ask(&Whom::Beside(&app.peers, &app.limits), beside, &format!("/{path}"), &request).await {
        Ok(answer) => answer,
        Err(Failed::Late) => problem(504, "it takes too long"),
        Err(Failed::Nobody(why) | Failed::Barred(why) | Failed::Broken(why)) => {
            if let Some(count) = app.unanswered.another(()) {
                tracing::warn!(why, count, "the worker beside this sidecar does not answer; one line a minute at most");
            }
            problem(502, &why)
        }
    }
}

/// An answer as it goes out. Whatever it is, in a browser it is nothing of this sidecar's.
pub(crate) fn sent(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, answer.body).into_response();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_str(&answer.content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
