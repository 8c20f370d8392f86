//! One request and its answer on a connection, with limits. Only the necessary parts of the caller's request are sent.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::response::Parts;
use hyper::body::Incoming as Answering;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use shardwise::proof::digest;
use shardwise::requests::proven::{AnswerParts, DIGEST_HEADER, PROOF_HEADER, RequestParts};
use shardwise::requests::{ANSWERED, Answer, BODY_BYTES_MAX, HOST_REFUSED, PEER_HEADER, REFUSED, Request};
use shardwise::trace::{self, TRACEPARENT};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;
use tracing::Span;

use crate::body::IncomingBody;
use crate::dial::{DialError, DialTarget, word};
use crate::greet::ProvenPeer;
use crate::target::Target;

const HEAD_BYTES_MAX: usize = 16 << 10;

/// A connection for one request at a time. It closes on drop.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    sender: SendRequest<Body>,
    address: SocketAddr,
    /// The member at the other end, if it has proven itself.
    pub(crate) known: Option<ProvenPeer>,
    _connection: AbortOnDropHandle<hyper::Result<()>>,
}

impl PeerConnection {
    pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, address: SocketAddr) -> hyper::Result<Self> {
        let mut client = http1::Builder::new();
        let (sender, connection) = client.max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, address, known: None, _connection: AbortOnDropHandle::new(tokio::spawn(connection)) })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the connection is open, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Whether the known member proves this answer to the last request; always true if no proof is required.
    fn is_its_answer(&self, head: &Parts, body: &[u8]) -> bool {
        let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        self.known.as_ref().is_none_or(|known| {
            let (by, content_type) = (text(PEER_HEADER).unwrap_or_default(), head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes));
            known.asking.is_answer(text(PROOF_HEADER), &AnswerParts { by, status: head.status.as_u16(), content_type, body })
        })
    }

    /// Sends the request and returns the answer's head; an error if the connection breaks before.
    pub(crate) async fn send(&mut self, request: hyper::Request<Body>) -> hyper::Result<hyper::Response<Answering>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// What admitted the request, according to the answer.
#[derive(Debug, PartialEq, Eq)]
enum AdmittedBy {
    Member,
    Refused,
    Gate,
    Stranger,
}

impl AdmittedBy {
    fn of(whom: &DialTarget<'_>, head: &Parts) -> Self {
        match (whom, head.headers.get(PEER_HEADER)) {
            (DialTarget::Member(_), Some(by)) if by == REFUSED => Self::Refused,
            (DialTarget::Member(_), Some(by)) if by == HOST_REFUSED => Self::Gate,
            (DialTarget::Beside(..), _) | (DialTarget::Member(_), Some(_)) => Self::Member,
            (DialTarget::Member(_), None) => Self::Stranger,
        }
    }
}

/// The answer, and whether it was read to its end, so that the connection can be reused.
pub(crate) async fn taken_in(
    whom: &DialTarget<'_>,
    response: hyper::Response<Answering>,
    connection: &PeerConnection,
    target: &Target,
) -> (Result<Answer, DialError>, bool) {
    let (head, body) = response.into_parts();
    let address = connection.address;
    let status = head.status.as_u16();
    let by = AdmittedBy::of(whom, &head);
    // An answer without a proof is not read, unless a member was there and may have handled the request.
    if by == AdmittedBy::Stranger && connection.known.is_none() {
        return (Err(DialError::Unreachable(format!("{address}: the process there is not a member of the group"))), false);
    }
    let bytes = match whole(whom, body, address).await {
        Ok(bytes) => bytes,
        Err(failed) => return (Err(failed), false),
    };
    if !connection.is_its_answer(&head, &bytes) {
        return (Err(DialError::Broken(format!("{address}: its answer is not proven, so it may be another's"))), false);
    }
    let answer = match by {
        AdmittedBy::Refused => Err(refusal(status, address)),
        AdmittedBy::Gate => Err(at_the_gate(status, address, target)),
        _ if !matches!(status, 200..=299 | 400..=599) => {
            Err(DialError::Broken(format!("{address}: it answers with status {status}, which is not passed on")))
        }
        _ => {
            let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("application/octet-stream");
            Ok(Answer::bytes(kind, bytes).with_status(status))
        }
    };
    (answer, true)
}

async fn whole(whom: &DialTarget<'_>, body: Answering, address: SocketAddr) -> Result<Vec<u8>, DialError> {
    let broken = |why: &str| DialError::Broken(format!("{address}: its answer {why}"));
    let mut incoming = IncomingBody::new(Body::new(body), BODY_BYTES_MAX as u64, whom.limits())
        .map_err(|_| broken(&format!("has more than {BODY_BYTES_MAX} bytes")))?;
    let mut bytes = Vec::new();
    while let Some(piece) = incoming.next().await.map_err(|_| broken("is too long, too slow or cut off"))? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// The error for a request whose host name the other side does not accept.
pub(crate) fn at_the_gate(status: u16, address: SocketAddr, target: &Target) -> DialError {
    DialError::Barred(format!(
        "{address} does not accept the host name {} (status {status}): start its sidecar with --allow-host, or set instance.address there",
        target.authority()
    ))
}

/// The error for a request that the member did not admit, so that it was not handled.
pub(crate) fn refusal(status: u16, address: SocketAddr) -> DialError {
    match status {
        421 | 503 => DialError::Unreachable(format!("{address}: another member is there now, or it is stopping")),
        401 | 403 => DialError::Barred(format!(
            "{address} does not take the token or certificate that it is shown: give all members the same peer token, and certificates of one authority"
        )),
        429 => DialError::Barred(format!("{address}: too many ask it at once; try again")),
        _ => DialError::Barred(format!("{address}: it refuses the request with status {status}")),
    }
}

/// The request to send: its method, path and body, the body's type, its proof, and, if traces are exported, the current span. No other
/// part of the caller's request is sent.
pub(crate) fn asked(
    whom: &DialTarget<'_>,
    connection: &mut PeerConnection,
    authority: &str,
    path: &str,
    request: &Request,
) -> Result<hyper::Request<Body>, axum::http::Error> {
    let text = request.query.as_ref().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let span = trace::name_of(&Span::current()).map(|span| span.to_string());
    let mut asked = hyper::Request::builder().method(word(request.method)).uri(&text).header(HOST, authority);
    if let Some(kind) = &request.content_type {
        asked = asked.header(CONTENT_TYPE, kind);
    }
    if let Some(span) = &span {
        asked = asked.header(TRACEPARENT, span);
    }
    if let DialTarget::Member(_) = whom {
        asked = asked.header(PEER_HEADER, ANSWERED);
    }
    if let Some(known) = &mut connection.known {
        let digest = digest(&request.body);
        let proof = known.asking.proof(&RequestParts {
            method: word(request.method),
            target: &text,
            content_type: request.content_type.as_ref().map(String::as_bytes),
            traceparent: span.as_ref().map(String::as_bytes),
            digest: &digest,
        });
        asked = asked.header(DIGEST_HEADER, digest).header(PROOF_HEADER, proof);
    }
    asked.body(Body::from(request.body.clone()))
}
