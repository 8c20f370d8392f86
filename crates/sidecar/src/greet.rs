//! The first exchange on a connection to a member: before any request, the other side proves that it is the member and knows the peer
//! token, which is not sent (ADR 38).

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::HOST;
use axum::http::response::Parts;
use shardwise::proof::Nonce;
use shardwise::requests::proven::{CallerEnd, NO_TOKEN, NONCE_HEADER, OTHER_VERSION_STATUS, PROOF_HEADER};
use shardwise::requests::{ANSWERED, HOST_REFUSED, PEER_HEADER};
use tokio::time::timeout;

use crate::dial::{DialError, DialTarget, PeerMember};
use crate::options::Token;
use crate::peer_connect::broken;
use crate::peer_http::{PeerConnection, at_the_gate, refusal};
use crate::target::Target;

const GREETED_WITHIN: Duration = Duration::from_secs(5);

/// A member that has proven itself on a connection.
#[derive(Debug)]
pub(crate) struct ProvenPeer {
    /// The prefix of every path to the member, which contains its name.
    base: String,
    /// The secret that it has proven to know.
    token: Token,
    pub(crate) asking: CallerEnd,
}

impl PeerConnection {
    /// Whether the connection leads to that member, if a proof is required.
    pub(crate) fn is_for(&self, whom: &DialTarget<'_>) -> bool {
        match (whom, &self.known) {
            (DialTarget::Member(PeerMember { token: Some(token), base, .. }), Some(known)) => {
                known.base == *base && known.token.is(token.bytes())
            }
            (DialTarget::Member(PeerMember { token: None, .. }) | DialTarget::Beside(..), None) => true,
            _ => false,
        }
    }

    /// Requests the member's proof, if there is a token. Before that only a nonce is sent.
    pub(crate) async fn greet(&mut self, whom: &DialTarget<'_>, target: &Target) -> Result<(), DialError> {
        let DialTarget::Member(member) = whom else { return Ok(()) };
        let Some(token) = &member.token else { return Ok(()) };
        let address = self.address();
        let late = |_| DialError::Unreachable(format!("{address}: it does not prove within {GREETED_WITHIN:?} that it is the member"));
        self.known = Some(timeout(GREETED_WITHIN, self.known(member, token, target)).await.map_err(late)??);
        Ok(())
    }

    async fn known(&mut self, member: &PeerMember<'_>, token: &Token, target: &Target) -> Result<ProvenPeer, DialError> {
        let (address, nonce) = (self.address(), Nonce::random());
        let greeting = hyper::Request::get(&member.base).header(HOST, target.authority()).header(PEER_HEADER, ANSWERED);
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
        let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let (Some(own), Some(proof)) = (text(NONCE_HEADER), text(PROOF_HEADER)) else { return Err(silent(&head, address, target)) };
        let asking = CallerEnd::begun(token.bytes(), &member.recipient, &nonce, own, proof).ok_or_else(|| {
            DialError::Barred(format!(
                "{address} does not prove that it is the member and has the same peer token, so nothing was sent: give all members the same peer token"
            ))
        })?;
        Ok(ProvenPeer { base: member.base.clone(), token: token.clone(), asking })
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
