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
        over(&[self.method.as_bytes(), self.target.as_bytes(), has_type, content_type, has_span, span, self.digest.as_bytes()])
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
    count: u64,
    last: Option<Proof>,
}

impl CallerEnd {
    /// From the recipient's answer to the greeting with the nonce `callers`; `None` if it does not know the secret, or is another member.
    pub fn begun(secret: &[u8], recipient: &Recipient<'_>, callers: &Nonce, nonce: &str, proof: &str) -> Option<Self> {
        let session = ProofSession::welcomed(secret, recipient, callers, nonce, proof)?;
        Some(Self { session, count: 0, last: None })
    }

    /// The proof of the next request on the connection.
    pub fn proof(&mut self, asked: &RequestParts<'_>) -> String {
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
        let (session, own, proof) = ProofSession::welcoming(secret, recipient, &nonce.parse().ok()?);
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
mod tests {
    use shardwise_core::{GroupName, Incarnation, InstanceId};

    use super::*;
    use crate::membership::proof::Channel;

    const SECRET: &[u8] = b"members-know-this-one";
    const POST: RequestParts<'static> = RequestParts {
        method: "POST",
        target: "/v1/peers/workers/worker-1/0000000000000007/cache/flush?what=all",
        content_type: Some(b"application/json"),
        traceparent: None,
        digest: "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862",
    };
    const OK: AnswerParts<'static> = AnswerParts { by: "1", status: 200, content_type: Some(b"text/plain"), body: b"ok" };

    fn of<T>(incarnation: u64, with: impl FnOnce(&Recipient<'_>) -> T) -> T {
        let (group, id) = (GroupName::new("workers").unwrap(), InstanceId::new("worker-1").unwrap());
        with(&Recipient { channel: Channel::Requests, group: &group, instance_id: &id, incarnation: Incarnation::new(incarnation) })
    }

    /// Both ends of a connection, greeted.
    fn connection() -> (CallerEnd, RecipientEnd) {
        let (answering, nonce) = (RecipientEnd::default(), Nonce::random());
        let asking = of(7, |recipient| {
            let Greeting { nonce: own, proof } = answering.greeted(SECRET, recipient, &nonce.to_string()).unwrap();
            CallerEnd::begun(SECRET, recipient, &nonce, &own, &proof).unwrap()
        });
        (asking, answering)
    }

    /// The vector of `docs/reference/protocol.md`.
    #[test]
    fn the_bytes_are_those_of_the_page() {
        let [callers, own]: [Nonce; 2] = ["11", "22"].map(|byte| byte.repeat(32).parse().unwrap());
        let welcome = "7bbaf0deb9d4ae922c37e27d450b66245978a289e0e9e082657df235b1f682bd";
        let mut asking = of(7, |recipient| CallerEnd::begun(SECRET, recipient, &callers, &own.to_string(), welcome)).unwrap();
        assert_eq!(asking.proof(&POST), "ca7880856ac1a87c77136f71868703c886a499d4b6135d02733b00912d023f84");
        assert!(asking.is_answer(Some("11567d1b59e363c0a264ec2bd7cf515fecb98e48594a4619057e54a9b477b17a"), &OK));
    }

    #[test]
    fn a_request_counts_once_and_on_its_own_connection_alone() {
        let (mut asking, answering) = connection();
        let first = asking.proof(&POST);
        let proven = answering.proven(&POST, &first).unwrap();
        assert!(proven.has_body(b"{\"a\":1}") && !proven.has_body(b"{\"a\":2}") && !proven.has_body(b""));
        let answer = proven.answer(&OK);
        assert!(asking.is_answer(Some(&answer), &OK));
        let second = asking.proof(&POST);
        assert!(!asking.is_answer(Some(&answer), &OK), "the answer to the first is none to the second");
        assert!(answering.proven(&POST, &second).is_some());
        assert!(answering.proven(&POST, &second).is_none(), "a second time");
        assert!(answering.proven(&POST, &asking.proof(&POST)).is_none(), "after a wrong one nothing counts");

        let (mut one, (_, other)) = (connection().0, connection());
        assert!(other.proven(&POST, &one.proof(&POST)).is_none(), "on another connection");
        assert!(RecipientEnd::default().proven(&POST, &first).is_none(), "before a greeting");
    }

    #[test]
    fn what_was_changed_on_the_way_is_refused() {
        let changed = [
            RequestParts { method: "GET", ..POST },
            RequestParts { target: "/v1/peers/workers/worker-1/0000000000000007/cache/flush?what=one", ..POST },
            RequestParts { content_type: None, ..POST },
            RequestParts { content_type: Some(b""), ..POST },
            RequestParts { traceparent: Some(b""), ..POST },
            RequestParts { digest: "115abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862", ..POST },
        ];
        for changed in changed {
            let (mut asking, answering) = connection();
            assert!(answering.proven(&changed, &asking.proof(&POST)).is_none(), "{changed:?}");
        }
        let (mut asking, answering) = connection();
        let answer = answering.proven(&POST, &asking.proof(&POST)).unwrap().answer(&OK);
        for changed in [
            AnswerParts { by: "refused", ..OK },
            AnswerParts { status: 204, ..OK },
            AnswerParts { content_type: Some(b"text/html"), ..OK },
            AnswerParts { body: b"no", ..OK },
        ] {
            assert!(!asking.is_answer(Some(&answer), &changed), "{changed:?}");
        }
        assert!(asking.is_answer(Some(&answer), &OK) && !asking.is_answer(None, &OK) && !asking.is_answer(Some("x"), &OK));
    }

    #[test]
    fn who_does_not_know_the_secret_or_is_another_member_is_not_believed() {
        let nonce = Nonce::random();
        let greeting = |secret: &[u8], incarnation| {
            let greeted = |recipient: &Recipient<'_>| RecipientEnd::default().greeted(secret, recipient, &nonce.to_string()).unwrap();
            of(incarnation, greeted)
        };
        let believed = |shown: &Greeting| of(7, |asked| CallerEnd::begun(SECRET, asked, &nonce, &shown.nonce, &shown.proof)).is_some();
        assert!(believed(&greeting(SECRET, 7)));
        assert!(!believed(&greeting(b"members-know-this-onf", 7)), "another secret");
        assert!(!believed(&greeting(SECRET, 8)), "another life, such as one that a process passes the greeting on to");
        let own = Nonce::random().to_string();
        for proof in ["", "none", &own, &nonce.to_string()] {
            assert!(!believed(&Greeting { nonce: own.clone(), proof: (*proof).to_owned() }), "{proof}");
        }
        assert!(of(7, |recipient| RecipientEnd::default().greeted(SECRET, recipient, "no nonce")).is_none());
    }
}
