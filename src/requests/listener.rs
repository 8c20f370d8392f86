//! Receives requests at a worker without a sidecar: HTTP/1.1 on this machine, few connections, a greeting and one request on each. A
//! caller may be anyone: everything here is limited in number, bytes and time.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use secrecy::ExposeSecret;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{Instrument, field};

use super::handlers::{RequestHandlers, arrive_at, requests_path};
use super::proven::{
    AnswerParts, DIGEST_HEADER, Greeting, NO_TOKEN, NONCE_HEADER, PROOF_HEADER, ProofRefusal, ProvenHead, RecipientEnd, RequestParts,
};
use super::{ANSWERED, Addressee, Answer, BODY_BYTES_MAX, Method, PEER_HEADER, QUERY_BYTES_MAX, REFUSED, Request, TO_HEADER, is_path};
use crate::error::Result;
use crate::membership::Membership;
use crate::membership::proof::Channel;
use crate::telemetry::trace::{self, TRACEPARENT, TraceParent};

/// The most connections; a further one is closed at once.
const CONNECTIONS_MAX: usize = 128;
/// How long a request's head may take, and a connection may be idle.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection may last: it carries a greeting and one request.
const CONNECTION_WITHIN: Duration = Duration::from_secs(40);
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The route of members' requests in traces, whichever member and handler it is.
const ROUTE: &str = "/v1/peers/{*path}";
/// The pause after the system could not accept a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

pub(super) async fn listen(membership: &Arc<Membership>) -> Result<SocketAddr> {
    let begin = |listener, address| {
        arrive_at(membership, address, false)?;
        tracing::info!(policy = %membership.policy.name, %address, "listens for requests");
        Ok(serve(listener, Arc::downgrade(membership)))
    };
    let handlers = RequestHandlers::of(membership);
    handlers.listener.open(("requests", "peer_listen", membership.peers.listen), begin).await
}

/// Accepts connections for ever; dropping it ends them all.
async fn serve(listener: TcpListener, asked: Weak<Membership>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let asked = asked.clone();
        connections.spawn(async move {
            // A connection that fails affects no other.
            let _ = timeout(CONNECTION_WITHIN, connection(stream, asked)).await;
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, asked: Weak<Membership>) -> hyper::Result<()> {
    let answering = Arc::new(RecipientEnd::default());
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (asked, answering) = (asked.clone(), Arc::clone(&answering));
        async move { Ok::<_, Infallible>(respond(request, &asked, &answering).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_BYTES_MAX);
    server.serve_connection(TokioIo::new(stream), service).await
}

/// A request that is addressed to this member.
enum AdmittedRequest<'a> {
    /// The caller asks for this side's proof, and continues if that is right.
    Greeting(Greeting),
    /// A request to the handler of this path, proven if there is a token.
    Request(&'a str, Option<ProvenHead>),
}

async fn respond(request: hyper::Request<Incoming>, asked: &Weak<Membership>, answering: &RecipientEnd) -> Response<Full<Bytes>> {
    let Some(membership) = asked.upgrade() else {
        return sent(Answer::problem(503, "unavailable", "Not now", "this worker is stopping"), REFUSED, None);
    };
    let (head, body) = request.into_parts();
    let (path, proven) = match let_in(&membership, &head, answering) {
        Ok(AdmittedRequest::Request(path, proven)) => (path, proven),
        Ok(AdmittedRequest::Greeting(greeting)) => return greeted(&greeting),
        Err(refusal) => {
            let mut response = sent(refusal, REFUSED, None);
            if head.headers.contains_key(NONCE_HEADER) && membership.peers.token.is_none() {
                response.headers_mut().insert(PROOF_HEADER, HeaderValue::from_static(NO_TOKEN));
            }
            return response;
        }
    };
    let span = tracing::info_span!(
        "request",
        otel.name = format!("{} {ROUTE}", head.method),
        otel.kind = "server",
        http.request.method = head.method.as_str(),
        http.route = ROUTE,
        http.response.status_code = field::Empty
    );
    if let Some(parent) = TraceParent::of(head.headers.get_all(TRACEPARENT).iter().map(HeaderValue::as_bytes)) {
        trace::continues(&span, parent);
    }
    let (answer, by) = handled(&membership, path, &head, body, proven.as_ref()).instrument(span.clone()).await;
    let response = sent(answer, by, proven.as_ref());
    span.record("http.response.status_code", response.status().as_u16());
    response
}

async fn handled(membership: &Membership, path: &str, head: &Parts, body: Incoming, proven: Option<&ProvenHead>) -> (Answer, &'static str) {
    let refused = |status, kind: &str, title: &str, detail: &str| (Answer::problem(status, kind, title, detail), REFUSED);
    let method = if head.method == hyper::Method::GET { Method::Get } else { Method::Post };
    if !is_path(path) || head.uri.query().is_some_and(|query| query.len() > QUERY_BYTES_MAX) {
        return refused(400, "bad-request", "The request cannot be understood", "the path or the query is none");
    }
    let Some(to) = Addressee::of_header(head.headers.get(TO_HEADER).map(HeaderValue::as_bytes)) else {
        return refused(400, "bad-request", "The request cannot be understood", "an unknown shardwise-to: upgrade this member");
    };
    let body = match timeout(BODY_WITHIN, whole(body)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return refused(413, "too-large", "The body is too large", &format!("at most {BODY_BYTES_MAX} bytes"));
        }
        Ok(Err(_)) => return refused(400, "bad-request", "The request cannot be understood", "the body ends before its end"),
        Err(_) => return refused(408, "too-slow", "The body did not come in time", "send the body faster"),
    };
    if proven.is_some_and(|proven| !proven.has_body(&body)) {
        return refused(400, "bad-request", "The request cannot be understood", "the body is not the one that was proven");
    }
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
    let request = Request { to, method, query: head.uri.query().map(str::to_owned), content_type, body };
    match RequestHandlers::answer(membership, path, request).await {
        Ok(answer) => (answer, ANSWERED),
        Err(busy) => (busy, REFUSED),
    }
}

/// The body, up to the limit. Each frame is copied and dropped: collected frames of a byte each would hold the blocks that they came in.
async fn whole(body: Incoming) -> std::result::Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut body, mut bytes) = (Limited::new(body, BODY_BYTES_MAX), Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame?.into_data() {
            bytes.extend_from_slice(&piece);
        }
    }
    Ok(bytes)
}

/// Admits a request if it is for this member, from one of the group.
fn let_in<'a>(membership: &Membership, head: &'a Parts, answering: &RecipientEnd) -> std::result::Result<AdmittedRequest<'a>, Answer> {
    let forbidden = |detail: &str| Answer::problem(403, "forbidden", "This may not be done here", detail);
    if !head.headers.contains_key(PEER_HEADER) {
        return Err(forbidden("only members of the group are answered; ask a sidecar"));
    }
    let Some(path) = head.uri.path().strip_prefix(&requests_path(membership)) else {
        return Err(Answer::problem(421, "misdirected", "This is not the member that was asked for", "another member is here now"));
    };
    if head.method != hyper::Method::GET && head.method != hyper::Method::POST {
        return Err(Answer::problem(405, "method-not-allowed", "The path does not take this method", "this path takes GET, POST"));
    }
    // Tokens are not accepted: an older version that sends one is refused, and the token should be changed.
    if head.headers.contains_key(AUTHORIZATION) {
        return Err(unproven(ProofRefusal::OTHER_VERSION));
    }
    let nonce = text(&head.headers, NONCE_HEADER).filter(|_| path.is_empty());
    let Some(token) = &membership.peers.token else {
        return match nonce {
            None if head.method == hyper::Method::GET => Ok(AdmittedRequest::Request(path, None)),
            None => Err(forbidden("without a token only GET is answered: set peer_token_file")),
            Some(_) => Err(forbidden("no peer token is set here, so there is nothing to prove: set peer_token_file")),
        };
    };
    if let Some(nonce) = nonce {
        let recipient = membership.recipient(Channel::Requests);
        let greeting = answering.greeted(token.expose_secret().as_bytes(), &recipient, nonce);
        return greeting.map(AdmittedRequest::Greeting).ok_or_else(|| unproven(ProofRefusal::NOT_RIGHT));
    }
    let bytes = |name: &str| head.headers.get(name).map(HeaderValue::as_bytes);
    let asked = RequestParts {
        method: head.method.as_str(),
        target: head.uri.path_and_query().map_or_else(|| head.uri.path(), |target| target.as_str()),
        content_type: bytes(CONTENT_TYPE.as_str()),
        traceparent: bytes(TRACEPARENT),
        digest: text(&head.headers, DIGEST_HEADER).unwrap_or_default(),
        to: bytes(TO_HEADER),
    };
    let proven = text(&head.headers, PROOF_HEADER).and_then(|shown| answering.proven(&asked, shown));
    proven.map(|proven| AdmittedRequest::Request(path, Some(proven))).ok_or_else(|| unproven(ProofRefusal::NOT_RIGHT))
}

fn unproven(why: ProofRefusal) -> Answer {
    Answer::problem(why.status, why.kind, why.title, why.detail)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The answer to a greeting: only the proof; the connection stays open for the request.
fn greeted(greeting: &Greeting) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(PEER_HEADER, HeaderValue::from_static(ANSWERED));
    for (name, value) in [(NONCE_HEADER, &greeting.nonce), (PROOF_HEADER, &greeting.proof)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    response
}

/// The last answer on its connection.
fn sent(answer: Answer, by: &'static str, proven: Option<&ProvenHead>) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = HeaderValue::from_str(&answer.content_type).ok();
    let proof = proven.and_then(|proven| {
        let content_type = kind.as_ref().map(HeaderValue::as_bytes);
        HeaderValue::from_str(&proven.answer(&AnswerParts { by, status: status.as_u16(), content_type, body: &answer.body })).ok()
    });
    let mut response = Response::new(Full::new(answer.body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(PEER_HEADER, HeaderValue::from_static(by));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    if let Some(kind) = kind {
        headers.insert(CONTENT_TYPE, kind);
    }
    if let Some(proof) = proof {
        headers.insert(PROOF_HEADER, proof);
    }
    response
}
