//! A request to a member as it comes over HTTP, and its answer as it goes back.

use axum::body::{Body, HttpBody};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use shardwise::requests::{self, Answer, QUERY_BYTES_MAX, is_path};

use crate::app::App;
use crate::bodies::Room;
use crate::body;
use crate::page;
use crate::problem::{BAD_REQUEST, Problem, Result};

/// The parts of a caller's request that are forwarded: method, path, query, the body and its type. Returns the memory that the body takes,
/// too. The addressee is not read from a header, which a client could set.
///
/// The member's path follows that many parts of the path, undecoded.
pub(crate) async fn taken(app: &App, head: &Parts, body: Body, parts_before: usize) -> Result<(requests::Request, Room)> {
    let path = head.uri.path().splitn(parts_before + 1, '/').nth(parts_before).unwrap_or_default();
    if !is_path(path) {
        return Err(BAD_REQUEST.because(
            "a member's path has parts of letters, digits and -._~ with single slashes between them, nothing encoded, 256 bytes at most",
        ));
    }
    let method = match head.method {
        Method::GET => requests::Method::Get,
        Method::POST => requests::Method::Post,
        _ => return Err(Problem::method_not_allowed("GET, POST")),
    };
    if method == requests::Method::Post {
        page::may_act(app, &head.headers)?;
        tracing::info!(target: page::LOG, path, "an action is forwarded to a member, over HTTP");
    }
    let query = head.uri.query();
    if query.is_some_and(|query| query.len() > QUERY_BYTES_MAX) {
        return Err(BAD_REQUEST.because(format!("a query has at most {QUERY_BYTES_MAX} bytes")));
    }
    if method == requests::Method::Get && !body.is_end_stream() {
        return Err(BAD_REQUEST.because("a GET has no body here; send what it takes in the query, or POST"));
    }
    let mut request = requests::Request::new(method);
    (request.path, request.query) = (path.to_owned(), query.map(str::to_owned));
    request.content_type = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
    let (body, room) = body::whole(app, body).await?;
    // A request that is being forwarded can no longer be dropped.
    room.is_whole();
    request.body = body;
    Ok((request, room))
}

/// The HTTP answer. Its headers prevent a browser from treating it as a page of this sidecar.
pub(crate) fn sent(answer: Answer) -> Response {
    let guards =
        [(X_CONTENT_TYPE_OPTIONS, "nosniff"), (CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"), (CACHE_CONTROL, "no-store")];
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = HeaderValue::from_str(&answer.content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    (status, [(CONTENT_TYPE, kind)], guards, answer.body).into_response()
}
