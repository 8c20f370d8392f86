//! A few paths that whoever can connect may read: probes and metrics of a program that is no sidecar. Nothing here can change anything. Hosts and origins
//! are looked at as in a sidecar, and who is idle for longest makes room, so that nobody keeps the probes out.

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
use crate::options::Limits;
use crate::page::guard;
use crate::problem::{Problem, Result};

/// Connections at a time, beside those that are kept for probes.
const CONNECTIONS: usize = 32;
/// How long a request's head may take, and a connection be idle.
const HEAD_WITHIN: Duration = Duration::from_secs(3);
/// How long a client may take nothing of what it is sent.
const STALL: Duration = Duration::from_secs(5);

/// What is read at a path.
#[derive(Debug)]
pub struct Reading {
    /// The HTTP status: 200, or 503 where that is bad news.
    pub status: u16,
    /// The type of the text.
    pub content_type: &'static str,
    /// What is told.
    pub text: String,
}

/// Paths, each with what tells how it stands there now. That must not take long.
pub type Readings = Vec<(&'static str, Box<dyn Fn() -> Reading + Send + Sync>)>;

/// Answers `GET` and `HEAD` at these paths, of which `/livez` and `/readyz` are answered however many others are busy, until it is dropped. `hosts` are names
/// and addresses by which it may be called, beside the address it is reached at, and `localhost` on loopback.
pub async fn serve_readings(listener: TcpListener, hosts: Vec<String>, readings: Readings) {
    let told = Arc::new((hosts, readings, LogThrottle::default()));
    let answer = move |request: Request| {
        let told = Arc::clone(&told);
        async move {
            let (hosts, readings, outsiders) = &*told;
            let mut response = answer(&request, hosts, readings, outsiders).unwrap_or_else(IntoResponse::into_response);
            guard(response.headers_mut());
            response
        }
    };
    let limits = Limits { head: HEAD_WITHIN, stall: STALL, ..Limits::default() };
    let context =
        ListenerContext { routes: Router::new().fallback(answer), connections: ConnectionTable::new(CONNECTIONS), limits, tls: None };
    serve(listener, context, CancellationToken::new()).await;
}

fn answer(request: &Request, hosts: &[String], readings: &Readings, outsiders: &LogThrottle<u16>) -> Result<Response> {
    comes_here(request, hosts).inspect_err(|problem| log_outsider(outsiders, problem))?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Problem::method_not_allowed("GET, HEAD"));
    }
    let found = readings.iter().find(|(path, _)| *path == request.uri().path());
    let known = || readings.iter().map(|(path, _)| *path).collect::<Vec<_>>().join(", ");
    let (_, read) = found.ok_or_else(|| Problem::not_found(format!("there is nothing at this path; there are: {}", known())))?;
    let Reading { status, content_type, text } = read();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = [(CONTENT_TYPE, HeaderValue::from_static(content_type)), (CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((status, headers, text).into_response())
}
