//! Admission of requests: the right host, no page of another origin, the rate limit, and the token if one is set.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use shardwise::discovery::LogThrottle;
use shardwise::trace::{self, TRACEPARENT, TraceParent};
use tracing::{Instrument, Span, field};

use crate::app::App;
use crate::ask;
use crate::connections::{ConnectionFacts, OPEN};
use crate::leases;
use crate::page;
use crate::problem::{BAD_REQUEST, FORBIDDEN, MISDIRECTED, Problem, Result, UNAUTHORIZED};
use crate::target::port_of;
use crate::token::Token;

/// Lets a request through or refuses it, and counts both.
pub(crate) async fn gate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    // The route instead of the path, so that no key becomes a label.
    let route = request.extensions().get::<MatchedPath>().map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let admitted = admit(&app, &request, &route);
    let span = span_of(&request, &route);
    let mut response = match admitted {
        Ok(()) => {
            // A remote span is adopted only from admitted callers, because it decides whether this request is recorded.
            if let Some(parent) = TraceParent::of(request.headers().get_all(TRACEPARENT).iter().map(HeaderValue::as_bytes)) {
                trace::continues(&span, parent);
            }
            next.run(request).instrument(span.clone()).await
        }
        Err(problem) => problem.into_response(),
    };
    page::guard(response.headers_mut());
    span.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        trace::failed(&span, response.status().as_str());
    }
    let status = response.status().as_str().to_owned();
    metrics::counter!(crate::metrics::REQUESTS.name, "route" => route, "status" => status).increment(1);
    response
}

/// The span of a request: its method and route, and nothing of its path, query or headers. Frequent requests, by probes and browsers, are
/// at debug level.
fn span_of(request: &Request, route: &str) -> Span {
    let method = match *request.method() {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        // Any other method, to keep the number of values small.
        _ => "_OTHER",
    };
    if route.starts_with("/v1/") {
        return tracing::info_span!(
            "request",
            otel.name = format!("{method} {route}"),
            otel.kind = "server",
            otel.status_code = field::Empty,
            "error.type" = field::Empty,
            http.request.method = method,
            http.route = route,
            http.response.status_code = field::Empty
        );
    }
    tracing::debug_span!(
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = field::Empty,
        "error.type" = field::Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = field::Empty
    )
}

/// Checks that a request is meant for this listener and does not come from a page of another origin. `hosts` are allowed besides the local
/// address.
pub(crate) fn comes_here(request: &Request, hosts: &[String]) -> Result<()> {
    let at = request.extensions().get::<ConnectionFacts>().map(|connection| connection.local);
    let local = at.map(|at| at.ip());
    let is_ours = |text: &str| host_of(text).is_some_and(|host| is_ours(&host, local, hosts));
    check_host(request, is_ours)?;
    check_origin(request.headers(), is_ours, at.map(|at| at.port()))
}

fn admit(app: &App, request: &Request, route: &str) -> Result<()> {
    let from_here = comes_here(request, &app.options.hosts).and_then(|()| check_site(request.headers(), route));
    from_here.inspect_err(|problem| log_outsider(&app.log.outsiders, problem))?;
    let path = request.uri().path();
    if OPEN.contains(&path) || page::is_file(path) {
        return Ok(());
    }
    let (options, shown) = (&app.options, bearer(request.headers()));
    let is_shown = |token: &Option<Token>| token.as_ref().zip(shown).is_some_and(|(token, shown)| token.is(shown));
    let (is_for_workers, is_for_callers) = (leases::is_for_workers(route), ask::is_for_callers(route));
    let is_kept = is_for_workers && options.worker_token.is_some() || is_for_callers && options.caller_token.is_some();
    let by_others = is_for_workers && is_shown(&options.worker_token) || is_for_callers && is_shown(&options.caller_token);
    let is_open = options.token.is_none() && !is_kept;
    if !(is_open || by_others || is_shown(&options.token)) {
        if is_shown(&options.caller_token) {
            return Err(FORBIDDEN.because("the callers' token admits to requests to members alone; this needs another token"));
        }
        if is_shown(&options.worker_token) {
            return Err(
                FORBIDDEN.because("the worker's token admits to leases, grants, enter, names and owned alone; this needs the operator's")
            );
        }
        let acts = !matches!(*request.method(), Method::GET | Method::HEAD);
        if let Some(refused) = app.log.intruders.another(acts) {
            let may_act = if acts { " that may have been actions" } else { "" };
            tracing::warn!(target: page::LOG, refused, "requests over HTTP{may_act} had no token, or not the right one; one line a minute at most");
        }
        return Err(UNAUTHORIZED
            .because("send the operator's token, or for a worker's routes the worker's and for requests a caller's: Authorization: Bearer <token>")
            .with(WWW_AUTHENTICATE, "Bearer"));
    }
    // After the token, so that a client without it cannot use up the rate of admitted clients.
    if leases::keeps_lease(request.method(), route) { app.admit_lease_call() } else { app.admit() }
}

/// Checks the header `host`: a foreign page whose name resolves to this address sends its own name (DNS rebinding).
fn check_host(request: &Request, is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host.to_str().map_err(|_| BAD_REQUEST.because("the header Host is not text"))?),
        (Some(_), Some(_)) => return Err(BAD_REQUEST.because("there is more than one header Host")),
        (None, _) if request.version() < Version::HTTP_11 => None,
        (None, _) => return Err(BAD_REQUEST.because("there is no header Host")),
    };
    let in_line = request.uri().authority().is_none_or(|authority| is_ours(authority.as_str()));
    if in_line && host.is_none_or(&is_ours) {
        return Ok(());
    }
    Err(MISDIRECTED
        .because("this host is not served here: call 127.0.0.1, localhost or the address it listens on, or start it with --allow-host"))
}

fn check_origin(headers: &HeaderMap, is_ours: impl Fn(&str) -> bool, port: Option<u16>) -> Result<()> {
    let asked = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let foreign = |origin: &HeaderValue| {
        let text = origin.to_str().unwrap_or_default();
        let authority = text.strip_prefix("http://").map(|rest| (rest, 80)).or_else(|| Some((text.strip_prefix("https://")?, 443)));
        // Another program on this machine has the same host and another port.
        !authority.is_some_and(|(rest, usual)| {
            let theirs = port_of(rest, usual);
            is_ours(rest) && theirs.is_some() && (theirs == port || theirs == port_of(asked, usual))
        })
    };
    if headers.get_all(ORIGIN).iter().any(foreign) {
        return Err(FORBIDDEN.because("pages of other origins may not send requests; serve the page from here"));
    }
    Ok(())
}

/// Checks the headers in which browsers state a request's origin, and which a page cannot forge. A request caused by a page of another
/// origin reaches no handler, even if it would otherwise count as a plain request. Routes to workers' handlers also refuse navigation,
/// because links lead there too.
fn check_site(headers: &HeaderMap, route: &str) -> Result<()> {
    let leads_to_handlers = ask::leads_to_handlers(route);
    let is_ours = |site: &HeaderValue| site == "same-origin" || site == "none" && !leads_to_handlers;
    if !route.starts_with("/v1/") || headers.get_all(page::FETCH_SITE).iter().all(is_ours) {
        return Ok(());
    }
    Err(FORBIDDEN.because("a browser may send this only from this sidecar's page"))
}

/// Logs from time to time that a request was for another host or from another origin. The names that it used are not logged.
pub(crate) fn log_outsider(outsiders: &LogThrottle<u16>, problem: &Problem) {
    let status = problem.status();
    if let Some(refused) = outsiders.another(status) {
        tracing::warn!(target: page::LOG, status, refused, why = problem.detail(), "requests over HTTP were not for this host, or of another page; one line a minute at most");
    }
}

/// The host without the port; `None` if the text is invalid.
fn host_of(text: &str) -> Option<String> {
    let authority = Authority::from_str(text).ok().filter(|authority| !authority.as_str().contains('@'))?;
    Some(authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase())
}

/// Names can be made to resolve to any address, so only configured names are allowed, and `localhost` on loopback. Addresses are compared.
fn is_ours(host: &str, local: Option<IpAddr>, hosts: &[String]) -> bool {
    let on_loopback = local.is_none_or(|local| local.to_canonical().is_loopback());
    match host.parse::<IpAddr>() {
        Ok(address) => {
            let is_it = |other: IpAddr| other.to_canonical() == address.to_canonical();
            // A configured address may lead here by a mapping, which has another local address.
            on_loopback && address.is_loopback()
                || local.is_some_and(is_it)
                || hosts.iter().filter_map(|known| known.parse().ok()).any(is_it)
        }
        Err(_) => on_loopback && host == "localhost" || hosts.iter().any(|known| known.eq_ignore_ascii_case(host)),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_connection_and_set_names_are_ours() {
        let hosts = ["side.example", "203.0.113.7", "fd00::7"].map(str::to_owned);
        let ours = |text: &str, local: &str| host_of(text).is_some_and(|host| is_ours(&host, local.parse().ok(), &hosts));
        for (text, local) in [
            ("127.0.0.1:80", "127.0.0.1"),
            ("LOCALHOST", "::1"),
            ("localhost:1", "127.0.0.1"),
            ("[::1]:80", "127.0.0.1"),
            ("10.0.0.7", "10.0.0.7"),
            ("10.0.0.7:8", "::ffff:10.0.0.7"),
            ("Side.Example:443", "10.0.0.7"),
            ("203.0.113.7:8087", "10.0.0.7"),
            ("[fd00::7]:8087", "10.0.0.7"),
        ] {
            assert!(ours(text, local), "{text} at {local}");
        }
        for (text, local) in [
            ("evil.example", "127.0.0.1"),
            ("localhost.evil.example", "127.0.0.1"),
            ("localhost", "10.0.0.7"),
            ("127.0.0.1", "10.0.0.7"),
            ("10.0.0.8", "10.0.0.7"),
            ("203.0.113.8", "10.0.0.7"),
            ("", "127.0.0.1"),
            ("user@127.0.0.1", "127.0.0.1"),
            ("127.0.0.1:80/x", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("side.example.", "127.0.0.1"),
        ] {
            assert!(!ours(text, local), "{text} at {local}");
        }
    }

    #[test]
    fn a_page_of_another_port_is_another_origin() {
        let passes = |origin: &str, host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, origin.parse().unwrap());
            headers.insert(HOST, host.parse().unwrap());
            let is_ours = |text: &str| host_of(text).is_some_and(|host| host == "localhost" || host == "side.example");
            check_origin(&headers, is_ours, Some(8087)).is_ok()
        };
        for (origin, host) in [
            ("http://localhost:8087", "localhost:8087"),
            ("http://localhost:8087", "localhost"),
            // A proxy on another address that passes the name on.
            ("https://side.example", "side.example"),
            ("https://side.example:8443", "side.example:8443"),
            ("http://localhost:9000", "localhost:9000"),
        ] {
            assert!(passes(origin, host), "{origin} at {host}");
        }
        for (origin, host) in [
            ("http://localhost:3000", "localhost:8087"),
            ("http://localhost", "localhost:8087"),
            ("https://side.example:8443", "side.example"),
            ("http://evil.example:8087", "localhost:8087"),
            ("http://localhost:x", "localhost:8087"),
            ("http://localhost:99999", "localhost"),
            ("null", "localhost:8087"),
        ] {
            assert!(!passes(origin, host), "{origin} at {host}");
        }
    }
}
