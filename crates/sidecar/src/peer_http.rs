//! A connection to a member or to the local worker: the greeting, one request at a time and its answer, with limits.
//!
//! Before any request a member proves that it is the recipient and knows the peer token, which is not sent (ADR 38). Only the necessary
//! parts of the caller's request are sent.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::response::Parts;
use axum::http::{HeaderMap, HeaderValue};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use shardwise::proof::{Nonce, digest};
use shardwise::requests::proven::{
    AnswerParts, CallerEnd, DIGEST_HEADER, NO_TOKEN, NONCE_HEADER, OTHER_VERSION_STATUS, PROOF_HEADER, RequestParts,
};
use shardwise::requests::{ANSWERED, Answer, BODY_BYTES_MAX, HOST_REFUSED, Method, PEER_HEADER, REFUSED, Request, TO_HEADER};
use shardwise::trace::{self, TRACEPARENT};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::Span;

use crate::body::IncomingBody;
use crate::dial::{Callee, DialError, PeerMember, Unhandled, word};
use crate::options::Token;
use crate::peer_connect::broken;
use crate::target::Target;

const HEAD_BYTES_MAX: usize = 16 << 10;
const GREETED_WITHIN: Duration = Duration::from_secs(5);
/// The most characters of another member's error that are passed on.
const CAUSE_CHARS_MAX: usize = 512;

/// A connection for one request at a time. It closes on drop.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    sender: SendRequest<Body>,
    pub(crate) address: SocketAddr,
    /// The member at the other end, if it has proven itself.
    known: Option<ProvenPeer>,
    _connection: AbortOnDropHandle<hyper::Result<()>>,
}

/// A member that has proven itself on a connection.
#[derive(Debug)]
struct ProvenPeer {
    /// The prefix of every path to the member, which contains its name.
    base: String,
    /// The secret that it has proven to know.
    token: Token,
    asking: CallerEnd,
}

impl PeerConnection {
    pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, address: SocketAddr) -> hyper::Result<Self> {
        let mut client = http1::Builder::new();
        let (sender, connection) = client.max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, address, known: None, _connection: AbortOnDropHandle::new(tokio::spawn(connection)) })
    }

    /// Whether it may be used again: it is open, as far as is known, leads to that recipient if a proof is required, and is still allowed.
    pub(crate) fn is_good(&self, whom: &Callee<'_>) -> bool {
        let leads_there = match (whom.member.as_ref().and_then(|member| member.token.as_ref()), &self.known) {
            (Some(token), Some(known)) => known.base == whom.base && known.token.is(token.bytes()),
            (None, None) => true,
            _ => false,
        };
        !self.sender.is_closed() && leads_there && whom.barred(self.address.ip()).is_none()
    }

    /// Requests the member's proof, if there is a token. Before that only a nonce is sent.
    pub(crate) async fn greet(&mut self, whom: &Callee<'_>) -> Result<(), DialError> {
        let Some(member @ PeerMember { token: Some(token), .. }) = &whom.member else { return Ok(()) };
        let address = self.address;
        let late = |_| DialError::Unreachable(format!("{address}: it does not prove within {GREETED_WITHIN:?} that it is the member"));
        self.known = Some(timeout(GREETED_WITHIN, self.known(whom, member, token)).await.map_err(late)??);
        Ok(())
    }

    async fn known(&mut self, whom: &Callee<'_>, member: &PeerMember<'_>, token: &Token) -> Result<ProvenPeer, DialError> {
        let (address, nonce) = (self.address, Nonce::random());
        let greeting = hyper::Request::get(&whom.base).header(HOST, whom.target.authority()).header(PEER_HEADER, ANSWERED);
        let greeting = greeting.header(NONCE_HEADER, nonce.to_string()).body(Body::empty());
        let greeting = greeting.map_err(|error| DialError::Barred(error.to_string()))?;
        let (head, _) = match self.send(greeting).await {
            Ok(response) => response.into_parts(),
            Err(error) => {
                return Err(match broken(address, &error) {
                    // No request was made.
                    DialError::Broken(why) => DialError::Unreachable(why),
                    failed => failed,
                });
            }
        };
        let (Some(own), Some(proof)) = (text(&head.headers, NONCE_HEADER), text(&head.headers, PROOF_HEADER)) else {
            return Err(silent(&head, address, whom.target));
        };
        let asking = CallerEnd::begun(token.bytes(), &member.recipient, &nonce, own, proof).ok_or_else(|| {
            DialError::Barred(format!(
                "{address} does not prove that it is the member and has the same peer token, so nothing was sent: give all members the same peer token"
            ))
        })?;
        Ok(ProvenPeer { base: whom.base.clone(), token: token.clone(), asking })
    }

    /// The request to send: its addressee, method, path and body, the body's type, its proof, and, if traces are exported, the current span.
    /// No other part of the caller's request is sent.
    pub(crate) fn request(&mut self, whom: &Callee<'_>, path: &str, request: &Request) -> Result<hyper::Request<Body>, axum::http::Error> {
        let target = request.query.as_ref().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        let span = trace::name_of(&Span::current()).map(|span| span.to_string());
        let mut asked = hyper::Request::builder().method(word(request.method)).uri(&target).header(HOST, whom.target.authority());
        asked = asked.header(TO_HEADER, request.to.as_str());
        if let Some(kind) = &request.content_type {
            asked = asked.header(CONTENT_TYPE, kind);
        }
        if let Some(span) = &span {
            asked = asked.header(TRACEPARENT, span);
        }
        if whom.member.is_some() {
            asked = asked.header(PEER_HEADER, ANSWERED);
        }
        if let Some(known) = &mut self.known {
            let digest = digest(&request.body);
            let proof = known.asking.proof(&RequestParts {
                method: word(request.method),
                target: &target,
                content_type: request.content_type.as_ref().map(String::as_bytes),
                traceparent: span.as_ref().map(String::as_bytes),
                digest: &digest,
                to: Some(request.to.as_str().as_bytes()),
            });
            asked = asked.header(DIGEST_HEADER, digest).header(PROOF_HEADER, proof);
        }
        asked.body(Body::from(request.body.clone()))
    }

    /// Sends the request and returns the answer's head; an error if the connection breaks before.
    pub(crate) async fn send(&mut self, request: hyper::Request<Body>) -> hyper::Result<hyper::Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }

    /// The answer to a request with that method, and whether it was read to its end, so that the connection can be reused.
    pub(crate) async fn answer(
        &self,
        whom: &Callee<'_>,
        method: Method,
        response: hyper::Response<Incoming>,
    ) -> (Result<Answer, DialError>, bool) {
        let (head, body) = response.into_parts();
        let (address, status) = (self.address, head.status.as_u16());
        // The local worker says nothing about what admitted the request.
        let by = head.headers.get(PEER_HEADER).filter(|_| whom.member.is_some());
        // An answer without a proof is not read, unless a member was there and may have handled the request.
        if whom.member.is_some() && by.is_none() && self.known.is_none() {
            let why = format!("{address}: the process there is not a member of the group");
            // Whatever process that is, it has the request, and it may have done an action.
            let failed = if method == Method::Post { DialError::Broken(why) } else { DialError::Unreachable(why) };
            return (Err(failed), false);
        }
        let bytes = match whole(whom, body, address).await {
            Ok(bytes) => bytes,
            Err(failed) => return (Err(failed), false),
        };
        if !self.is_its_answer(&head, &bytes) {
            return (Err(DialError::Broken(format!("{address}: its answer is not proven, so it may be another's"))), false);
        }
        let answer = match by {
            // The only refusal with this status: a handler's own 502 is an answer.
            Some(by) if by == REFUSED && status == 502 => Err(DialError::Unhandled(Unhandled::NoWorker(cause(&bytes)))),
            Some(by) if by == REFUSED => Err(refusal(status, address)),
            Some(by) if by == HOST_REFUSED => Err(at_the_gate(status, address, whom.target)),
            _ if !matches!(status, 200..=299 | 400..=599) => {
                let why =
                    if (300..400).contains(&status) { "redirects are not followed; give the final address" } else { "it is not passed on" };
                Err(DialError::Broken(format!("{address}: it answers with status {status}: {why}")))
            }
            _ => {
                let kind = text(&head.headers, CONTENT_TYPE.as_str()).unwrap_or("application/octet-stream");
                Ok(Answer::bytes(kind, bytes).with_status(status))
            }
        };
        (answer, true)
    }

    /// Whether the known member proves this answer to the last request; always true if no proof is required.
    fn is_its_answer(&self, head: &Parts, body: &[u8]) -> bool {
        self.known.as_ref().is_none_or(|known| {
            let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
            let by = text(&head.headers, PEER_HEADER).unwrap_or_default();
            known.asking.is_answer(text(&head.headers, PROOF_HEADER), &AnswerParts { by, status: head.status.as_u16(), content_type, body })
        })
    }
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

async fn whole(whom: &Callee<'_>, body: Incoming, address: SocketAddr) -> Result<Vec<u8>, DialError> {
    let broken = |why: &str| DialError::Broken(format!("{address}: its answer {why}"));
    let mut incoming = IncomingBody::new(Body::new(body), BODY_BYTES_MAX as u64, whom.limits)
        .map_err(|_| broken(&format!("has more than {BODY_BYTES_MAX} bytes")))?;
    let mut bytes = Vec::new();
    while let Some(piece) = incoming.next().await.map_err(|_| broken("is too long, too slow or cut off"))? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// The error for a request whose host name the other side does not accept.
fn at_the_gate(status: u16, address: SocketAddr, target: &Target) -> DialError {
    DialError::Barred(format!(
        "{address} does not accept the host name {} (status {status}): start its sidecar with --allow-host, or set instance.address there",
        target.authority()
    ))
}

/// What the member says of why it cannot reach its worker.
fn cause(problem: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(problem).unwrap_or_default();
    problem["detail"].as_str().unwrap_or("it gives no cause").chars().take(CAUSE_CHARS_MAX).collect()
}

/// The error for a request that the member did not admit, so that it was not handled.
fn refusal(status: u16, address: SocketAddr) -> DialError {
    match status {
        421 | 503 => DialError::Unreachable(format!("{address}: another member is there now, or it is stopping")),
        401 | 403 => DialError::Barred(format!(
            "{address} does not take the token or certificate that it is shown: give all members the same peer token, and certificates of one authority"
        )),
        429 => DialError::Unhandled(Unhandled::Busy),
        _ => DialError::Barred(format!("{address}: it refuses the request with status {status}")),
    }
}

/// The error for an answer without a proof.
fn silent(head: &Parts, address: SocketAddr, target: &Target) -> DialError {
    let status = head.status.as_u16();
    match head.headers.get(PEER_HEADER) {
        None => DialError::Unreachable(format!("{address}: the process there is not a member of the group")),
        Some(by) if by == HOST_REFUSED => at_the_gate(status, address, target),
        Some(_) if head.headers.get(PROOF_HEADER).is_some_and(|proof| proof == NO_TOKEN) => DialError::Barred(format!(
            "{address} has no peer token and cannot prove that it is the member, so nothing was sent: give all members the same peer token"
        )),
        Some(_) if status == OTHER_VERSION_STATUS => DialError::Barred(format!(
            "{address} is another version of shardwise, which proves itself otherwise, so nothing was sent; upgrade the older one"
        )),
        // Every version checks the certificate first.
        Some(_) if matches!(status, 403 | 421 | 429 | 503) => refusal(status, address),
        Some(_) => DialError::Barred(format!(
            "{address} does not prove that it is the member (status {status}), so nothing was sent: it is an older version of shardwise, which wants the peer token itself, or another process has its port; upgrade that member"
        )),
    }
}

#[cfg(test)]
mod tests {
    use shardwise::InstanceId;
    use shardwise::core::{GroupName, Incarnation};
    use shardwise::proof::{Channel, Recipient};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::options::Limits;
    use crate::peer_config::Peers;

    #[tokio::test]
    async fn another_process_may_have_done_an_action_that_it_answers() {
        let (peers, limits, target) = (Peers::default(), Limits::default(), Target::parse("http://127.0.0.1:1").unwrap());
        let (group, id) = (GroupName::new("g").unwrap(), InstanceId::new("a").unwrap());
        for method in [Method::Get, Method::Post] {
            let recipient = Recipient { channel: Channel::Requests, group: &group, instance_id: &id, incarnation: Incarnation::new(1) };
            let member = Some(PeerMember { networks: &[], token: None, recipient });
            let whom = Callee { peers: &peers, limits: &limits, target: &target, base: String::new(), member };
            let (here, mut there) = tokio::io::duplex(1_024);
            let mut connection = PeerConnection::over(here, "127.0.0.1:1".parse().unwrap()).await.unwrap();
            let request = connection.request(&whom, "/x", &Request::new(method)).unwrap();
            let stranger = async {
                assert!(there.read(&mut [0; 1_024]).await.unwrap() > 0);
                there.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            };
            let (response, ()) = tokio::join!(connection.send(request), stranger);
            let (answer, _) = connection.answer(&whom, method, response.unwrap()).await;
            assert_eq!(answer.unwrap_err().may_be_done(), method == Method::Post, "{method:?}");
        }
    }
}
