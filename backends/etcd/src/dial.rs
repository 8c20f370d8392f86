//! One connection to one server: TCP, TLS if the endpoint says so, and a channel for gRPC over exactly this connection.
//!
//! tonic would connect by itself and again whenever a connection breaks, but it says little about why it could not.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use shardwise_discovery::one_line;
use shardwise_discovery::tls::TlsFiles;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Channel;

use crate::config::Endpoint;
use crate::error::Failure;
use crate::probe;
use crate::tls::{failure_of, load};

/// How often an idle connection is tried. etcd refuses clients that do it more often than every five seconds.
const PING_EVERY: Duration = Duration::from_secs(10);
/// How long the answer to a try may take.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// What went wrong on a connection that had been made. gRPC's own errors leave that out.
pub(crate) type TransportError = Arc<OnceLock<Failure>>;

/// Connects, and keeps to the time given.
pub(crate) async fn dial(endpoint: &Endpoint, tls: &TlsFiles, within: Duration) -> Result<(Channel, TransportError), Failure> {
    let late = |_| Failure::Unreachable { endpoint: endpoint.to_string(), why: format!("no connection within {} ms", within.as_millis()) };
    let socket = timeout(within, connect(endpoint, tls)).await.map_err(late)??;
    let wire = TransportError::default();
    let recorded = ErrorRecordingStream { socket, wire: Arc::clone(&wire), endpoint: endpoint.to_string() };
    Ok((channel(endpoint, recorded).await?, wire))
}

pub(crate) async fn connect(endpoint: &Endpoint, files: &TlsFiles) -> Result<Box<dyn Socket>, Failure> {
    let unreachable = |error: io::Error| Failure::Unreachable { endpoint: endpoint.to_string(), why: one_line(&error.to_string()) };
    let tcp = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    if !endpoint.tls {
        return Ok(Box::new(tcp));
    }
    let files = files.clone();
    let config = tokio::task::spawn_blocking(move || load(&files)).await.map_err(|error| unreachable(io::Error::other(error)))??;
    Ok(Box::new(handshake(endpoint, config, tcp).await?))
}

async fn handshake(endpoint: &Endpoint, config: Arc<ClientConfig>, tcp: TcpStream) -> Result<TlsStream<TcpStream>, Failure> {
    let why = |error: &dyn std::fmt::Display| Failure::Handshake { endpoint: endpoint.to_string(), why: one_line(&error.to_string()) };
    let name = ServerName::try_from(endpoint.host.clone()).map_err(|error| why(&error))?;
    let error = match TlsConnector::from(config).connect(name, tcp).await {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    Err(match inner(&error) {
        Some(inner) => failure_of(endpoint.to_string(), inner),
        None if probe::speaks_plainly(endpoint).await => Failure::NotTls { endpoint: endpoint.to_string() },
        // A server that is just starting or stopping hangs up as well.
        None => Failure::Unreachable { endpoint: endpoint.to_string(), why: format!("it hangs up ({})", one_line(&error.to_string())) },
    })
}

/// rustls hands its errors out in an `io::Error`.
pub(crate) fn inner(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

async fn channel(endpoint: &Endpoint, recorded: ErrorRecordingStream) -> Result<Channel, Failure> {
    let broken = |why: String| Failure::Broken { endpoint: endpoint.to_string(), why };
    let authority = endpoint.authority();
    let uri = |scheme: &str| format!("{scheme}://{authority}").parse::<Uri>().map_err(|error| broken(one_line(&error.to_string())));
    // The connection speaks TLS already, which tonic must not know; the server must, or it ignores the client's certificate.
    let grpc = Channel::builder(uri("http")?).origin(uri(if endpoint.tls { "https" } else { "http" })?);
    let grpc = grpc.http2_keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_TIMEOUT).keep_alive_while_idle(true);
    let mut once = Some(recorded);
    let connector = tower::service_fn(move |_: Uri| {
        let socket = once.take().map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        std::future::ready(socket)
    });
    grpc.connect_with_connector(connector).await.map_err(|error| broken(one_line(&error.to_string())))
}

/// A connection, with or without TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// A connection that records its first error.
struct ErrorRecordingStream {
    socket: Box<dyn Socket>,
    wire: TransportError,
    endpoint: String,
}

impl ErrorRecordingStream {
    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &result {
            let failure = match inner(error) {
                Some(inner) => failure_of(self.endpoint.clone(), inner),
                None => Failure::Broken { endpoint: self.endpoint.clone(), why: one_line(&error.to_string()) },
            };
            // The first is the cause.
            let _ = self.wire.set(failure);
        }
        result
    }
}

impl AsyncRead for ErrorRecordingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_read(cx, buffer);
        self.note(result)
    }
}

impl AsyncWrite for ErrorRecordingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.note(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_flush(cx);
        self.note(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
