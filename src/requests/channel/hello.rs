//! The start of a connection: each end proves to the other that it knows the members' secret and which member it is, before anything else
//! is sent (`docs/reference/protocol.md`, section 9).

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shardwise_core::{GroupName, Incarnation, InstanceId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::ByteStream;
use super::proof::{Nonce, ProofKind, ProofSession, Recipient};
use super::seal::{End, SealedStream};

/// The version of this protocol. Versions 1 and 2 carried messages to singletons alone.
const PROTOCOL: u32 = 3;
/// The most bytes of one of these frames, from a caller that may be anyone.
const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// How long all of it may take for the caller, and each step for the recipient.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(3);

/// The caller's first frame.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    shardwise: u32,
    pub(super) group: GroupName,
    /// The expected member; the port may be another member's by now.
    pub(super) instance_id: InstanceId,
    pub(super) incarnation: Incarnation,
    /// Absent in version 1, which must still get the answer that its version is refused.
    #[serde(default)]
    nonce: String,
}

/// The recipient's answer to it, and to the confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HelloRefusal {
    OtherProtocol,
    #[serde(rename = "somebody_else")]
    OtherMember,
    /// The caller has not proven that it is a member.
    Unproven,
    Full,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Welcome {
    /// To the hello: with a secret, the proof that the recipient knows it. The caller confirms.
    Challenge { nonce: String, proof: Option<String> },
    /// To the confirmation: requests may follow.
    Ok,
    #[serde(untagged)]
    Refused(HelloRefusal),
}

/// The caller's second frame: its own proof, if there is a secret.
#[derive(Debug, Serialize, Deserialize)]
struct Confirmation {
    proof: Option<String>,
}

/// What protects a connection. It has no `Debug`, so that the secret gets into no log.
#[derive(Clone, Copy)]
pub(super) struct Protection<'a> {
    /// The secret that members share.
    pub(super) secret: Option<&'a [u8]>,
    /// With TLS the exporter's value (RFC 9266), which binds the proofs to this very connection; nothing has to be sealed then.
    pub(super) binding: Option<&'a [u8]>,
}

impl Protection<'_> {
    fn fields(&self) -> [&[u8]; 1] {
        [self.binding.unwrap_or_default()]
    }

    fn over<S: ByteStream>(&self, stream: S, session: Option<ProofSession>, end: End) -> Box<dyn ByteStream> {
        match session.filter(|_| self.binding.is_none()) {
            Some(session) => Box::new(SealedStream::new(stream, session, end)),
            None => Box::new(stream),
        }
    }
}

/// Why a caller is not connected to the member that it wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotThere {
    /// Another process, another version or too many connections: this may pass.
    Elsewhere(&'static str),
    /// The two ends have different secrets.
    Unproven(&'static str),
}

/// The caller's side: nothing but nonces and proofs is sent before the other end has proven to be that member.
pub(super) async fn call<S: ByteStream>(
    mut stream: S,
    recipient: &Recipient<'_>,
    protection: &Protection<'_>,
) -> Result<std::result::Result<Box<dyn ByteStream>, NotThere>> {
    let callers = Nonce::random();
    let hello = Hello {
        shardwise: PROTOCOL,
        group: recipient.group.clone(),
        instance_id: recipient.instance_id.clone(),
        incarnation: recipient.incarnation,
        nonce: callers.to_string(),
    };
    send(&mut stream, &hello).await?;
    let session = match receive(&mut stream).await? {
        Welcome::Challenge { nonce, proof } => match welcomed(recipient, protection, &callers, &nonce, proof.as_deref()) {
            Ok(session) => session,
            Err(why) => return Ok(Err(why)),
        },
        Welcome::Refused(refusal) => return Ok(Err(refusal.into_reason())),
        Welcome::Ok => return Ok(Err(NotThere::Elsewhere("its answer is not the expected one"))),
    };
    let proof = session.as_ref().map(|session| session.proof(ProofKind::Confirmation, 0, &protection.fields()).to_string());
    send(&mut stream, &Confirmation { proof }).await?;
    match receive(&mut stream).await? {
        Welcome::Ok => Ok(Ok(protection.over(stream, session, End::Caller))),
        Welcome::Refused(refusal) => Ok(Err(refusal.into_reason())),
        Welcome::Challenge { .. } => Ok(Err(NotThere::Elsewhere("its answer is not the expected one"))),
    }
}

/// The connection's key, `None` if neither end has a secret.
fn welcomed(
    recipient: &Recipient<'_>,
    protection: &Protection<'_>,
    callers: &Nonce,
    nonce: &str,
    proof: Option<&str>,
) -> std::result::Result<Option<ProofSession>, NotThere> {
    const OTHER: &str =
        "it does not prove that it is that member and has the same peer token: give all members the same token (peer_token_file)";
    const NONE_THERE: &str = "it has no peer token, and this process has one: give all members the same token (peer_token_file)";
    const NONE_HERE: &str = "it has a peer token, and this process has none: give all members the same token (peer_token_file)";
    let (secret, proof) = match (protection.secret, proof) {
        (Some(secret), Some(proof)) => (secret, proof),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(NotThere::Unproven(NONE_THERE)),
        (None, Some(_)) => return Err(NotThere::Unproven(NONE_HERE)),
    };
    let session = nonce.parse().ok().zip(proof.parse().ok()).and_then(|(nonce, proof)| {
        let session = ProofSession::new(secret, recipient, callers, &nonce);
        session.proves(&proof, ProofKind::Welcome, 0, &protection.fields()).then_some(session)
    });
    session.map(Some).ok_or(NotThere::Unproven(OTHER))
}

impl HelloRefusal {
    const fn into_reason(self) -> NotThere {
        match self {
            Self::OtherProtocol => {
                NotThere::Elsewhere("another version of shardwise is there, with which nothing is exchanged; upgrade the older one")
            }
            Self::OtherMember => NotThere::Elsewhere("another process is there now, or the member has left"),
            Self::Full => NotThere::Elsewhere("it has too many connections"),
            Self::Unproven => NotThere::Unproven(
                "it does not take this process's peer token or certificate: give all members the same token (peer_token_file), and \
                 certificates of one authority",
            ),
        }
    }
}

/// The recipient's side, step 1: whom the caller wants.
pub(super) async fn hello<S: ByteStream>(stream: &mut S) -> Result<std::result::Result<Hello, HelloRefusal>> {
    let hello: Hello = receive(stream).await?;
    Ok(if hello.shardwise == PROTOCOL { Ok(hello) } else { Err(HelloRefusal::OtherProtocol) })
}

/// Step 2: the recipient proves itself, and the caller has to. A caller that finds that the secrets differ just closes the connection.
pub(super) async fn proven<S: ByteStream>(
    stream: &mut S,
    hello: &Hello,
    recipient: &Recipient<'_>,
    protection: &Protection<'_>,
) -> Result<std::result::Result<Option<ProofSession>, HelloRefusal>> {
    let Ok(callers) = hello.nonce.parse() else { return Ok(Err(HelloRefusal::OtherProtocol)) };
    let own = Nonce::random();
    let session = protection.secret.map(|secret| ProofSession::new(secret, recipient, &callers, &own));
    let proof = session.as_ref().map(|session| session.proof(ProofKind::Welcome, 0, &protection.fields()).to_string());
    send(stream, &Welcome::Challenge { nonce: own.to_string(), proof }).await?;
    let shown: Confirmation = receive(stream).await?;
    let is_proven = session.as_ref().is_none_or(|session| {
        let shown = shown.proof.and_then(|proof| proof.parse().ok());
        shown.is_some_and(|shown| session.proves(&shown, ProofKind::Confirmation, 0, &protection.fields()))
    });
    Ok(if is_proven { Ok(session) } else { Err(HelloRefusal::Unproven) })
}

/// Step 3: the connection is open.
pub(super) async fn open<S: ByteStream>(
    mut stream: S,
    session: Option<ProofSession>,
    protection: &Protection<'_>,
) -> Result<Box<dyn ByteStream>> {
    send(&mut stream, &Welcome::Ok).await?;
    Ok(protection.over(stream, session, End::Recipient))
}

/// Instead of one of the steps: why not.
pub(super) async fn refuse<S: ByteStream>(stream: &mut S, refusal: HelloRefusal) -> Result<()> {
    send(stream, &Welcome::Refused(refusal)).await
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), frame: &impl Serialize) -> Result<()> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, frame)?;
    let length = u32::try_from(bytes.len() - 4).map_err(|_| Error::from(ErrorKind::FileTooLarge))?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    stream.write_all(&bytes).await?;
    stream.flush().await
}

async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T> {
    let length = stream.read_u32().await?;
    if length > FRAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::InvalidData, format!("a frame of {length} bytes; at most {FRAME_BYTES_MAX} are allowed")));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    serde_json::from_slice(&bytes).map_err(Error::from)
}

#[cfg(test)]
mod tests;
