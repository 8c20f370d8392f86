//! Proofs of requests between members: the headers, the contents of each proof, and both ends of a connection (ADR 38).
//!
//! The first request of a connection is a greeting: `GET` of the recipient's own path ([`super::path_to`]) with the caller's nonce. The
//! answer has the recipient's nonce and proof; nothing of the request is sent before. Each later request and each answer has a proof,
//! which is valid once.

use std::sync::Mutex;

use crate::error::locked;
use crate::membership::proof::{Nonce, Proof, ProofKind, ProofSession, Recipient, digest};

/// The header with a nonce, in a greeting and in the answer to it.
pub const NONCE_HEADER: &str = "shardwise-nonce";
/// The header with a proof.
pub const PROOF_HEADER: &str = "shardwise-proof";
/// The value of [`PROOF_HEADER`] in the answer to a greeting if no token is set.
pub const NO_TOKEN: &str = "none";
/// The header of a request with the digest of its body, so that the head is verified before the body is read.
pub const DIGEST_HEADER: &str = "shardwise-digest";
/// The end of a recipient's nonce if the proofs of its requests cover [`super::TO_HEADER`]. An older recipient's nonce is all random, and
/// proofs to it leave that header out. The connection's key depends on the nonce, so no process in between can replace it (as in TLS:
/// RFC 8446, section 4.1.3).
const COVERS_TO: [u8; 8] = *b"coversto";
/// The status when a caller of another version is refused.
pub const OTHER_VERSION_STATUS: u16 = 426;

/// The parts of a request that its proof covers.
#[derive(Debug, Clone, Copy)]
pub struct RequestParts<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// Path and query as in the request's first line.
    pub target: &'a str,
    /// The type of the body.
    pub content_type: Option<&'a [u8]>,
    /// The caller's span.
    pub traceparent: Option<&'a [u8]>,
    /// [`digest`] of the body.
    pub digest: &'a str,
    /// The value of the header [`super::TO_HEADER`]; `None` if the request has none, as those of older callers.
    pub to: Option<&'a [u8]>,
}

/// The parts of an answer that its proof covers.
#[derive(Debug, Clone, Copy)]
pub struct AnswerParts<'a> {
    /// The value of the header [`super::PEER_HEADER`].
    pub by: &'a str,
    /// The status.
    pub status: u16,
    /// The type of the body.
    pub content_type: Option<&'a [u8]>,
    /// The whole body.
    pub body: &'a [u8],
}

/// Distinguishes a missing header from an empty one.
fn optional(value: Option<&[u8]>) -> [&[u8]; 2] {
    value.map_or([b"0", b""], |value| [b"1", value])
}

impl RequestParts<'_> {
    fn with<T>(&self, over: impl FnOnce(&[&[u8]]) -> T) -> T {
        let [[has_type, content_type], [has_span, span]] = [self.content_type, self.traceparent].map(optional);
        let fields = [self.method.as_bytes(), self.target.as_bytes(), has_type, content_type, has_span, span, self.digest.as_bytes()];
        match self.to {
            // Older versions know no more fields.
            None => over(&fields),
            Some(to) => over(&[&fields[..], &[to]].concat()),
        }
    }
}

impl AnswerParts<'_> {
    fn with<T>(&self, asked: &Proof, over: impl FnOnce(&[&[u8]]) -> T) -> T {
        let [has_type, content_type] = optional(self.content_type);
        let (status, digest) = (self.status.to_string(), digest(self.body));
        over(&[asked.bytes(), self.by.as_bytes(), status.as_bytes(), has_type, content_type, digest.as_bytes()])
    }
}

/// The caller's end of a connection to a recipient that has proven its identity.
#[derive(Debug)]
pub struct CallerEnd {
    session: ProofSession,
    covers_to: bool,
    count: u64,
    last: Option<Proof>,
}

impl CallerEnd {
    /// From the recipient's answer to the greeting with the nonce `callers`; `None` if it does not know the secret, or is another member.
    pub fn begun(secret: &[u8], recipient: &Recipient<'_>, callers: &Nonce, nonce: &str, proof: &str) -> Option<Self> {
        let session = ProofSession::welcomed(secret, recipient, callers, nonce, proof)?;
        let covers_to = nonce.parse::<Nonce>().is_ok_and(|nonce| nonce.ends_with(COVERS_TO));
        Some(Self { session, covers_to, count: 0, last: None })
    }

    /// The proof of the next request on the connection. It covers `asked.to` unless the recipient is of an older version.
    pub fn proof(&mut self, asked: &RequestParts<'_>) -> String {
        let asked = RequestParts { to: asked.to.filter(|_| self.covers_to), ..*asked };
        let proof = asked.with(|fields| self.session.proof(ProofKind::Question, self.count, fields));
        (self.count, self.last) = (self.count + 1, Some(proof));
        proof.to_string()
    }

    /// Whether `shown` proves that this is the recipient's answer to the last request.
    pub fn is_answer(&self, shown: Option<&str>, answered: &AnswerParts<'_>) -> bool {
        let (Some(shown), Some(last)) = (shown.and_then(|shown| shown.parse().ok()), &self.last) else { return false };
        answered.with(last, |fields| self.session.proves(&shown, ProofKind::Answer, self.count - 1, fields))
    }
}

/// The recipient's end of one connection, from its first byte to its last: the key and the number of requests, once it is greeted.
#[derive(Debug, Default)]
pub struct RecipientEnd(Mutex<Option<(ProofSession, u64)>>);

/// The headers of the answer to a greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The value of [`NONCE_HEADER`].
    pub nonce: String,
    /// The value of [`PROOF_HEADER`].
    pub proof: String,
}

impl RecipientEnd {
    /// Answers a greeting with this nonce, replacing an earlier one; `None` if it is not a nonce.
    pub fn greeted(&self, secret: &[u8], recipient: &Recipient<'_>, nonce: &str) -> Option<Greeting> {
        let own = Nonce::random_with(COVERS_TO);
        let (session, proof) = ProofSession::welcoming(secret, recipient, &nonce.parse().ok()?, &own);
        *locked(&self.0) = Some((session, 0));
        Some(Greeting { nonce: own.to_string(), proof: proof.to_string() })
    }

    /// Verifies and uses up a request's proof; `None` if `shown` is wrong: then nothing is accepted until the next greeting.
    pub fn proven(&self, asked: &RequestParts<'_>, shown: &str) -> Option<ProvenHead> {
        let (session, count) = locked(&self.0).take()?;
        let shown = shown.parse().ok().filter(|shown| asked.with(|fields| session.proves(shown, ProofKind::Question, count, fields)))?;
        *locked(&self.0) = Some((session.clone(), count + 1));
        Some(ProvenHead { session, count, asked: shown, digest: asked.digest.to_owned() })
    }
}

/// A request with a verified head.
#[derive(Debug, Clone)]
pub struct ProvenHead {
    session: ProofSession,
    count: u64,
    asked: Proof,
    digest: String,
}

impl ProvenHead {
    /// Whether that is the body that the caller has proven.
    pub fn has_body(&self, body: &[u8]) -> bool {
        digest(body) == self.digest
    }

    /// The proof of the answer.
    pub fn answer(&self, answered: &AnswerParts<'_>) -> String {
        answered.with(&self.asked, |fields| self.session.proof(ProofKind::Answer, self.count, fields)).to_string()
    }
}

/// Why a request is refused if members have a token, as in RFC 9457.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProofRefusal {
    /// The status of the refusal.
    pub status: u16,
    /// Its kind.
    pub kind: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What to do about it.
    pub detail: &'static str,
}

impl ProofRefusal {
    /// It has a token instead of a proof, as in an older version.
    pub const OTHER_VERSION: Self = Self {
        status: OTHER_VERSION_STATUS,
        kind: "other-version",
        title: "The caller is another version of shardwise",
        detail: "the caller is an older version of shardwise, which sends its token; members prove themselves without sending it, and nothing \
                 else is taken: upgrade the caller, and change the token once all are upgraded",
    };

    /// It has no proof, a wrong one, or one that was used already.
    pub const NOT_RIGHT: Self = Self {
        status: 401,
        kind: "unauthorized",
        title: "No proof, or not the right one",
        detail: "members prove that they know the peer token, and this request does not: give all members the same token and greet before each \
                 connection's first request (docs/reference/protocol.md)",
    };
}

#[cfg(test)]
mod tests;
