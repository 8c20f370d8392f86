//! Connections of one listener, of clients and of members: admission, idle limits and serving.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::CONNECTION;
use axum::response::IntoResponse;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use shardwise::discovery::LogThrottle;
use shardwise::requests::channel::{ALPN, ConnectionSecurity, Reception, binding};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::connection_table::{Busy, ConnectionTable, ConnectionTicket};
use crate::limits::{HEAD_BYTES_MAX, Limits};
use crate::problem::TOO_MANY;
use crate::write_timeout::WriteTimeout;

/// Paths for probes, which require no token.
pub(crate) const OPEN: [&str; 2] = ["/livez", "/readyz"];
/// How long answers in progress may take at shutdown.
const FAREWELL: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The answer when there is no room. A member sees that it is none of another member, and that it has sent nothing.
const FULL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
/// A member's connection without TLS begins with the length of a frame below 16 KiB in four bytes, and HTTP with a letter.
const FIRST_BYTE_OF_MEMBERS: u8 = 0;

/// The common state of a listener's connections.
pub(crate) struct ListenerContext {
    pub(crate) routes: Router,
    pub(crate) connections: Arc<ConnectionTable>,
    pub(crate) limits: Limits,
    pub(crate) tls: Option<TlsAcceptor>,
    /// `None` if no members connect here.
    pub(crate) members: Option<MemberReception>,
}

/// Where members' connections go.
pub(crate) struct MemberReception {
    pub(crate) reception: Reception,
    /// All that it knows have proven that they are members. Otherwise they may be any programs of this machine.
    pub(crate) proves: bool,
}

/// A request extension: its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionFacts {
    pub(crate) local: SocketAddr,
}

/// Accepts connections until `stop` is cancelled, then waits for the answers in progress. Dropping the future closes all connections.
pub(crate) async fn serve(listener: TcpListener, context: ListenerContext, stop: CancellationToken) {
    let (context, mut connections, failures) = (Arc::new(context), JoinSet::new(), LogThrottle::default());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let Some(ticket) = context.connections.take() else {
                        // Sent as far as possible without waiting.
                        let _ = stream.try_write(FULL);
                        continue;
                    };
                    connections.spawn(connection(Arc::clone(&context), ticket, stop.clone(), stream));
                }
                // For example, when there are no file descriptors left.
                Err(error) => {
                    if let Some(count) = failures.another(error.kind()) {
                        tracing::warn!(%error, count, "connections cannot be taken in; one line a minute at most");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stop.cancelled() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(context: Arc<ListenerContext>, ticket: ConnectionTicket, stop: CancellationToken, stream: TcpStream) {
    let Ok(local) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    let (facts, closed) = (ConnectionFacts { local }, ticket.closed.clone());
    let served = async {
        match &context.tls {
            Some(acceptor) => secured(&context, acceptor, ticket, &stop, stream, facts).await,
            None => plain(&context, ticket, &stop, stream, facts).await,
        }
    };
    tokio::select! {
        () = served => {}
        () = closed.cancelled() => {}
    }
}

/// A connection without TLS: its first byte says whether it is of a member.
async fn plain(context: &ListenerContext, ticket: ConnectionTicket, stop: &CancellationToken, stream: TcpStream, facts: ConnectionFacts) {
    let mut first = [0];
    // No request has been made yet.
    let peeked = stop.run_until_cancelled(timeout(context.limits.head, stream.peek(&mut first))).await;
    let Some(Ok(Ok(length))) = peeked else { return };
    let is_member = length == 1 && first == [FIRST_BYTE_OF_MEMBERS];
    match context.members.as_ref().filter(|_| is_member) {
        Some(members) => member(members, ticket, stop, stream, ConnectionSecurity::default()).await,
        None => http(context, ticket, stop, WriteTimeout::new(stream, context.limits.stall), facts).await,
    }
}

/// A connection with TLS, in which both ends have agreed on its protocol.
async fn secured(
    context: &ListenerContext,
    acceptor: &TlsAcceptor,
    ticket: ConnectionTicket,
    stop: &CancellationToken,
    stream: TcpStream,
    facts: ConnectionFacts,
) {
    let accepted = timeout(context.limits.head, acceptor.accept(WriteTimeout::new(stream, context.limits.stall)));
    // No request has been made yet.
    let Some(Ok(Ok(stream))) = stop.run_until_cancelled(accepted).await else { return };
    let connection = stream.get_ref().1;
    let is_member = connection.alpn_protocol() == Some(ALPN);
    match context.members.as_ref().filter(|_| is_member) {
        Some(members) => {
            let Ok(binding) = binding(connection) else { return };
            // The handshake has verified a certificate that was presented.
            let security = ConnectionSecurity { binding: Some(binding), is_certified: connection.peer_certificates().is_some() };
            member(members, ticket, stop, stream, security).await;
        }
        None => http(context, ticket, stop, stream, facts).await,
    }
}

/// A member's connection. Until it has proven itself it counts as idle, so that it may have to make room, and as busy from then on.
async fn member(
    members: &MemberReception,
    ticket: ConnectionTicket,
    stop: &CancellationToken,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    security: ConnectionSecurity,
) {
    if ticket.probes_only {
        return;
    }
    let busy = OnceLock::new();
    let known = || {
        if members.proves || security.is_certified {
            // It is called once.
            let _ = busy.set(ticket.busy());
        }
    };
    let farewell = async {
        stop.cancelled().await;
        sleep(FAREWELL).await;
    };
    tokio::select! {
        served = members.reception.serve(stream, security, known) => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection of a member has ended");
            }
        }
        () = farewell => {}
    }
}

async fn http(
    context: &ListenerContext,
    ticket: ConnectionTicket,
    stop: &CancellationToken,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    facts: ConnectionFacts,
) {
    let routes = context.routes.clone();
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        let (routes, busy, probes_only) = (routes.clone(), ticket.busy(), ticket.probes_only);
        async move {
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(facts);
            let response = if probes_only && !OPEN.contains(&request.uri().path()) {
                let problem = TOO_MANY.because("all connections are busy; this one is for /livez and /readyz alone");
                ([(CONNECTION, "close")], problem).into_response()
            } else {
                routes.oneshot(request).await.unwrap_or_else(|never: Infallible| match never {})
            };
            Ok::<_, Infallible>(response.map(|body| BusyBody { body, _busy: busy }))
        }
    });
    let mut http = http1::Builder::new();
    // Not `half_close`: a client that closes its side is gone, and then its request ends with the handlers that work for it.
    http.timer(TokioTimer::new()).header_read_timeout(context.limits.head).max_buf_size(HEAD_BYTES_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    tokio::select! {
        // A client that disconnects or sends an invalid request needs no further answer.
        _ = connection.as_mut() => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(FAREWELL, connection).await;
        }
    }
}

/// The body of an answer; keeps its connection busy until the last byte is handed over.
struct BusyBody {
    body: Body,
    _busy: Busy,
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
