//! What goes over a connection between two members: frames of four bytes of length and JSON, of limited size and within limited time.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use shardwise_core::{ClaimName, Epoch, GroupName, Incarnation, InstanceId};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The version of all that is in this file. Another one is refused.
pub(super) const PROTOCOL: u32 = 1;
/// The most bytes of one message, and of one reply, as JSON.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// The most bytes of a frame: a message with a name, an epoch and numbers around it.
pub(super) const FRAME_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 4 * 1024;
/// The most bytes of the first frame of a connection, from somebody who may be anybody.
pub(super) const HELLO_BYTES_MAX: usize = 16 * 1024;
/// How long a frame may take from its first byte to its last, in either direction.
pub(super) const FRAME_WITHIN: Duration = Duration::from_secs(10);

/// The first frame of whoever connects. It has no `Debug`, because of the token.
#[derive(Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) shardwise: u32,
    pub(super) group: GroupName,
    /// Whom the caller believes to be here; the port may be another member's by now.
    pub(super) instance_id: InstanceId,
    pub(super) incarnation: Incarnation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

/// The answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Welcome {
    Ok,
    OtherProtocol,
    WrongToken,
    SomebodyElse,
    Full,
}

/// One message. Its number is the caller's own and comes back with the answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) to: ClaimName,
    /// The epoch under which the caller believes it is held.
    pub(super) epoch: Epoch,
    /// How long the caller waits, in milliseconds.
    pub(super) within_ms: u64,
    pub(super) body: Box<RawValue>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Response {
    pub(super) id: u64,
    pub(super) answer: Answer,
}

/// What became of a message, said by the member that it was brought to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// It was handled.
    Reply(Box<RawValue>),
    /// It was not handled: this member does not hold the name, or not under that epoch, or is giving it up.
    NotMine,
    /// It was not handled: too many wait already.
    Busy,
    /// It was not handled: it is no message of the type that is taken here.
    Unreadable(String),
    /// It was taken, and how far it was handled is not known.
    Lost(String),
    /// It was handled, and the reply cannot be sent.
    Unwritable(String),
}

/// A value as a frame, its length in front.
pub(super) fn frame(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, value)?;
    let length = u32::try_from(bytes.len() - 4).map_err(|_| Error::from(ErrorKind::FileTooLarge))?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

pub(super) async fn write(writer: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> Result<()> {
    timeout(FRAME_WITHIN, writer.write_all(frame)).await?
}

/// Whether another frame begins within that time. Cancel safe.
pub(super) async fn begins(reader: &mut (impl AsyncBufRead + Unpin), within: Duration) -> Result<bool> {
    match timeout(within, reader.fill_buf()).await {
        Ok(Ok([])) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(Ok(_)) => Ok(true),
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Reads a frame of at most so many bytes. Memory grows with what has arrived, whatever length was announced.
pub(super) async fn read<T: DeserializeOwned>(reader: &mut (impl AsyncRead + Unpin), most: usize) -> Result<T> {
    let reading = async {
        let length = reader.read_u32().await?;
        if length as usize > most {
            return Err(Error::new(ErrorKind::InvalidData, format!("a frame of {length} bytes; at most {most} are allowed")));
        }
        let mut bytes = Vec::new();
        reader.take(u64::from(length)).read_to_end(&mut bytes).await?;
        // Of one that is cut off the end is missing, and then it is no JSON.
        serde_json::from_slice(&bytes).map_err(Error::from)
    };
    timeout(FRAME_WITHIN, reading).await?
}

/// Whether two secrets are the same, in a time that tells nothing of where they differ.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0, |differ, (a, b)| differ | std::hint::black_box(a ^ b));
    std::hint::black_box(differ) == 0 && one.len() == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_frame_that_is_written_is_read() {
        let request = Request {
            id: 7,
            to: ClaimName::new("singleton/x").unwrap(),
            epoch: Epoch::new(3).unwrap(),
            within_ms: 5,
            body: RawValue::from_string("{\"a\":[1,2]}".into()).unwrap(),
        };
        let bytes = frame(&request).unwrap();
        let read: Request = read(&mut &bytes[..], FRAME_BYTES_MAX).await.unwrap();
        assert_eq!((read.id, read.epoch, read.body.get()), (7, request.epoch, "{\"a\":[1,2]}"));
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_or_cut_off_or_no_json_is_an_error() {
        let long = read::<Welcome>(&mut &[0xff; 64][..], 1_000).await.unwrap_err();
        assert!(long.to_string().contains("at most 1000"), "{long}");
        let whole = frame(&Welcome::Ok).unwrap();
        for end in 0..whole.len() {
            assert!(read::<Welcome>(&mut &whole[..end], 1_000).await.is_err(), "cut at {end}");
        }
        assert!(read::<Welcome>(&mut &b"\0\0\0\x02\xff\xff"[..], 1_000).await.is_err());
    }

    #[test]
    fn secrets_are_the_same_only_if_all_of_them_is() {
        for (one, other, is) in [("", "", true), ("abc", "abc", true), ("abc", "abd", false), ("abc", "ab", false), ("", "a", false)] {
            let (one, other): (&str, &str) = (one, other);
            assert_eq!(same(one.as_bytes(), other.as_bytes()), is, "{one:?} {other:?}");
            assert_eq!(same(other.as_bytes(), one.as_bytes()), is, "{other:?} {one:?}");
        }
    }
}
