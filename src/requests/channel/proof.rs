//! How two members prove knowledge of a shared secret without sending it (ADR 38; `docs/reference/protocol.md`, section 9, has the bytes).
//! `hello` does so at the start of a connection, and without TLS for every record on it (`seal`).
//!
//! On each connection the caller and the recipient each draw a nonce. A key is derived from the secret, both nonces and the recipient's
//! identity, so it is worthless on another connection and to another member. Under that key every proof covers its kind, the number of
//! earlier proofs of that kind on the connection, and the fields it is about.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use ring::hmac::{Context, HMAC_SHA256, Key};
use shardwise_core::{GroupName, Incarnation, InstanceId};
use subtle::ConstantTimeEq;

use crate::membership::OwnershipContext;

/// The version of this protocol.
const PROTOCOL: &[u8] = b"shardwise proof 2";
/// The bytes of a nonce and of a proof.
const BYTES: usize = 32;

/// The sender and purpose of a proof: one kind is invalid as another, so a proof cannot be reflected to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofKind {
    /// The recipient's first: it knows the secret and is the member that was called.
    Welcome,
    /// The caller's, for what it sends.
    Question,
    /// The recipient's, for what it answers.
    Answer,
    /// The caller's first: it knows the secret too.
    Confirmation,
}

impl ProofKind {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Welcome => b"welcome",
            Self::Question => b"question",
            Self::Answer => b"answer",
            Self::Confirmation => b"confirmation",
        }
    }
}

/// The called member: as its record describes it to the caller, and as it knows itself.
#[derive(Debug, Clone, Copy)]
pub struct Recipient<'a> {
    /// Its group.
    pub group: &'a GroupName,
    /// Its id.
    pub instance_id: &'a InstanceId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

impl<'a> Recipient<'a> {
    /// A member of this process, in its present incarnation.
    pub(super) fn of(member: &'a OwnershipContext) -> Self {
        let life = &member.life;
        Self { group: &member.policy.group, instance_id: life.instance_id(), incarnation: life.incarnation() }
    }
}

/// 32 random bytes, drawn for one connection. As text, 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce([u8; BYTES]);

impl Nonce {
    /// From the process's cryptographic generator.
    pub fn random() -> Self {
        Self(rand::random())
    }
}

/// A keyed digest of 32 bytes. As text, 64 hexadecimal digits. Compare with [`ProofSession::proves`] only, which takes constant time.
#[derive(Debug, Clone, Copy)]
pub struct Proof([u8; BYTES]);

impl Proof {
    /// From its bytes.
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

/// The key shared by the two sides of one connection. `Debug` does not show it.
#[derive(Clone)]
pub struct ProofSession(Context);

impl ProofSession {
    /// Derives the key from the members' secret, the called member, and the nonces of both sides.
    pub fn new(secret: &[u8], recipient: &Recipient<'_>, callers: &Nonce, recipients: &Nonce) -> Self {
        let mut derived = keyed(secret);
        let fields: [&[u8]; 6] = [
            PROTOCOL,
            recipient.group.as_str().as_bytes(),
            recipient.instance_id.as_str().as_bytes(),
            &recipient.incarnation.get().to_be_bytes(),
            &callers.0,
            &recipients.0,
        ];
        for field in fields {
            add(&mut derived, field);
        }
        Self(keyed(derived.sign().as_ref()))
    }

    /// The proof of that kind about these fields, after `count` others of its kind on the connection.
    pub fn proof(&self, kind: ProofKind, count: u64, fields: &[&[u8]]) -> Proof {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(self.over(kind, count, fields).sign().as_ref());
        Proof(bytes)
    }

    /// Whether `shown` is that proof. Takes constant time.
    pub fn proves(&self, shown: &Proof, kind: ProofKind, count: u64, fields: &[&[u8]]) -> bool {
        self.over(kind, count, fields).sign().as_ref().ct_eq(&shown.0).into()
    }

    fn over(&self, kind: ProofKind, count: u64, fields: &[&[u8]]) -> Context {
        let mut mac = self.0.clone();
        add(&mut mac, kind.name());
        add(&mut mac, &count.to_be_bytes());
        for field in fields {
            add(&mut mac, field);
        }
        mac
    }
}

impl fmt::Debug for ProofSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProofSession(***)")
    }
}

fn keyed(key: &[u8]) -> Context {
    Context::with_key(&Key::new(HMAC_SHA256, key))
}

/// Prefixes the length, so that different lists of fields give different bytes.
fn add(mac: &mut Context, field: &[u8]) {
    mac.update(&(field.len() as u64).to_be_bytes());
    mac.update(field);
}

fn hex(bytes: &[u8; BYTES]) -> String {
    bytes.iter().fold(String::with_capacity(2 * BYTES), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `None` unless it is 64 lower-case hexadecimal digits.
fn unhex(text: &str) -> Option<[u8; BYTES]> {
    if text.len() != 2 * BYTES || !text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

macro_rules! as_text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex(&self.0))
            }
        }

        impl FromStr for $name {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                unhex(text).map(Self).ok_or("it is not 64 small hexadecimal digits")
            }
        }
    };
}

as_text!(Nonce);
as_text!(Proof);

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"members-know-this-one";

    fn session(secret: &[u8], (group, id, incarnation): (&str, &str, u64), nonces: [u8; 2]) -> ProofSession {
        let (group, id) = (GroupName::new(group).unwrap(), InstanceId::new(id).unwrap());
        let recipient = Recipient { group: &group, instance_id: &id, incarnation: Incarnation::new(incarnation) };
        let [callers, recipients] = nonces.map(|byte| Nonce([byte; BYTES]));
        ProofSession::new(secret, &recipient, &callers, &recipients)
    }

    const WORKER: (&str, &str, u64) = ("workers", "worker-1", 7);

    /// The vectors of `docs/reference/protocol.md`, also computed by `docs/reference/protocol_check.py`, without TLS and with it; those of
    /// records are in `requests::channel::seal::tests`.
    #[test]
    fn the_bytes_are_those_of_the_page() {
        let session = session(SECRET, WORKER, [0x11, 0x22]);
        let proof = |kind, binding: &[u8]| session.proof(kind, 0, &[binding]).to_string();
        let proofs = |binding: &[u8]| [proof(ProofKind::Welcome, binding), proof(ProofKind::Confirmation, binding)];
        assert_eq!(
            proofs(b""),
            [
                "822838c16b1f03bc245215ce9f9ed45f6578b99ba161d07bf1c2f3f7dba89c91",
                "810c76c4417fa3ba66be866f2ad8302e9aa56ec696eaae7e402e07992b85acf4"
            ]
        );
        assert_eq!(
            proofs(&[0x33; 32]),
            [
                "6b92dab8483a58c05c1b79a8c577b5c69d955dd45423df7a8c5162d13d2f56ec",
                "66c77e206d8f5c44eda5e8866ff89ce004bbf1f5017f62fcd7159a4c34fd1099"
            ]
        );
    }

    #[test]
    fn whatever_differs_makes_another_proof() {
        let (own, fields): (_, [&[u8]; 2]) = (session(SECRET, WORKER, [1, 2]), [b"POST", b"/x"]);
        let proof = own.proof(ProofKind::Question, 3, &fields);
        assert!(own.proves(&proof, ProofKind::Question, 3, &fields));
        assert!(own.proves(&proof.to_string().parse().unwrap(), ProofKind::Question, 3, &fields));
        for other in [
            session(b"members-know-this-onf", WORKER, [1, 2]),
            session(SECRET, ("worker", "sworker-1", 7), [1, 2]),
            session(SECRET, ("workers", "worker-2", 7), [1, 2]),
            session(SECRET, ("workers", "worker-1", 8), [1, 2]),
            session(SECRET, WORKER, [3, 2]),
            session(SECRET, WORKER, [1, 3]),
            session(SECRET, WORKER, [2, 1]),
        ] {
            assert!(!other.proves(&proof, ProofKind::Question, 3, &fields));
        }
        let is = |kind, count, fields: &[&[u8]]| own.proves(&proof, kind, count, fields);
        for other in [ProofKind::Answer, ProofKind::Welcome, ProofKind::Confirmation] {
            assert!(!is(other, 3, &fields), "it cannot be sent back, nor in another place: {other:?}");
        }
        assert!(!is(ProofKind::Question, 2, &fields) && !is(ProofKind::Question, 4, &fields), "it counts once");
        for other in [&[&b"POST"[..], b"/y"][..], &[b"POST/", b"x"], &[b"POST/x"], &[b"POST", b"/x", b""], &[b"POST"], &[]] {
            assert!(!is(ProofKind::Question, 3, other), "{other:?}");
        }
        let mut bytes = *proof.bytes();
        for at in 0..BYTES {
            bytes[at] ^= 1;
            assert!(!own.proves(&Proof::from_bytes(bytes), ProofKind::Question, 3, &fields), "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn a_nonce_is_never_there_twice_and_is_read_as_it_is_written() {
        let (one, other) = (Nonce::random(), Nonce::random());
        assert!(one != other && one.to_string().parse() == Ok(one));
        let digits = one.to_string();
        for bad in
            ["", "0", &digits[1..], &digits.replace(|_: char| true, "A"), &digits.replace(|_: char| true, "g"), &format!("{digits}0")]
        {
            assert!(bad.parse::<Nonce>().is_err(), "{bad}");
        }
        assert!(!format!("{:?}", session(SECRET, WORKER, [1, 2])).contains("know"));
    }
}
