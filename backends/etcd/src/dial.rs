//! One connection to one server: TCP, TLS if the endpoint says so, a channel for gRPC over exactly this connection, and the cause where
//! that fails. tonic would connect by itself and again whenever a connection breaks, but it says little about why it could not.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use shardwise_discovery::one_line;
use shardwise_discovery::tls::{ConnectFailure, ServerStream, SystemTrust, TlsError, TlsFiles, connect_tls, rustls_error, speaks_tls};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::config::Endpoint;
use crate::error::Failure;

/// How often an idle connection is tried. etcd refuses clients that do it more often than every five seconds.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to find out why a server hung up.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// What gRPC is spoken over (ALPN).
const HTTP2: &[u8] = b"h2";
/// How HTTP/2 begins: the client's preface and its empty settings.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What went wrong on a connection that had been made. gRPC's own errors leave that out.
pub(crate) type TransportError = Arc<OnceLock<Failure>>;

/// Connects, and keeps to the time given.
pub(crate) async fn dial(endpoint: &Endpoint, tls: &TlsFiles, within: Duration) -> Result<(Channel, TransportError), Failure> {
    let socket = timeout(within, connect(endpoint, tls, within)).await.map_err(|_| late(endpoint, within))??;
    let wire = TransportError::default();
    let recorded = ErrorRecordingStream { socket, wire: Arc::clone(&wire), endpoint: endpoint.clone() };
    Ok((channel(endpoint, recorded).await?, wire))
}

async fn connect(endpoint: &Endpoint, files: &TlsFiles, within: Duration) -> Result<Box<dyn ServerStream>, Failure> {
    let unreachable = |error: io::Error| Failure::Unreachable { endpoint: endpoint.to_string(), why: one_line(&error.to_string()) };
    // Not by `connect_tcp`: closing must not discard HTTP/2's GOAWAY.
    let tcp = tcp(endpoint).await.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    if !endpoint.tls {
        return Ok(Box::new(tcp));
    }
    Err(match connect_tls(tcp, &endpoint.host, files, &[HTTP2], within).await {
        Ok(stream) => return Ok(Box::new(stream)),
        Err(ConnectFailure::Unreachable(_)) if speaks_plainly(endpoint).await => Failure::NotTls { endpoint: endpoint.to_string() },
        // A server that is just starting or stopping hangs up as well.
        Err(ConnectFailure::Unreachable(why)) => {
            Failure::Unreachable { endpoint: endpoint.to_string(), why: format!("it hangs up ({why})") }
        }
        Err(failure) => failure_of(endpoint, failure),
    })
}

fn late(endpoint: &Endpoint, within: Duration) -> Failure {
    Failure::Unreachable { endpoint: endpoint.to_string(), why: format!("no connection within {} ms", within.as_millis()) }
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

/// A connection that records its first error.
struct ErrorRecordingStream {
    socket: Box<dyn ServerStream>,
    wire: TransportError,
    endpoint: Endpoint,
}

impl ErrorRecordingStream {
    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &result {
            let failure = match rustls_error(error) {
                Some(inner) => failure_of(&self.endpoint, ConnectFailure::of_rustls(inner)),
                None => Failure::Broken { endpoint: self.endpoint.to_string(), why: one_line(&error.to_string()) },
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

/// Whether connections can be made with these files.
pub(crate) fn check(files: &TlsFiles) -> Result<(), Failure> {
    files.client_config(SystemTrust::Required).map(|_| ()).map_err(|error| unusable(&error))
}

fn unusable(error: &TlsError) -> Failure {
    Failure::Setting { setting: error.file.setting(), why: error.of_setting() }
}

/// The meaning of a failure for the connection to `endpoint`.
fn failure_of(at: &Endpoint, failure: ConnectFailure) -> Failure {
    let endpoint = at.to_string();
    match failure {
        ConnectFailure::NotTls => Failure::NotTls { endpoint },
        ConnectFailure::Certificate { why, advice } => {
            Failure::Certificate { endpoint, why, advice: advice.with_setting("discovery.etcd.ca_file") }
        }
        ConnectFailure::ClientCertificate(why) => Failure::ClientCertificate { endpoint, why },
        ConnectFailure::Unreachable(why) => Failure::Unreachable { endpoint, why },
        ConnectFailure::Handshake(why) => Failure::Handshake { endpoint, why },
        ConnectFailure::File(error) => unusable(&error),
        ConnectFailure::SilentOnTls(within) => late(at, within),
    }
}

/// How a server answers a client that begins with HTTP/2.
enum ProbeReply {
    /// With its own settings frame, as etcd sends it.
    Http2,
    Http1,
    /// It hangs up.
    Nothing,
}

async fn greeting(mut server: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<ProbeReply> {
    server.write_all(HELLO).await?;
    let mut answer = [0; 5];
    match server.read_exact(&mut answer).await {
        Ok(_) if answer.starts_with(b"HTTP/") => Ok(ProbeReply::Http1),
        // The fourth byte of a frame is its type; settings are 4.
        Ok(_) if answer[3] == 4 => Ok(ProbeReply::Http2),
        Err(error) if rustls_error(&error).is_some() => Err(error),
        Ok(_) | Err(_) => Ok(ProbeReply::Nothing),
    }
}

/// Why a server hung up that has never answered, if it can be found: gRPC does not say, so it is asked in another way, once.
pub(crate) async fn diagnose(endpoint: &Endpoint, files: &TlsFiles) -> Option<Failure> {
    timeout(PROBE_LIMIT, probe(endpoint, files)).await.ok().flatten()
}

async fn probe(endpoint: &Endpoint, files: &TlsFiles) -> Option<Failure> {
    let name = || endpoint.to_string();
    // Only after the handshake does a server reject the client's certificate.
    match greeting(connect(endpoint, files, PROBE_LIMIT).await.ok()?).await {
        Ok(ProbeReply::Http1) => Some(Failure::NotEtcd { endpoint: name(), why: "it speaks HTTP/1".into() }),
        Ok(ProbeReply::Nothing) if !endpoint.tls && speaks_tls(&endpoint.host, endpoint.port, PROBE_LIMIT).await => {
            Some(Failure::OnlyTls { endpoint: name() })
        }
        Ok(_) => None,
        Err(error) => rustls_error(&error).map(|error| failure_of(endpoint, ConnectFailure::of_rustls(error))),
    }
}

async fn tcp(endpoint: &Endpoint) -> io::Result<TcpStream> {
    TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await
}

/// Whether the server speaks HTTP/2 without TLS.
async fn speaks_plainly(endpoint: &Endpoint) -> bool {
    let probe = async { greeting(tcp(endpoint).await?).await };
    matches!(timeout(PROBE_LIMIT, probe).await, Ok(Ok(ProbeReply::Http2 | ProbeReply::Http1)))
}
