//! Requests from other members to this one: answered by the worker's own handlers, by `status`, or by the local worker.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use secrecy::ExposeSecret;
use shardwise::requests::proven::{
    self, AnswerParts, DIGEST_HEADER, Greeting, NO_TOKEN, NONCE_HEADER, PROOF_HEADER, ProofRefusal, ProvenHead,
};
use shardwise::requests::{self, ANSWERED, Addressee, Answer, Method, PEER_HEADER, REFUSED, STATUS, TO_HEADER, is_path};
use shardwise::trace::TRACEPARENT;

use crate::app::{App, FORWARDS_MOST, ServedGroup};
use crate::bodies::Room;
use crate::body;
use crate::connections::ConnectionFacts;
use crate::dial::{self, Callee, DialError, Unhandled};
use crate::options::Token;
use crate::peer_http::text;
use crate::problem::{BAD_REQUEST, FORBIDDEN, MISDIRECTED, NO_WORKER, Problem, Result, TOO_MANY};

pub(crate) const PEERS: &str = "/v1/peers/";

/// A message from a member. It is checked once, at the gate.
#[derive(Clone)]
enum PeerMessage {
    /// The member checks whether this is the member that it calls.
    Greeting(Greeting),
    /// A request for a member here: the member, the path, and the proof if there is a token.
    Request(Arc<ServedGroup>, String, Option<ProvenHead>),
}

/// Whether a request comes from a member. Call it once for each request, because it uses up the proof. The result becomes an extension of
/// the request.
pub(crate) fn is_let_in(app: &App, head: &mut Parts) -> bool {
    let message = let_in(app, head);
    let is_member = message.is_ok();
    head.extensions.insert(message);
    is_member
}

pub(crate) async fn peers(State(app): State<Arc<App>>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let message: Result<PeerMessage> = head.extensions.remove().unwrap_or_else(|| Err(Problem::unproven(ProofRefusal::NOT_RIGHT)));
    match message {
        Ok(PeerMessage::Greeting(Greeting { nonce, proof })) => {
            (StatusCode::NO_CONTENT, [(PEER_HEADER, ANSWERED), (NONCE_HEADER, nonce.as_str()), (PROOF_HEADER, proof.as_str())])
                .into_response()
        }
        Ok(PeerMessage::Request(joined, path, proven)) => {
            let (answer, by) = match answer_to(&app, &joined, &path, proven.as_ref(), &head, body).await {
                Ok(answer) => (answer, ANSWERED),
                Err(problem) => (problem.into_answer(), REFUSED),
            };
            said(answer, by, proven.as_ref())
        }
        Err(problem) => {
            if let Some(refused) = app.log.strangers.another(problem.status()) {
                let (status, why) = (problem.status(), problem.detail());
                tracing::warn!(status, refused, why, "requests between members were not let in; one line a minute at most");
            }
            ([(PEER_HEADER, REFUSED)], problem).into_response()
        }
    }
}

async fn answer_to(app: &App, joined: &ServedGroup, path: &str, proven: Option<&ProvenHead>, head: &Parts, body: Body) -> Result<Answer> {
    app.admit()?;
    if !is_path(path) {
        return Err(no_path());
    }
    let to = Addressee::of_header(head.headers.get(TO_HEADER).map(HeaderValue::as_bytes));
    let to = to.ok_or_else(|| BAD_REQUEST.because("an unknown shardwise-to: upgrade this member"))?;
    // The memory of the body stays reserved until the request is answered.
    let (mut request, _room) = requested(app, head, body).await?;
    request.to = to;
    if proven.is_some_and(|proven| !proven.has_body(&request.body)) {
        return Err(BAD_REQUEST.because("the body is not the one that was proven"));
    }
    answer_here(app, joined, path, Cow::Owned(request)).await.map_err(|unhandled| match unhandled {
        Unhandled::Busy => TOO_MANY.because(format!("at most {FORWARDS_MOST} requests are answered here at a time; try again")),
        Unhandled::NoWorker(why) => NO_WORKER.because(why),
    })
}

/// The message, if it is for a member here and comes from a member.
fn let_in(app: &App, head: &Parts) -> Result<PeerMessage> {
    if !head.headers.contains_key(PEER_HEADER) {
        return Err(FORBIDDEN.because("only members of the group are answered here; ask for …/instances/ or …/any/"));
    }
    let path = head.uri.path();
    let found = app.policies.values().find_map(|joined| Some((joined, path.strip_prefix(&joined.service.requests_path())?)));
    let (joined, path) = found.ok_or_else(|| MISDIRECTED.because("the member that was asked for is not here, or not any more"))?;
    let asked = |proven| Ok(PeerMessage::Request(Arc::clone(joined), path.to_owned(), proven));
    let is_mutual = app.options.peers.is_mutual();
    let connection = head.extensions.get::<ConnectionFacts>();
    if is_mutual && connection.is_none_or(|connection| !connection.is_certified) {
        return Err(FORBIDDEN.because("members show a certificate here: start theirs with --peer-cert and --peer-key"));
    }
    // A token is never accepted: an older version that sends one is refused, and that token should be changed.
    if head.headers.contains_key(AUTHORIZATION) {
        return Err(Problem::unproven(ProofRefusal::OTHER_VERSION));
    }
    let (method, nonce) = (method_of(head)?, text(&head.headers, NONCE_HEADER).filter(|_| path.is_empty()));
    match (token(app, joined), nonce) {
        (Some(token), Some(nonce)) => {
            let greeting = connection.and_then(|end| end.recipient.greeted(token.bytes(), &joined.service.recipient(), nonce));
            greeting.map(PeerMessage::Greeting).ok_or_else(|| Problem::unproven(ProofRefusal::NOT_RIGHT))
        }
        (Some(_), None) => asked(Some(proven(head).ok_or_else(|| Problem::unproven(ProofRefusal::NOT_RIGHT))?)),
        (None, Some(_)) => {
            let problem = FORBIDDEN.because("no peer token is set here, so there is nothing to prove: --peer-token-file, peer_token_file");
            Err(problem.with(HeaderName::from_static(PROOF_HEADER), NO_TOKEN))
        }
        (None, None) if is_mutual || app.options.token.is_none() && method == Method::Get => asked(None),
        (None, None) => Err(FORBIDDEN.because(
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
        to: bytes(TO_HEADER),
    };
    head.extensions.get::<ConnectionFacts>()?.recipient.proven(&asked, text(&head.headers, PROOF_HEADER)?)
}

/// The answer to a member, with a proof if the request had one.
fn said(answer: Answer, by: &'static str, proven: Option<&ProvenHead>) -> Response {
    let proof = proven.map(|proven| {
        let kind = content_type(&answer);
        let answered = AnswerParts { by, status: status_of(&answer).as_u16(), content_type: Some(kind.as_bytes()), body: &answer.body };
        [(PROOF_HEADER, proven.answer(&answered))]
    });
    ([(PEER_HEADER, by)], proof, sent(answer)).into_response()
}

/// The members' secret: from the command line, or else from the settings.
pub(crate) fn token(app: &App, joined: &ServedGroup) -> Option<Token> {
    let set = || joined.service.peers().token.as_ref().map(|token| Token::of(token.expose_secret().as_bytes()));
    app.options.peers.token.clone().or_else(set)
}

fn method_of(head: &Parts) -> Result<Method> {
    match head.method.as_str() {
        "GET" => Ok(Method::Get),
        "POST" => Ok(Method::Post),
        _ => Err(Problem::method_not_allowed("GET, POST")),
    }
}

pub(crate) fn no_path() -> Problem {
    BAD_REQUEST.because(
        "a member's path has parts of letters, digits and -._~ with single slashes between them, nothing encoded, 256 bytes at most",
    )
}

/// The request to forward (method, query, the body and its type), and the memory reserved for the body. Its addressee is not read from a
/// header, which a client could set.
pub(crate) async fn requested(app: &App, head: &Parts, body: Body) -> Result<(requests::Request, Room)> {
    let (method, query) = (method_of(head)?, head.uri.query());
    if query.is_some_and(|query| query.len() > requests::QUERY_BYTES_MAX) {
        return Err(BAD_REQUEST.because(format!("a query has at most {} bytes", requests::QUERY_BYTES_MAX)));
    }
    if method == Method::Get && !body.is_end_stream() {
        return Err(BAD_REQUEST.because("a GET has no body here; send what it takes in the query, or POST"));
    }
    let mut request = requests::Request::new(method);
    request.query = query.map(str::to_owned);
    request.content_type = text(&head.headers, CONTENT_TYPE.as_str()).map(str::to_owned);
    let (body, room) = body::whole(app, body).await?;
    // A request that is being forwarded can no longer be dropped.
    room.is_whole();
    request.body = body;
    Ok((request, room))
}

/// Answers as this member, with a limit on concurrent requests. The handlers of this process go first, then the worker, and the status
/// that every member has comes last. The request is copied only if it is borrowed, which it is while another member may still get it.
pub(crate) async fn answer_here(
    app: &App,
    joined: &ServedGroup,
    path: &str,
    request: Cow<'_, requests::Request>,
) -> std::result::Result<Answer, Unhandled> {
    let _turn = app.answers.try_acquire().map_err(|_| Unhandled::Busy)?;
    let worker = app.options.peers.forward_to.as_ref().filter(|_| !joined.service.handles(request.to, path));
    let Some(target) = worker else { return Ok(joined.service.answer(path, request.into_owned()).await) };
    let (peers, limits) = (&app.options.peers, &app.options.limits);
    let beside = Callee { peers, limits, target, base: format!("{}/", target.prefix), member: None };
    let failed = match dial::ask(&beside, path, &request).await {
        Ok(answer) if path == STATUS && answer.status == 404 => return Ok(joined.service.answer(path, request.into_owned()).await),
        Ok(answer) => return Ok(answer),
        Err(failed) => failed,
    };
    joined.service.suspect();
    let why = failed.to_string();
    if failed != DialError::Late
        && let Some(count) = app.log.unanswered.another(())
    {
        tracing::warn!(why, count, "the local worker does not answer; one line a minute at most");
    }
    // A read may be sent to another member even if the worker has begun it; after a timeout no time is left for that.
    if !failed.may_be_done() || request.method == Method::Get && failed != DialError::Late {
        return Err(Unhandled::NoWorker(why));
    }
    let status = if failed == DialError::Late { 504 } else { 502 };
    Ok(Answer::problem(status, "worker", "The local worker does not answer", &why))
}

/// The HTTP answer. Its headers prevent a browser from treating it as a page of this sidecar.
pub(crate) fn sent(answer: Answer) -> Response {
    let guards =
        [(X_CONTENT_TYPE_OPTIONS, "nosniff"), (CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"), (CACHE_CONTROL, "no-store")];
    (status_of(&answer), [(CONTENT_TYPE, content_type(&answer))], guards, answer.body).into_response()
}

fn status_of(answer: &Answer) -> StatusCode {
    StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn content_type(answer: &Answer) -> HeaderValue {
    HeaderValue::from_str(&answer.content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"))
}
