//! A connection on which every record is proven: both directions are cut into records of a length, a proof and bytes. For connections
//! without TLS whose ends know the members' secret: no other party can add, change, repeat or drop bytes unseen. It does not hide them.

use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::proof::{Proof, ProofKind, ProofSession};

/// The most bytes of a record's content: as much as a DATA frame of HTTP/2 has by default (RFC 9113, section 6.5.2).
const RECORD_BYTES_MAX: usize = 16 * 1024;
const LENGTH_BYTES: usize = 4;
const PROOF_BYTES: usize = 32;
const HEAD_BYTES: usize = LENGTH_BYTES + PROOF_BYTES;
/// How many bytes are read at a time, unless a record is longer: some tens of requests.
const INPUT_BYTES: usize = 4 * 1024;

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
    /// What has arrived lies in `input[begin..end]`, as much as the system had at a time: reading a head and its content separately takes
    /// three calls of it.
    input: Vec<u8>,
    begin: usize,
    end: usize,
    /// Where in `input` proven content lies that was not handed over yet.
    content: Range<usize>,
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
            input: vec![0; INPUT_BYTES],
            begin: 0,
            end: 0,
            content: 0..0,
        }
    }

    /// The record that has arrived as a whole: proves it, and keeps its content. `Err` of how many bytes it must have, as far as is known.
    fn take_record(&mut self) -> Result<std::result::Result<(), usize>> {
        let arrived = &self.input[self.begin..self.end];
        let Some((head, rest)) = arrived.split_first_chunk::<HEAD_BYTES>() else { return Ok(Err(HEAD_BYTES)) };
        let length = length(head)?;
        let Some(content) = rest.get(..length) else { return Ok(Err(HEAD_BYTES + length)) };
        let shown = head[LENGTH_BYTES..].first_chunk::<PROOF_BYTES>().copied().unwrap_or_default();
        if !self.reading.proves(&Proof::from_bytes(shown), content) {
            return Err(Error::new(ErrorKind::PermissionDenied, "a record without its proof"));
        }
        let begin = self.begin + HEAD_BYTES;
        self.begin = begin + length;
        self.content = begin..self.begin;
        Ok(Ok(()))
    }

    /// Makes room behind what has arrived for a record of so many bytes.
    fn make_room(&mut self, record: usize) {
        if self.input.len() - self.begin < record {
            self.input.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.input.len() < record {
            self.input.resize(record, 0);
        }
    }
}

/// The length of a record's content, from its head.
fn length(head: &[u8; HEAD_BYTES]) -> Result<usize> {
    let length = u32::from_be_bytes(head.first_chunk().copied().unwrap_or_default()) as usize;
    if (1..=RECORD_BYTES_MAX).contains(&length) {
        return Ok(length);
    }
    Err(Error::new(ErrorKind::InvalidData, format!("a record of {length} bytes; from 1 to {RECORD_BYTES_MAX} are allowed")))
}

impl<S: AsyncRead + Unpin> SealedStream<S> {
    /// Reads until a record is proven. `false` at the end of the stream between two records.
    fn poll_record(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        loop {
            let Err(record) = self.take_record()? else { return Poll::Ready(Ok(true)) };
            self.make_room(record);
            let mut buffer = ReadBuf::new(&mut self.input[self.end..]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            let more = buffer.filled().len();
            if more == 0 {
                return Poll::Ready(if self.begin == self.end { Ok(false) } else { Err(ErrorKind::UnexpectedEof.into()) });
            }
            self.end += more;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SealedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        if this.content.is_empty() && !ready!(this.poll_record(context))? {
            return Poll::Ready(Ok(()));
        }
        let content = &this.input[this.content.clone()];
        let taken = content.len().min(buffer.remaining());
        buffer.put_slice(&content[..taken]);
        this.content.start += taken;
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
mod tests;
