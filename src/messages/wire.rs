//! The format of a connection between two members: frames of four bytes of length, a proof if there is a token, and JSON, of limited size
//! and within limited time.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use shardwise_core::{ClaimName, Epoch, GroupName, Incarnation, InstanceId};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use crate::membership::proof::{Proof, ProofKind, ProofSession};

/// The version of this protocol. Others are refused. In version 1 the first frame contained the token.
pub(super) const PROTOCOL: u32 = 2;
/// The most bytes of one message, and of one reply, as JSON.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// The most bytes of a frame: a message plus its name, epoch and numbers.
pub(super) const FRAME_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 4 * 1024;
/// The most bytes of the first frame of a connection, from a caller that may be anyone.
pub(super) const HELLO_BYTES_MAX: usize = 16 * 1024;
/// How long a frame may take from its first byte to its last, in either direction.
pub(super) const FRAME_WITHIN: Duration = Duration::from_secs(10);
const LENGTH_BYTES: usize = 4;
const PROOF_BYTES: usize = 32;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) shardwise: u32,
    pub(super) group: GroupName,
    /// The expected member; the port may be another member's by now.
    pub(super) instance_id: InstanceId,
    pub(super) incarnation: Incarnation,
    /// Absent in version 1, which must still get the answer that its version is refused.
    #[serde(default)]
    pub(super) nonce: String,
}

/// The recipient's answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Welcome {
    /// To the hello: with a token, the proof that the recipient knows it. The caller answers with an empty frame, whose proof is its own.
    Challenge {
        nonce: String,
        proof: Option<String>,
    },
    /// To the caller's proof: messages may follow.
    Ok,
    OtherProtocol,
    #[serde(rename = "somebody_else")]
    OtherMember,
    Full,
}

/// One message. Its id is chosen by the caller and comes back with the answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireRequest {
    pub(super) id: u64,
    pub(super) to: ClaimName,
    /// The epoch under which the caller believes it is held.
    pub(super) epoch: Epoch,
    /// The caller's timeout, in milliseconds.
    pub(super) within_ms: u64,
    pub(super) body: Box<RawValue>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Response {
    pub(super) id: u64,
    pub(super) answer: WireAnswer,
}

/// The outcome of a message, from the member that received it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WireAnswer {
    /// It was handled.
    Reply(Box<RawValue>),
    /// It was not handled: this member does not hold the name, or not under that epoch, or is releasing it.
    NotMine,
    /// It was not handled: too many wait already.
    Busy,
    /// It was not handled: it is not a message of the type accepted here.
    Unreadable(String),
    /// It was taken, and whether it was handled is unknown.
    Lost(String),
    /// It was handled, and the reply cannot be sent.
    Unwritable(String),
}

/// The proofs of all frames in one direction of a connection: each covers the number of earlier frames, and the whole frame.
pub(super) struct Seal {
    session: ProofSession,
    kind: ProofKind,
    count: u64,
}

impl Seal {
    pub(super) fn pair(session: &ProofSession) -> [Self; 2] {
        [ProofKind::Question, ProofKind::Answer].map(|kind| Self { session: session.clone(), kind, count: 0 })
    }

    fn proof(&mut self, frame: &[u8]) -> Proof {
        let proof = self.session.proof(self.kind, self.count, &[frame]);
        self.count += 1;
        proof
    }

    fn proves(&mut self, shown: &Proof, frame: &[u8]) -> bool {
        let proves = self.session.proves(shown, self.kind, self.count, &[frame]);
        self.count += 1;
        proves
    }
}

/// A value as JSON, with room in front for the length and the proof that [`FrameWriter::send`] adds.
pub(super) struct Frame(Vec<u8>);

pub(super) fn frame(value: &impl Serialize) -> Result<Frame> {
    let mut bytes = vec![0; LENGTH_BYTES + PROOF_BYTES];
    serde_json::to_writer(&mut bytes, value)?;
    Ok(Frame(bytes))
}

pub(super) struct FrameWriter<W> {
    writer: W,
    /// Set once both sides have proven that they know the token; never without one.
    pub(super) seal: Option<Seal>,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(super) const fn new(writer: W) -> Self {
        Self { writer, seal: None }
    }

    pub(super) async fn send(&mut self, Frame(mut bytes): Frame) -> Result<()> {
        let (head, json) = bytes.split_at_mut(LENGTH_BYTES + PROOF_BYTES);
        let begin = match &mut self.seal {
            Some(seal) => {
                head[LENGTH_BYTES..].copy_from_slice(seal.proof(json).bytes());
                0
            }
            None => PROOF_BYTES,
        };
        let length = u32::try_from(bytes.len() - begin - LENGTH_BYTES).map_err(|_| Error::from(ErrorKind::FileTooLarge))?;
        bytes[begin..begin + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        timeout(FRAME_WITHIN, self.writer.write_all(&bytes[begin..])).await?
    }
}

pub(super) struct FrameReader<R> {
    reader: BufReader<R>,
    pub(super) seal: Option<Seal>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader: BufReader::new(reader), seal: None }
    }

    /// Whether another frame starts within that time. Cancel safe.
    pub(super) async fn begins(&mut self, within: Duration) -> Result<bool> {
        match timeout(within, self.reader.fill_buf()).await {
            Ok(Ok([])) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Reads a frame of at most `most` bytes; parses it only after its proof was verified. Memory grows with what has arrived, whatever
    /// the announced length. `PermissionDenied` if the proof is wrong.
    pub(super) async fn read<T: DeserializeOwned>(&mut self, most: usize) -> Result<T> {
        timeout(FRAME_WITHIN, self.read_whole(most)).await?
    }

    async fn read_whole<T: DeserializeOwned>(&mut self, most: usize) -> Result<T> {
        let length = self.reader.read_u32().await? as usize;
        let most = most + self.seal.as_ref().map_or(0, |_| PROOF_BYTES);
        if length > most {
            return Err(Error::new(ErrorKind::InvalidData, format!("a frame of {length} bytes; at most {most} are allowed")));
        }
        let mut bytes = Vec::new();
        (&mut self.reader).take(length as u64).read_to_end(&mut bytes).await?;
        let json = match &mut self.seal {
            None => &bytes[..],
            Some(seal) => {
                let wrong = || Error::new(ErrorKind::PermissionDenied, "a frame without its proof");
                let (shown, json) = bytes.split_first_chunk::<PROOF_BYTES>().ok_or_else(wrong)?;
                if !seal.proves(&Proof::from_bytes(*shown), json) {
                    return Err(wrong());
                }
                json
            }
        };
        // A truncated frame lacks its end and is invalid JSON.
        serde_json::from_slice(json).map_err(Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::proof::{Channel, Nonce, Recipient};

    /// The bytes of that value as a frame.
    async fn sent(value: &impl Serialize, seal: Option<Seal>) -> Vec<u8> {
        let mut sending = FrameWriter::new(Vec::new());
        sending.seal = seal;
        sending.send(frame(value).unwrap()).await.unwrap();
        sending.writer
    }

    async fn heard<T: DeserializeOwned>(bytes: &[u8], most: usize, seal: Option<Seal>) -> Result<T> {
        let mut hearing = FrameReader::new(bytes);
        hearing.seal = seal;
        hearing.read(most).await
    }

    /// The seals of both sides of a connection, the caller's first.
    fn seals() -> [Seal; 2] {
        let (group, id) = (GroupName::new("g").unwrap(), InstanceId::new("a").unwrap());
        let recipient = Recipient { channel: Channel::Messages, group: &group, instance_id: &id, incarnation: Incarnation::new(1) };
        Seal::pair(&ProofSession::new(b"0123456789abcdef", &recipient, &Nonce::random(), &Nonce::random()))
    }

    fn same(seal: &Seal) -> Seal {
        Seal { session: seal.session.clone(), ..*seal }
    }

    #[tokio::test]
    async fn a_frame_that_is_written_is_read() {
        let request = WireRequest {
            id: 7,
            to: ClaimName::new("singleton/x").unwrap(),
            epoch: Epoch::new(3).unwrap(),
            within_ms: 5,
            body: RawValue::from_string("{\"a\":[1,2]}".into()).unwrap(),
        };
        let [callers, _] = seals();
        for seal in [|_: &Seal| None, |seal: &Seal| Some(same(seal))] {
            let bytes = sent(&request, seal(&callers)).await;
            let read: WireRequest = heard(&bytes, bytes.len() - LENGTH_BYTES, seal(&callers)).await.unwrap();
            assert_eq!((read.id, read.epoch, read.body.get()), (7, request.epoch, "{\"a\":[1,2]}"));
        }
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_or_cut_off_or_no_json_is_an_error() {
        let long = heard::<Welcome>(&[0xff; 64], 1_000, None).await.unwrap_err();
        assert!(long.to_string().contains("at most 1000"), "{long}");
        let [callers, _] = seals();
        for seal in [|_: &Seal| None, |seal: &Seal| Some(same(seal))] {
            let whole = sent(&Welcome::Ok, seal(&callers)).await;
            for end in 0..whole.len() {
                assert!(heard::<Welcome>(&whole[..end], 1_000, seal(&callers)).await.is_err(), "cut at {end}");
            }
        }
        assert!(heard::<Welcome>(b"\0\0\0\x02\xff\xff", 1_000, None).await.is_err());
    }

    #[tokio::test]
    async fn a_sealed_frame_counts_once_in_its_place_and_its_direction() {
        let [callers, recipients] = seals();
        let whole = sent(&Welcome::Ok, Some(same(&callers))).await;
        let refused = async |bytes: &[u8], seal: &Seal, why: &str| {
            let error = heard::<Welcome>(bytes, 1_000, Some(same(seal))).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{why}: {error}");
        };
        refused(&whole, &recipients, "sent back").await;
        refused(&whole, &seals()[0], "on another connection").await;
        refused(&sent(&Welcome::Ok, None).await, &callers, "without a proof").await;
        for at in LENGTH_BYTES..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            refused(&changed, &callers, &format!("byte {at} changed")).await;
        }
        let twice = [whole.clone(), whole].concat();
        let mut hearing = FrameReader::new(&twice[..]);
        hearing.seal = Some(same(&callers));
        assert_eq!(hearing.read::<Welcome>(1_000).await.unwrap(), Welcome::Ok);
        assert_eq!(hearing.read::<Welcome>(1_000).await.unwrap_err().kind(), ErrorKind::PermissionDenied, "a second time");
    }
}
