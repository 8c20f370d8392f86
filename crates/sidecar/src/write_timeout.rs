//! A stream with a limit on stalled writes, which lets the client read the last answer before it is closed.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long the client may continue to send after the last answer.
const LINGER: Duration = Duration::from_secs(1);
/// The number of bytes discarded at a time.
const SCRAP_BYTES: usize = 16 << 10;

/// A stream with a limit on how long a write may make no progress.
#[derive(Debug)]
pub(crate) struct WriteTimeout<S> {
    inner: S,
    stall: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(crate) const fn new(inner: S, stall: Duration) -> Self {
        Self { inner, stall, stalled: None, lingering: None }
    }

    /// The result of a write; an error if it made no progress for too long.
    fn watched<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let stall = self.stall;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(stall)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watched(context, result)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.watched(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(context);
        self.watched(context, result)
    }

    /// Closes the sending side, then reads and discards further input for a while: closing with unread input would make the other side
    /// lose the answer.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let result = Pin::new(&mut self.inner).poll_shutdown(context);
            ready!(self.watched(context, result))?;
            self.lingering = Some(Box::pin(sleep(LINGER)));
        }
        let this = &mut *self;
        let mut scrap = [0; SCRAP_BYTES];
        // A limited number at a time, so that other tasks can run.
        for _ in 0..16 {
            if this.lingering.as_mut().is_none_or(|end| end.as_mut().poll(context).is_ready()) {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut scrap);
            match ready!(Pin::new(&mut this.inner).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(Ok(())),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
