//! A request to a member as it comes over HTTP, and its answer as it goes back.

use axum::body::{Body, HttpBody};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use shardwise::InstanceId;
use shardwise::requests::{self, Answer, CONTENT_TYPE_BYTES_MAX, QUERY_BYTES_MAX, encoded, is_path};

use crate::actions::may_send;
use crate::app::App;
use crate::bodies::Room;
use crate::body;
use crate::cancel_table::CancelScope;
use crate::problem::{BAD_REQUEST, Problem, Result};
use crate::request_terms::RequestTerms;

/// The member that has answered, percent-encoded.
const INSTANCE: HeaderName = HeaderName::from_static("shardwise-instance");

/// The parts of a caller's request that are forwarded: method, path, query, the body and its type, and the key by which it may be repeated.
/// Returns what else it says, the scope in which it may be cancelled, which includes its body, and the memory that the body takes. The
/// addressee is not read from a header, which a client could set.
///
/// The member's path follows that many parts of the path, undecoded.
pub(crate) async fn taken<'a>(
    app: &'a App,
    policy: &str,
    head: &Parts,
    body: Body,
    parts_before: usize,
) -> Result<(requests::Request, RequestTerms, CancelScope<'a>, Room)> {
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
        may_send(app, &head.headers)?;
    }
    let query = head.uri.query();
    if query.is_some_and(|query| query.len() > QUERY_BYTES_MAX) {
        return Err(BAD_REQUEST.because(format!("a query has at most {QUERY_BYTES_MAX} bytes")));
    }
    if method == requests::Method::Get && !body.is_end_stream() {
        return Err(BAD_REQUEST.because("a GET has no body here; send what it takes in the query, or POST"));
    }
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    // With tabs or more bytes the channel would not take it, and then the outcome might look unknown.
    if content_type.is_some_and(|kind| kind.len() > CONTENT_TYPE_BYTES_MAX || kind.contains('\t')) {
        return Err(BAD_REQUEST.because(format!("a Content-Type has at most {CONTENT_TYPE_BYTES_MAX} bytes, none of them a tab")));
    }
    let mut terms = RequestTerms::of(&head.headers)?;
    let mut request = requests::Request::new(method);
    (request.path, request.query) = (path.to_owned(), query.map(str::to_owned));
    request.content_type = content_type.map(str::to_owned);
    request.idempotency_key = terms.idempotency_key.take();
    let scope = app.cancels.begin(policy, terms.id.take())?;
    let (body, room) = scope.run(body::whole(app, body)).await?;
    // A request that is being forwarded can no longer be dropped.
    room.is_whole();
    request.body = body;
    Ok((request, terms, scope, room))
}

/// The HTTP answer, with the member that gave it. Its headers prevent a browser from treating it as a page of this sidecar.
pub(crate) fn sent(by: &InstanceId, answer: Answer) -> Response {
    let guards =
        [(X_CONTENT_TYPE_OPTIONS, "nosniff"), (CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"), (CACHE_CONTROL, "no-store")];
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = HeaderValue::from_str(&answer.content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    (status, [(INSTANCE, encoded(by.as_str()))], [(CONTENT_TYPE, kind)], guards, answer.body).into_response()
}
