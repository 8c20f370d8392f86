//! Read-only paths for any client that can connect: probes and metrics of a program that is not a sidecar. Hosts and origins are checked
//! as in a sidecar, and the longest idle connection makes room for a new one, so that probes always get through.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use shardwise::discovery::LogThrottle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::connection_table::ConnectionTable;
use crate::connections::{ListenerContext, serve};
use crate::gate::{comes_here, log_outsider};
use crate::limits::Limits;
use crate::page::guard;
use crate::problem::{NOT_FOUND, Problem, Result};

/// The most connections at a time, besides those reserved for probes.
const CONNECTIONS: usize = 32;
/// The timeout of a request's head, and of an idle connection.
const HEAD_WITHIN: Duration = Duration::from_secs(3);
/// How long a client may receive nothing of its answer.
const STALL: Duration = Duration::from_secs(5);

/// The content of a path.
#[derive(Debug)]
pub struct Reading {
    /// The HTTP status: 200, or 503 for a failure.
    pub status: u16,
    /// The content type of the text.
    pub content_type: &'static str,
    /// The text.
    pub text: String,
}

/// Paths, each with a function that returns its present content and must be fast.
pub type Readings = Vec<(&'static str, Box<dyn Fn() -> Reading + Send + Sync>)>;

/// Answers `GET` and `HEAD` at these paths until it is dropped; `/livez` and `/readyz` are answered even if all other connections are
/// busy. `hosts` are names and addresses by which it may be called, besides its own address and, on loopback, `localhost`.
pub async fn serve_readings(listener: TcpListener, hosts: Vec<String>, readings: Readings) {
    let shared = Arc::new((hosts, readings, LogThrottle::default()));
    let answer = move |request: Request| {
        let shared = Arc::clone(&shared);
        async move {
            let (hosts, readings, outsiders) = &*shared;
            let mut response = answer(&request, hosts, readings, outsiders).unwrap_or_else(IntoResponse::into_response);
            guard(response.headers_mut());
            response
        }
    };
    let limits = Limits { head: HEAD_WITHIN, stall: STALL, ..Limits::default() };
    let (routes, connections) = (Router::new().fallback(answer), ConnectionTable::new(CONNECTIONS));
    let context = ListenerContext { routes, connections, limits, tls: None, members: None };
    serve(listener, context, CancellationToken::new()).await;
}

fn answer(request: &Request, hosts: &[String], readings: &Readings, outsiders: &LogThrottle<u16>) -> Result<Response> {
    comes_here(request, hosts).inspect_err(|problem| log_outsider(outsiders, problem))?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Problem::method_not_allowed("GET, HEAD"));
    }
    let found = readings.iter().find(|(path, _)| *path == request.uri().path());
    let known = || readings.iter().map(|(path, _)| *path).collect::<Vec<_>>().join(", ");
    let (_, read) = found.ok_or_else(|| NOT_FOUND.because(format!("there is nothing at this path; there are: {}", known())))?;
    let Reading { status, content_type, text } = read();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = [(CONTENT_TYPE, HeaderValue::from_static(content_type)), (CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((status, headers, text).into_response())
}
