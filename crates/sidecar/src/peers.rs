//! Requests from other members to this one: answered by the worker's own handlers, by `status`, or by the local worker.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use secrecy::ExposeSecret;
use shardwise::requests::proven::{
    self, AnswerParts, DIGEST_HEADER, Greeting, NONCE_HEADER, PROOF_HEADER, ProofRefusal, ProvenHead, RecipientEnd,
};
use shardwise::requests::{self, ANSWERED, Answer, Method, PEER_HEADER, REFUSED, is_path};
use shardwise::trace::TRACEPARENT;

use crate::app::{App, ServedGroup};
use crate::bodies::Room;
use crate::body;
use crate::connections::VerifiedClient;
use crate::dial::{self, DialError, DialTarget};
use crate::forward::FORWARDS_MOST;
use crate::options::Token;
use crate::problem::{Problem, Result};

pub(crate) const PEERS: &str = "/v1/peers/";

/// A message from a member. It is checked once, at the gate.
#[derive(Clone)]
enum PeerMessage {
    /// The member checks whether this is the member that it calls.
    Greeting(Greeting),
    Request(PeerRequest),
}

/// A request for a member here: the member, the path, the method, and the proof if there is a token.
#[derive(Clone)]
struct PeerRequest {
    joined: Arc<ServedGroup>,
    path: String,
    method: Method,
    proven: Option<ProvenHead>,
}

/// A request extension with the result of the check.
#[derive(Clone)]
struct PeerVerdict(Result<PeerMessage>);

/// Whether a request comes from a member. Call it once for each request, because it uses up the proof.
pub(crate) fn is_let_in(app: &App, head: &mut Parts) -> bool {
    let judged = let_in(app, head);
    let is_member = judged.is_ok();
    head.extensions.insert(PeerVerdict(judged));
    is_member
}

pub(crate) async fn peers(State(app): State<Arc<App>>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let PeerVerdict(judged) = head.extensions.remove().unwrap_or_else(|| PeerVerdict(Err(Problem::unproven(ProofRefusal::NOT_RIGHT))));
    match judged {
        Ok(PeerMessage::Greeting(greeting)) => greeted(&greeting),
        Ok(PeerMessage::Request(asked)) => {
            let (answer, by) = match answer_to(&app, &asked, &head, body).await {
                Ok(answer) => (answer, ANSWERED),
                Err(problem) => (problem.into_answer(), REFUSED),
            };
            said(answer, by, asked.proven.as_ref())
        }
        Err(problem) => {
            if let Some(refused) = app.strangers.another(problem.status()) {
                let (status, why) = (problem.status(), problem.detail());
                tracing::warn!(status, refused, why, "requests between members were not let in; one line a minute at most");
            }
            let mut response = problem.into_response();
            response.headers_mut().insert(PEER_HEADER, HeaderValue::from_static(REFUSED));
            response
        }
    }
}

async fn answer_to(app: &App, asked: &PeerRequest, head: &Parts, body: Body) -> Result<Answer> {
    app.admit()?;
    if !is_path(&asked.path) {
        return Err(no_path());
    }
    // The memory of the body stays reserved until the request is answered.
    let (request, _room) = requested(app, head, body, asked.method).await?;
    if asked.proven.as_ref().is_some_and(|proven| !proven.has_body(&request.body)) {
        return Err(Problem::bad_request("the body is not the one that was proven"));
    }
    answer_here(app, &asked.joined, &asked.path, request).await
}

/// The message, if it is for a member here and comes from a member.
fn let_in(app: &App, head: &Parts) -> Result<PeerMessage> {
    if !head.headers.contains_key(PEER_HEADER) {
        return Err(Problem::forbidden("only members of the group are answered here; ask for …/instances/ or …/any/"));
    }
    let path = head.uri.path();
    let found = app.policies.values().find_map(|joined| Some((joined, path.strip_prefix(&joined.service.requests_path())?)));
    let (joined, path) = found.ok_or_else(|| Problem::misdirected("the member that was asked for is not here, or not any more"))?;
    let asked = |proven| {
        Ok(PeerMessage::Request(PeerRequest { joined: Arc::clone(joined), path: path.to_owned(), method: method_of(head)?, proven }))
    };
    let is_mutual = app.peers.is_mutual();
    if is_mutual && head.extensions.get::<VerifiedClient>().is_none() {
        return Err(Problem::forbidden("members show a certificate here: start theirs with --peer-cert and --peer-key"));
    }
    // A token is never accepted: an older version that sends one is refused, and that token should be changed.
    if head.headers.contains_key(AUTHORIZATION) {
        return Err(Problem::unproven(ProofRefusal::OTHER_VERSION));
    }
    let (method, nonce) = (method_of(head)?, text(&head.headers, NONCE_HEADER).filter(|_| path.is_empty()));
    match (token(app, joined), nonce) {
        (Some(token), Some(nonce)) => {
            let answering = head.extensions.get::<Arc<RecipientEnd>>();
            let greeting = answering.and_then(|answering| answering.greeted(token.bytes(), &joined.service.recipient(), nonce));
            greeting.map(PeerMessage::Greeting).ok_or_else(|| Problem::unproven(ProofRefusal::NOT_RIGHT))
        }
        (Some(_), None) => asked(Some(proven(head).ok_or_else(|| Problem::unproven(ProofRefusal::NOT_RIGHT))?)),
        (None, Some(_)) => Err(Problem::no_peer_token()),
        (None, None) if is_mutual || app.token.is_none() && method == Method::Get => asked(None),
        (None, None) => Err(Problem::forbidden(
            "without a peer token or certificates only GET is answered, and nothing where an operator's token is set: --peer-token-file, --peer-cert",
        )),
    }
}

/// The proof of the head, on its connection.
fn proven(head: &Parts) -> Option<ProvenHead> {
    let bytes = |name: &str| head.headers.get(name).map(HeaderValue::as_bytes);
    let asked = proven::RequestParts {
        method: head.method.as_str(),
        target: head.uri.path_and_query()?.as_str(),
        content_type: bytes(CONTENT_TYPE.as_str()),
        traceparent: bytes(TRACEPARENT),
        digest: text(&head.headers, DIGEST_HEADER)?,
    };
    head.extensions.get::<Arc<RecipientEnd>>()?.proven(&asked, text(&head.headers, PROOF_HEADER)?)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn greeted(greeting: &Greeting) -> Response {
    let headers = [(PEER_HEADER, ANSWERED), (NONCE_HEADER, greeting.nonce.as_str()), (PROOF_HEADER, greeting.proof.as_str())];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// The answer to a member, with a proof if the request had one.
fn said(answer: Answer, by: &'static str, proven: Option<&ProvenHead>) -> Response {
    let prove = |proven: &ProvenHead| {
        let kind = content_type(&answer);
        let answered = AnswerParts { by, status: status_of(&answer).as_u16(), content_type: Some(kind.as_bytes()), body: &answer.body };
        HeaderValue::from_str(&proven.answer(&answered)).ok()
    };
    let proof = proven.and_then(prove);
    let mut response = sent(answer);
    response.headers_mut().insert(PEER_HEADER, HeaderValue::from_static(by));
    if let Some(proof) = proof {
        response.headers_mut().insert(PROOF_HEADER, proof);
    }
    response
}

/// The members' secret: from the command line, or else from the settings.
pub(crate) fn token(app: &App, joined: &ServedGroup) -> Option<Token> {
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

/// The request to forward (method, query, the body and its type), and the memory reserved for the body.
pub(crate) async fn requested(app: &App, head: &Parts, body: Body, method: Method) -> Result<(requests::Request, Room)> {
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
    let body::BufferedBody { bytes, room } = body::whole(body, &app.limits, &app.bodies).await?;
    // A request that is being forwarded can no longer be dropped.
    room.is_whole();
    request.body = bytes;
    Ok((request, room))
}

/// Answers as this member, with a limit on concurrent requests.
pub(crate) async fn answer_here(app: &App, joined: &ServedGroup, path: &str, request: requests::Request) -> Result<Answer> {
    let busy = |_| Problem::too_many(format!("at most {FORWARDS_MOST} requests are answered here at a time; try again"));
    let _turn = app.peers.answers.try_acquire().map_err(busy)?;
    Ok(answered(app, joined, path, request).await)
}

async fn answered(app: &App, joined: &ServedGroup, path: &str, request: requests::Request) -> Answer {
    let Some(beside) = app.peers.forward_to.as_ref().filter(|_| !joined.service.answers_at(path)) else {
        return joined.service.answer(path, request).await;
    };
    let problem = |status, why: &str| Answer::problem(status, "worker", "The worker beside this sidecar does not answer", why);
    match dial::ask(&DialTarget::Beside(&app.peers, &app.limits), beside, path, &request).await {
        Ok(answer) => answer,
        Err(DialError::Late) => problem(504, "it takes too long"),
        Err(DialError::Unreachable(why) | DialError::Barred(why) | DialError::Broken(why)) => {
            if let Some(count) = app.unanswered.another(()) {
                tracing::warn!(why, count, "the worker beside this sidecar does not answer; one line a minute at most");
            }
            problem(502, &why)
        }
    }
}

/// The HTTP answer. Its headers prevent a browser from treating it as a page of this sidecar.
pub(crate) fn sent(answer: Answer) -> Response {
    let kind = content_type(&answer);
    let mut response = (status_of(&answer), answer.body).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn status_of(answer: &Answer) -> StatusCode {
    StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn content_type(answer: &Answer) -> HeaderValue {
    HeaderValue::from_str(&answer.content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"))
}
