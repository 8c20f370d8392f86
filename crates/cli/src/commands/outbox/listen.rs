//! `--listen`: `/livez`, `/readyz` and `/metrics` of a publisher, for whatever watches it. Nothing here can change anything, and nobody who
//! connects can hold the publisher up: few connections, short ones, one answer each.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde_json::json;
use shardwise::{ServiceState, Sharding as _, ShardingService};
use shardwise_outbox::PublisherStats;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::exit::{Code, Failure, Result};

/// Connections at the same time; more are closed at once.
const CONNECTIONS: usize = 32;
/// From the first byte to the last, and the part of it for the request's head.
const WITHIN: Duration = Duration::from_secs(10);
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// The most bytes of a request's head.
const HEAD_BYTES: usize = 16 * 1024;
/// How often the exporter tidies up.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// After so many TTLs without a look around, and at least the time below, a publisher hangs.
const TTLS_MAX: u32 = 10;
const TURN_MIN: Duration = Duration::from_secs(30);
/// Upper ends of the histograms' steps, in seconds.
const BUCKETS: [f64; 14] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// Where to listen: an address with a port, or a port alone, which is reached from this machine only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address(SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let port = text.strip_prefix(':').unwrap_or(text).parse().map(loopback);
        let address = port.ok().or_else(|| text.parse().ok());
        address
            .map(Self)
            .ok_or_else(|| "write a port, such as 9600, for this machine alone, or an IP address and a port, such as 0.0.0.0:9600".into())
    }
}

/// What the answers tell of.
pub(super) struct Told {
    pub(super) stats: PublisherStats,
    pub(super) sharding: ShardingService,
    pub(super) metrics: PrometheusHandle,
}

/// Listens, and counts from now on: before the publisher asks for its counters.
pub(super) async fn bind(address: Address) -> Result<(TcpListener, PrometheusHandle)> {
    let listener = TcpListener::bind(address.0).await.map_err(|error| Failure::io(format_args!("listen on {}", address.0), &error))?;
    let failed = |error: &dyn std::fmt::Display| Failure::new(Code::Refused, format!("the metrics cannot be set up: {error}"));
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS);
    let handle = builder.and_then(PrometheusBuilder::install_recorder).map_err(|error| failed(&error))?;
    Ok((listener, handle))
}

/// Answers until the handle is dropped.
pub(super) fn serve(listener: TcpListener, told: Told) -> AbortOnDropHandle<()> {
    let (told, free) = (Arc::new(told), Arc::new(Semaphore::new(CONNECTIONS)));
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut upkeep = interval(UPKEEP_EVERY);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        // Dropped, and so closed, if there are too many.
                        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else { continue };
                        let told = Arc::clone(&told);
                        tokio::spawn(async move {
                            // An answer that is not taken in time, or a request that is none, concerns nobody else.
                            let _ = timeout(WITHIN, answer(stream, told)).await;
                            drop(permit);
                        });
                    }
                    // Out of descriptors, mostly: it passes or it does not, but the publisher goes on.
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
                _ = upkeep.tick() => told.metrics.run_upkeep(),
            }
        }
    }))
}

async fn answer(stream: TcpStream, told: Arc<Told>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(request.method(), request.uri().path(), &told);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_BYTES).keep_alive(false);
    server.serve_connection(TokioIo::new(stream), service).await
}

fn respond(method: &Method, path: &str, told: &Told) -> Response<String> {
    let (status, kind, text) = match (method, path) {
        (&Method::GET | &Method::HEAD, "/livez") => alive(told),
        (&Method::GET | &Method::HEAD, "/readyz") => ready(told),
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", told.metrics.render()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, PLAIN, "there are /livez, /readyz and /metrics\n".into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET\n".into()),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// Whether the publisher looks around; before its first time it is about to.
///
/// # Errors
///
/// For how long it has not.
pub(super) fn turns(stats: &PublisherStats, sharding: &ShardingService) -> std::result::Result<(), Duration> {
    let longest = TURN_MIN.max(sharding.timing().ttl * TTLS_MAX);
    stats.turned_ago().filter(|ago| *ago > longest).map_or(Ok(()), Err)
}

fn alive(told: &Told) -> (StatusCode, &'static str, String) {
    match turns(&told.stats, &told.sharding) {
        Ok(()) => (StatusCode::OK, PLAIN, "alive\n".into()),
        Err(ago) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("the publisher has done nothing for {ago:.0?}\n")),
    }
}

/// Ready as a member that takes its share and holds something of it. A sink that is down is told, and does not make it unready: another
/// publisher could do no better.
fn ready(told: &Told) -> (StatusCode, &'static str, String) {
    let (now, state) = (told.stats.snapshot(), told.sharding.state());
    let takes_part = matches!(state, ServiceState::Active | ServiceState::Stale | ServiceState::Unsharded);
    let ready = takes_part && (now.held_slots > 0 || now.wanted_slots == 0);
    let body = json!({
        "ready": ready, "state": state.as_str(), "held_slots": now.held_slots, "wanted_slots": now.wanted_slots,
        "destination_down": now.destination_down, "last_error": now.last_error,
    });
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, "application/json", format!("{body}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_for_this_machine() {
        for (text, address) in
            [("9600", "127.0.0.1:9600"), (":9600", "127.0.0.1:9600"), ("0.0.0.0:9600", "0.0.0.0:9600"), ("[::1]:1", "[::1]:1")]
        {
            assert_eq!(text.parse(), Ok(Address(address.parse().unwrap())), "{text}");
        }
        for text in ["", "localhost:9600", "127.0.0.1", "70000"] {
            assert!(text.parse::<Address>().unwrap_err().starts_with("write a port"), "{text}");
        }
    }
}
