//! A connection on which every record is proven: both directions are cut into records of a length, a proof and bytes. For connections
//! without TLS whose ends know the members' secret: nobody else can add, change, repeat or drop bytes unseen. It does not hide them.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::membership::proof::{Proof, ProofKind, ProofSession};

/// The most bytes of a record's content: as much as a DATA frame of HTTP/2 has by default (RFC 9113, section 6.5.2).
const RECORD_BYTES_MAX: usize = 16 * 1024;
const LENGTH_BYTES: usize = 4;
const PROOF_BYTES: usize = 32;
const HEAD_BYTES: usize = LENGTH_BYTES + PROOF_BYTES;

/// The proofs of one direction: each covers the number of earlier records, and the whole record.
struct Seal {
    session: ProofSession,
    kind: ProofKind,
    count: u64,
}

impl Seal {
    const fn new(session: ProofSession, kind: ProofKind) -> Self {
        Self { session, kind, count: 0 }
    }

    fn proof(&mut self, record: &[u8]) -> Proof {
        let proof = self.session.proof(self.kind, self.count, &[record]);
        self.count += 1;
        proof
    }

    fn proves(&mut self, shown: &Proof, record: &[u8]) -> bool {
        let proves = self.session.proves(shown, self.kind, self.count, &[record]);
        self.count += 1;
        proves
    }
}

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Caller,
    Recipient,
}

/// A stream whose records are proven with the key of this connection.
pub(super) struct SealedStream<S> {
    stream: S,
    writing: Seal,
    reading: Seal,
    /// Records that are not written yet, from `written` on.
    out: Vec<u8>,
    written: usize,
    /// The record that is being read: its head, and its content as far as it has arrived.
    record: Vec<u8>,
    arrived: usize,
    /// Where the proven content begins that was not handed over yet; `None` while the record is incomplete.
    content: Option<usize>,
}

impl<S> SealedStream<S> {
    pub(super) fn new(stream: S, session: ProofSession, end: End) -> Self {
        let (own, other) = match end {
            End::Caller => (ProofKind::Question, ProofKind::Answer),
            End::Recipient => (ProofKind::Answer, ProofKind::Question),
        };
        Self {
            stream,
            writing: Seal::new(session.clone(), own),
            reading: Seal::new(session, other),
            out: Vec::new(),
            written: 0,
            record: vec![0; HEAD_BYTES],
            arrived: 0,
            content: None,
        }
    }

    /// Verifies the record that has arrived as a whole.
    fn verify(&mut self) -> Result<()> {
        let (head, content) = self.record.split_at(HEAD_BYTES);
        let shown = head[LENGTH_BYTES..].first_chunk::<PROOF_BYTES>().copied().unwrap_or_default();
        if !self.reading.proves(&Proof::from_bytes(shown), content) {
            return Err(Error::new(ErrorKind::PermissionDenied, "a record without its proof"));
        }
        self.content = Some(HEAD_BYTES);
        Ok(())
    }

    /// The length of the record's content, from its head.
    fn length(&self) -> Result<usize> {
        let length = u32::from_be_bytes(self.record[..LENGTH_BYTES].first_chunk().copied().unwrap_or_default()) as usize;
        if (1..=RECORD_BYTES_MAX).contains(&length) {
            return Ok(length);
        }
        Err(Error::new(ErrorKind::InvalidData, format!("a record of {length} bytes; from 1 to {RECORD_BYTES_MAX} are allowed")))
    }
}

impl<S: AsyncRead + Unpin> SealedStream<S> {
    /// Reads until a record is proven. `false` at the end of the stream between two records.
    fn poll_record(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        loop {
            let mut buffer = ReadBuf::new(&mut self.record[self.arrived..]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            let more = buffer.filled().len();
            if more == 0 {
                return Poll::Ready(if self.arrived == 0 { Ok(false) } else { Err(ErrorKind::UnexpectedEof.into()) });
            }
            self.arrived += more;
            if self.arrived < self.record.len() {
                continue;
            }
            if self.arrived == HEAD_BYTES {
                let length = self.length()?;
                self.record.resize(HEAD_BYTES + length, 0);
                continue;
            }
            return Poll::Ready(self.verify().map(|()| true));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SealedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        let begin = match this.content {
            Some(begin) => begin,
            None if ready!(this.poll_record(context))? => HEAD_BYTES,
            None => return Poll::Ready(Ok(())),
        };
        let content = &this.record[begin..];
        let taken = content.len().min(buffer.remaining());
        buffer.put_slice(&content[..taken]);
        if taken < content.len() {
            this.content = Some(begin + taken);
        } else {
            this.record.truncate(HEAD_BYTES);
            (this.arrived, this.content) = (0, None);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> SealedStream<S> {
    /// Writes the records that wait.
    fn poll_out(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.written < self.out.len() {
            let more = ready!(Pin::new(&mut self.stream).poll_write(context, &self.out[self.written..]))?;
            if more == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            self.written += more;
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SealedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let this = self.get_mut();
        // One record waits at most.
        ready!(this.poll_out(context))?;
        let content = &bytes[..bytes.len().min(RECORD_BYTES_MAX)];
        if content.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let length = u32::try_from(content.len()).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
        this.out.extend_from_slice(&length.to_be_bytes());
        this.out.extend_from_slice(this.writing.proof(content).bytes());
        this.out.extend_from_slice(content);
        // What is not written now is written before the next record, or by a flush.
        if let Poll::Ready(Err(error)) = this.poll_out(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(content.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_out(context))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_out(context))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use shardwise_core::{GroupName, Incarnation, InstanceId};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::membership::proof::{Nonce, Recipient};

    fn session() -> ProofSession {
        let (group, id) = (GroupName::new("g").unwrap(), InstanceId::new("a").unwrap());
        let recipient = Recipient { group: &group, instance_id: &id, incarnation: Incarnation::new(1) };
        ProofSession::new(b"0123456789abcdef", &recipient, &Nonce::random(), &Nonce::random())
    }

    /// The vectors of `docs/reference/protocol.md`, also computed by `docs/reference/protocol_check.py`.
    #[tokio::test]
    async fn the_bytes_are_those_of_the_page() {
        let (group, id) = (GroupName::new("workers").unwrap(), InstanceId::new("worker-1").unwrap());
        let recipient = Recipient { group: &group, instance_id: &id, incarnation: Incarnation::new(7) };
        let [callers, recipients]: [Nonce; 2] = ["11", "22"].map(|byte| byte.repeat(32).parse().unwrap());
        let session = ProofSession::new(b"members-know-this-one", &recipient, &callers, &recipients);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let asked = records(&session, &[b"ask", b"again"]).await;
        let of_page = [
            "000000032ddd34fd0120b373d016ab6b229567da4140f0971f8d84f7d4097c2364b7866b61736b",
            "000000055560aa9dd8857b72e4db37a6f68ba609f7b45fdf51ed76438c47fc15a974acbc616761696e",
        ];
        assert_eq!(hex(&asked), of_page.concat());
        let mut answering = SealedStream::new(Vec::new(), session, End::Recipient);
        answering.write_all(b"ok").await.unwrap();
        let answered = "000000021a8a11ff7bc5ccdbe0692bb06c9a3e8931558deef57f74dc5329878ff03190646f6b";
        assert_eq!(hex(&answering.stream), answered);
    }

    /// The records that a caller writes for these pieces.
    async fn records(session: &ProofSession, pieces: &[&[u8]]) -> Vec<u8> {
        let mut writing = SealedStream::new(Vec::new(), session.clone(), End::Caller);
        for piece in pieces {
            writing.write_all(piece).await.unwrap();
        }
        writing.flush().await.unwrap();
        writing.stream
    }

    async fn read(session: &ProofSession, bytes: &[u8], end: End) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        SealedStream::new(bytes, session.clone(), end).read_to_end(&mut content).await.map(|_| content)
    }

    #[tokio::test]
    async fn what_is_written_is_read_however_it_is_cut() {
        let (session, long) = (session(), vec![7; 3 * RECORD_BYTES_MAX + 5]);
        let bytes = records(&session, &[b"a", b"", b"bc", &long]).await;
        assert_eq!(bytes.len(), 3 + long.len() + 6 * HEAD_BYTES);
        let all = read(&session, &bytes, End::Recipient).await.unwrap();
        assert!(all == [&b"abc"[..], &long].concat());
        // Through a pipe of a few bytes, in both directions at once.
        let (here, there) = tokio::io::duplex(7);
        let (mut caller, mut recipient) =
            (SealedStream::new(here, session.clone(), End::Caller), SealedStream::new(there, session, End::Recipient));
        let (mut asked, mut answered) = (vec![0; long.len()], [0; 3]);
        let calling = async {
            caller.write_all(&long).await.unwrap();
            caller.flush().await.unwrap();
            caller.read_exact(&mut answered).await.unwrap();
        };
        let answering = async {
            recipient.read_exact(&mut asked).await.unwrap();
            recipient.write_all(b"yes").await.unwrap();
            recipient.flush().await.unwrap();
        };
        tokio::join!(calling, answering);
        assert!(asked == long && &answered == b"yes");
    }

    #[tokio::test]
    async fn a_record_counts_once_in_its_place_and_its_direction() {
        let session = session();
        let (one, two) = (records(&session, &[b"one"]).await, records(&session, &[b"one", b"two"]).await);
        let refused = async |bytes: &[u8], end, why: &str| {
            let error = read(&session, bytes, end).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{why}: {error}");
        };
        refused(&one, End::Caller, "sent back").await;
        refused(&[one.clone(), one.clone()].concat(), End::Recipient, "a second time").await;
        refused(&two[one.len()..], End::Recipient, "without the one before").await;
        for at in LENGTH_BYTES..one.len() {
            let mut changed = one.clone();
            changed[at] ^= 1;
            refused(&changed, End::Recipient, &format!("byte {at} changed")).await;
        }
        assert!(read(&super::tests::session(), &one, End::Recipient).await.is_err(), "on another connection");
    }

    #[tokio::test]
    async fn a_record_that_is_cut_off_or_too_long_is_an_error() {
        let session = session();
        let one = records(&session, &[b"one"]).await;
        assert_eq!(read(&session, b"", End::Recipient).await.unwrap(), b"");
        for end in 1..one.len() {
            assert_eq!(read(&session, &one[..end], End::Recipient).await.unwrap_err().kind(), ErrorKind::UnexpectedEof, "cut at {end}");
        }
        for length in [0, u32::try_from(RECORD_BYTES_MAX).unwrap() + 1, u32::MAX] {
            let bytes = [&length.to_be_bytes()[..], &[0; 100]].concat();
            assert_eq!(read(&session, &bytes, End::Recipient).await.unwrap_err().kind(), ErrorKind::InvalidData, "{length}");
        }
    }
}
