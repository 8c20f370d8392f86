//! Hands a connection that is there already, with TLS or without, to the client library.
//!
//! The library makes its own connections, and its TLS would bring a second provider or none of our configuration. But it takes any stream
//! that the reactor of its runtime has as a type, so this reactor is tokio's with another type of stream.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::Stream;
use futures::io::{AsyncRead, AsyncWrite};
use lapin::AsyncTcpStream;
use shardwise::discovery::tls::ServerStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

/// The stream in the form that the library wants.
pub(super) type HandedStream = Compat<Box<dyn ServerStream>>;

/// Tokio's executor, and its reactor with our streams.
pub(super) type HandedRuntime = Runtime<RuntimeParts<Tokio, AmqpReactor>>;

/// For a connection in the present runtime.
pub(super) fn runtime() -> HandedRuntime {
    Runtime::new(RuntimeParts::new(Tokio::current(), AmqpReactor(Tokio::current())))
}

#[derive(Debug, Clone)]
pub(super) struct AmqpReactor(Tokio);

impl Reactor for AmqpReactor {
    type TcpStream = HandedStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, dur: Duration) -> Self::Sleep {
        self.0.sleep(dur)
    }

    fn interval(&self, dur: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(dur)
    }

    /// The sink makes the connections.
    fn tcp_connect_addr(&self, _: SocketAddr) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::Error::from(io::ErrorKind::Unsupported)))
    }
}

/// A stream that is handed over once.
pub(super) struct Handover(Mutex<Option<HandedStream>>);

impl Handover {
    pub(super) fn new(stream: Box<dyn ServerStream>) -> Self {
        Self(Mutex::new(Some(stream.compat())))
    }

    /// The stream; later an error: the library's attempts to connect again end there, because a new connection is the sink's affair.
    pub(super) fn take(&self) -> lapin::Result<AsyncTcpStream<HandedStream>> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(AsyncTcpStream::Plain(stream.ok_or(io::ErrorKind::NotConnected).map_err(io::Error::from)?))
    }
}
