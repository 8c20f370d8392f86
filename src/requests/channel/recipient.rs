//! A member's connection to this one: HTTP/2, each request checked, limited and answered by its handler. A request that is reset is
//! cancelled: its handler ends.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{Request, Response, StatusCode};
use http_body_util::{Full, LengthLimitError};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use shardwise_core::Incarnation;
use tokio::time::{Instant, timeout};
use tracing::{Instrument, field};

use super::activity::Activity;
use super::body;
use super::wire::{self, ArrivedHead};
use super::{ByteStream, CONNECTION_WINDOW, HEAD_BYTES_MAX, PING_INTERVAL, PING_TIMEOUT, RECIPIENT_IDLE_MAX, STREAM_WINDOW};
use crate::membership::OwnershipContext;
use crate::requests::handlers::RequestHandlers;
use crate::requests::{Method, Undelivered, WITHIN_DEFAULT, WITHIN_MAX};
use crate::settings::RequestSettings;
use crate::telemetry::trace::{self, TRACEPARENT, TraceParent};

/// How long a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// The longest wait for the reply to a message, whatever its sender says.
const MESSAGE_WITHIN_MAX: Duration = Duration::from_hours(1);
/// The route of members' requests in traces, whichever member and handler it is.
const ROUTE: &str = "/{*path}";

/// The member that a connection leads to.
#[derive(Clone)]
pub(super) struct Called {
    /// Of the connection's beginning: a member that has joined again is another one.
    pub(super) incarnation: Incarnation,
    pub(super) member: Weak<OwnershipContext>,
    /// The caller has proven to be a member, by the secret or a certificate. Otherwise it is any process of this machine.
    pub(super) is_proven: bool,
}

/// Serves it to its end, which is near once `ending` is over. Dropping it ends the connection and what is in flight on it.
pub(super) async fn serve(stream: Box<dyn ByteStream>, called: Called, activity: &Arc<Activity>, ending: impl Future<Output = ()>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (called, active) = (called.clone(), activity.begin());
        // In a box, because hyper moves it several times before it is polled.
        Box::pin(async move {
            let _active = active;
            Ok::<_, Infallible>(respond(request, &called).await)
        })
    });
    let mut server = http2::Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .max_concurrent_streams(RequestSettings::STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEAD_BYTES_MAX)
        .auto_date_header(false)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let ends = async {
        tokio::select! {
            () = ending => {}
            () = activity.idle_for(RECIPIENT_IDLE_MAX) => {}
        }
    };
    // In a collection, which polls it when it is woken and not with each request.
    let mut ends = FuturesUnordered::from_iter([Box::pin(ends)]);
    tokio::select! {
        // A connection that fails affects no other.
        _ = connection.as_mut() => return,
        _ = ends.next() => {}
    }
    // It says that it ends, and what comes until the caller knows is answered.
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

async fn respond(request: Request<Incoming>, called: &Called) -> Response<Full<Bytes>> {
    let Some(member) = called.member.upgrade() else {
        return wire::refusal(StatusCode::SERVICE_UNAVAILABLE, "this worker is stopping");
    };
    let span = tracing::info_span!(
        "request",
        otel.name = span_name(request.method()),
        otel.kind = "server",
        http.request.method = request.method().as_str(),
        http.route = ROUTE,
        http.response.status_code = field::Empty
    );
    if let Some(parent) = TraceParent::of(request.headers().get_all(TRACEPARENT).iter().map(http::HeaderValue::as_bytes)) {
        trace::continues(&span, parent);
    }
    let answered = answered(request, called, &member).instrument(span.clone()).await;
    let response = answered.unwrap_or_else(|refusal| refusal);
    span.record("http.response.status_code", response.status().as_u16());
    response
}

/// The name of a request's span. Other methods are refused.
fn span_name(method: &http::Method) -> &'static str {
    match *method {
        http::Method::GET => "GET /{*path}",
        http::Method::POST => "POST /{*path}",
        _ => "HTTP /{*path}",
    }
}

async fn answered(
    request: Request<Incoming>,
    called: &Called,
    member: &Arc<OwnershipContext>,
) -> Result<Response<Full<Bytes>>, Response<Full<Bytes>>> {
    if member.life.incarnation() != called.incarnation {
        return Err(wire::undelivered(&Undelivered::NotMine(None)));
    }
    let (head, incoming) = request.into_parts();
    let head = ArrivedHead::parse(&head).map_err(|why| wire::refusal(StatusCode::BAD_REQUEST, why))?;
    // A caller that has proven nothing may be any program of this machine.
    if !called.is_proven && head.method() == Method::Post && !head.is_message() {
        let why = "without a peer token or certificates only GET is answered: set peer_token_file for all members";
        return Err(wire::refusal(StatusCode::FORBIDDEN, why));
    }
    let longest = if head.is_message() { MESSAGE_WITHIN_MAX } else { WITHIN_MAX };
    let within = head.within.unwrap_or(WITHIN_DEFAULT).min(longest);
    let until = Instant::now() + within;
    // Before the body is read, so that the memory for bodies has a limit.
    let turn = RequestHandlers::turn(member, head.to(), head.path(), until).await.map_err(|busy| wire::undelivered(&busy))?;
    let whole = if incoming.is_end_stream() { Vec::new() } else { arrived(incoming, &head, within).await? };
    let request = head.with_body(whole).map_err(|why| wire::refusal(StatusCode::BAD_REQUEST, why))?;
    Ok(match RequestHandlers::answer(member, request, until, turn).await {
        Ok(answer) => wire::answer(answer),
        Err(undelivered) => wire::undelivered(&undelivered),
    })
}

/// The key and the body, which may take only so long.
async fn arrived(incoming: Incoming, head: &ArrivedHead, within: Duration) -> Result<Vec<u8>, Response<Full<Bytes>>> {
    match timeout(BODY_WITHIN.min(within), body::whole(incoming, head.bytes_max())).await {
        Ok(Ok(whole)) => Ok(whole),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(wire::refusal(StatusCode::PAYLOAD_TOO_LARGE, &format!("a body has at most {} bytes", head.body_bytes_max())))
        }
        Ok(Err(_)) => Err(wire::refusal(StatusCode::BAD_REQUEST, "the body ends before its end")),
        Err(_) => Err(wire::refusal(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")),
    }
}
