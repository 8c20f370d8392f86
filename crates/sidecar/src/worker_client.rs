//! HTTP/1.1 to the worker on this machine: one request at a time on a connection, with limits on size and time. Only the necessary parts of
//! a member's request are sent, and redirects are not followed.

use std::error::Error as _;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http;
use axum::http::header::CONTENT_TYPE;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use shardwise::requests::{Answer, BODY_BYTES_MAX, Method, PEER_HEADER, REFUSED, Request, WITHIN_MAX};
use shardwise::trace;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, field};

use crate::incoming_body::IncomingBody;
use crate::limits::Limits;
use crate::target::Target;
use crate::worker_head::{WorkerFence, word, written};

/// How long the worker may take, whatever the request says: this member ends a request earlier, once its caller waits no longer.
const WORKER_WITHIN: Duration = WITHIN_MAX;
/// The timeout of finding its address, and of connecting.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
const ANSWER_HEAD_BYTES_MAX: usize = 16 << 10;
/// How long an idle connection is kept for another read: longer than a page's polling interval.
const KEPT_FOR: Duration = Duration::from_secs(8);
const KEPT_MAX: usize = 4;

/// Why the worker has not answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerFailure {
    /// It cannot be reached, so it has not begun with the request.
    Unreachable(String),
    /// It says, with that status, that it has not begun with the request.
    Refused(http::StatusCode),
    /// The connection broke, or the answer is invalid.
    Broken(String),
    /// The answer took too long.
    Late,
}

impl WorkerFailure {
    /// The outcome, for spans.
    const fn outcome(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Refused(_) => "refused",
            Self::Broken(_) => "broken",
            Self::Late => "late",
        }
    }

    pub(crate) const fn may_have_begun(&self) -> bool {
        !matches!(self, Self::Unreachable(_) | Self::Refused(_))
    }
}

/// The cause alone; the worker is known to the caller.
impl fmt::Display for WorkerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) | Self::Broken(why) => f.write_str(why),
            Self::Refused(status) => write!(f, "it refuses the request with status {}", status.as_u16()),
            Self::Late => f.write_str("it takes too long"),
        }
    }
}

/// The local worker, and the connections to it that may be used again.
#[derive(Debug)]
pub(crate) struct WorkerClient {
    target: Target,
    limits: Limits,
    /// The least recently used first. The worker closes idle connections too, which frees its socket earlier.
    idle: Mutex<Vec<(Instant, WorkerConnection)>>,
}

/// A connection for one request at a time. It closes on drop.
#[derive(Debug)]
struct WorkerConnection {
    sender: SendRequest<Body>,
    address: SocketAddr,
    _connection: AbortOnDropHandle<hyper::Result<()>>,
}

impl WorkerClient {
    pub(crate) const fn new(target: Target, limits: Limits) -> Self {
        Self { target, limits, idle: Mutex::new(Vec::new()) }
    }

    pub(crate) const fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a member's request below the path of the address, and waits for the answer. The worker sees the fence of the key or name.
    pub(crate) async fn ask(&self, request: &Request, fence: Option<WorkerFence>) -> Result<Answer, WorkerFailure> {
        let method = word(request.method);
        let span = tracing::info_span!(
            "ask",
            otel.name = format!("{method} worker beside"),
            otel.kind = "client",
            otel.status_code = field::Empty,
            "error.type" = field::Empty,
            http.request.method = method,
            http.response.status_code = field::Empty
        );
        let query = request.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        let path = format!("{}/{}{query}", self.target.prefix, request.path);
        let answer = self.answer_within(&path, request, fence).instrument(span.clone()).await;
        match &answer {
            Ok(answer) => {
                span.record("http.response.status_code", answer.status);
            }
            Err(failed) => trace::failed(&span, failed.outcome()),
        }
        answer
    }

    /// The same without a span, for what is asked all the time, and with that path and query.
    pub(crate) async fn answer(&self, path: &str, request: &Request) -> Result<Answer, WorkerFailure> {
        self.answer_within(path, request, None).await
    }

    async fn answer_within(&self, path: &str, request: &Request, fence: Option<WorkerFence>) -> Result<Answer, WorkerFailure> {
        timeout(WORKER_WITHIN, self.answer_to(path, request, fence)).await.unwrap_or(Err(WorkerFailure::Late))
    }

    async fn answer_to(&self, path: &str, request: &Request, fence: Option<WorkerFence>) -> Result<Answer, WorkerFailure> {
        // What must arrive at most once uses a new connection: if a kept one broke, it would be unknown whether the request arrived.
        if request.method == Method::Get
            && let Some(connection) = self.idle_connection()
            && let Ok(answer) = self.exchange(connection, path, request, fence).await?
        {
            return Ok(answer);
        }
        let connection = self.connect().await?;
        let address = connection.address;
        self.exchange(connection, path, request, fence).await?.map_err(|error| broken(address, &error))
    }

    /// Sends the request, and keeps the connection for a further read; the inner error means that it broke before an answer.
    async fn exchange(
        &self,
        mut connection: WorkerConnection,
        path: &str,
        request: &Request,
        fence: Option<WorkerFence>,
    ) -> Result<hyper::Result<Answer>, WorkerFailure> {
        let asked =
            written(&self.target.authority(), path, request, fence).map_err(|error| WorkerFailure::Unreachable(error.to_string()))?;
        let response = match connection.send(asked).await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        let answer = self.read(response, connection.address).await?;
        if request.method == Method::Get {
            self.keep(connection);
        }
        Ok(Ok(answer))
    }

    async fn read(&self, response: http::Response<Incoming>, address: SocketAddr) -> Result<Answer, WorkerFailure> {
        let broken = |why: &str| WorkerFailure::Broken(format!("{address}: {why}"));
        let (head, body) = response.into_parts();
        // Whatever its body says.
        if head.headers.get(PEER_HEADER).is_some_and(|by| by == REFUSED) {
            return Err(WorkerFailure::Refused(head.status));
        }
        let mut incoming = IncomingBody::new(Body::new(body), BODY_BYTES_MAX as u64, &self.limits)
            .map_err(|_| broken(&format!("its answer has more than {BODY_BYTES_MAX} bytes")))?;
        let mut bytes = Vec::new();
        while let Some(piece) = incoming.next().await.map_err(|_| broken("its answer is too long, too slow or cut off"))? {
            bytes.extend_from_slice(&piece);
        }
        let status = head.status.as_u16();
        if !matches!(status, 200..=299 | 400..=599) {
            let why =
                if (300..400).contains(&status) { "redirects are not followed; give the final address" } else { "it is not passed on" };
            return Err(broken(&format!("status {status}: {why}")));
        }
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("application/octet-stream");
        Ok(Answer::bytes(kind, bytes).with_status(status))
    }

    /// A new connection to the first of its addresses that is on this machine and reachable.
    async fn connect(&self) -> Result<WorkerConnection, WorkerFailure> {
        let host = self.target.host.as_str();
        let mut why = format!("{host} has no address");
        let addresses = match timeout(CONNECT_WITHIN, lookup_host((host, self.target.port))).await {
            Ok(Ok(addresses)) => addresses.take(ADDRESSES_MAX),
            Ok(Err(error)) => return Err(WorkerFailure::Unreachable(format!("{host}: {error}"))),
            Err(_) => return Err(WorkerFailure::Unreachable(format!("{host} is not found within {CONNECT_WITHIN:?}"))),
        };
        for address in addresses {
            if !address.ip().to_canonical().is_loopback() {
                why = format!("{} is not this machine", address.ip());
                continue;
            }
            match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    let opened = WorkerConnection::over(stream, address).await;
                    return opened.map_err(|error| WorkerFailure::Unreachable(format!("{address}: {error}")));
                }
                Ok(Err(error)) => why = format!("{address}: {error}"),
                Err(_) => why = format!("{address}: no connection within {CONNECT_WITHIN:?}"),
            }
        }
        Err(WorkerFailure::Unreachable(why))
    }

    /// The most recently used connection that is open, as far as is known.
    fn idle_connection(&self) -> Option<WorkerConnection> {
        let mut idle = self.fresh();
        std::iter::from_fn(|| idle.pop()).map(|(_, connection)| connection).find(|connection| !connection.sender.is_closed())
    }

    /// Adds a connection, if necessary in place of the least recently used one.
    fn keep(&self, connection: WorkerConnection) {
        let mut idle = self.fresh();
        if idle.len() >= KEPT_MAX {
            idle.remove(0);
        }
        idle.push((Instant::now(), connection));
    }

    /// The connections that have not expired.
    fn fresh(&self) -> MutexGuard<'_, Vec<(Instant, WorkerConnection)>> {
        // A poisoned lock is safe: each change is one insertion or removal.
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, _)| since.elapsed() < KEPT_FOR);
        idle
    }
}

impl WorkerConnection {
    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, address: SocketAddr) -> hyper::Result<Self> {
        let mut client = http1::Builder::new();
        let (sender, connection) = client.max_buf_size(ANSWER_HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, address, _connection: AbortOnDropHandle::new(tokio::spawn(connection)) })
    }

    /// The answer's head; an error if the connection breaks before.
    async fn send(&mut self, request: http::Request<Body>) -> hyper::Result<http::Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// Includes the underlying cause, because the error itself says little.
fn broken(address: SocketAddr, error: &hyper::Error) -> WorkerFailure {
    if error.is_canceled() || error.is_closed() {
        return WorkerFailure::Unreachable(format!("{address}: it ended the connection before it was asked"));
    }
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    WorkerFailure::Broken(format!("{address}: {error}{cause}"))
}

#[cfg(test)]
#[path = "worker_client_tests.rs"]
mod tests;
