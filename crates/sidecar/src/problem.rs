//! Errors in the format of RFC 9457.

use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use shardwise::ErrorKind;
use shardwise::requests::Answer;
use shardwise::requests::proven::{NO_TOKEN, PROOF_HEADER, ProofRefusal};
use utoipa::ToSchema;

/// The media type of every error.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// What went wrong and what to do about it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Which kind of problem: `urn:shardwise:problem:` and a name that does not change.
    #[serde(rename = "type")]
    kind: String,
    /// The kind, for people.
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What happened this time and what to do.
    detail: String,
    #[serde(skip)]
    header: Option<(HeaderName, &'static str)>,
}

pub(crate) type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    fn new(status: StatusCode, kind: &str, title: &'static str, detail: impl Into<String>) -> Self {
        Self { kind: format!("urn:shardwise:problem:{kind}"), title, status: status.as_u16(), detail: detail.into(), header: None }
    }

    fn with(self, name: HeaderName, value: &'static str) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", "The request cannot be understood", detail)
    }

    pub(crate) fn bad_key(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-key", "A key is not one", detail)
    }

    pub(crate) fn unauthorized() -> Self {
        let detail = "send the operator's token: Authorization: Bearer <token>";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "No token, or not the right one", detail).with(WWW_AUTHENTICATE, "Bearer")
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "This may not be done here", detail)
    }

    /// A request of a member without a valid proof.
    pub(crate) fn unproven(why: ProofRefusal) -> Self {
        Self::new(StatusCode::from_u16(why.status).unwrap_or(StatusCode::UNAUTHORIZED), why.kind, why.title, why.detail)
    }

    /// The answer to a member that asks for a proof although this one has no token.
    pub(crate) fn no_peer_token() -> Self {
        let detail = "no peer token is set here, so there is nothing to prove: --peer-token-file, peer_token_file";
        Self::forbidden(detail).with(HeaderName::from_static(PROOF_HEADER), NO_TOKEN)
    }

    /// The same as an answer between members.
    pub(crate) fn into_answer(self) -> Answer {
        Answer::bytes(PROBLEM_JSON, serde_json::to_vec(&self).unwrap_or_default()).with_status(self.status)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is no such thing", detail)
    }

    pub(crate) fn unknown_instance(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown-instance", "The group has no such member", detail)
    }

    pub(crate) fn method_not_allowed(allowed: &'static str) -> Self {
        let detail = format!("this path takes {allowed}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "The path does not take this method", detail).with(ALLOW, allowed)
    }

    pub(crate) fn too_slow(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "The body did not come in time", detail)
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", "This does not go with the group as it is", detail)
    }

    pub(crate) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large", detail)
    }

    pub(crate) fn media_type(wanted: &str) -> Self {
        let detail = format!("send Content-Type: {wanted}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type", "The body is of a type that is not read here", detail)
    }

    pub(crate) fn misdirected(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", "This is not the host that was asked for", detail)
    }

    pub(crate) fn too_many(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many", "Too much at once", detail).with(RETRY_AFTER, "1")
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Not now", detail).with(RETRY_AFTER, "1")
    }

    pub(crate) fn bad_gateway(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "bad-gateway", "The member gives no answer", detail)
    }

    pub(crate) fn too_late(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "too-late", "No answer in time", detail)
    }

    pub(crate) const fn status(&self) -> u16 {
        self.status
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", "The backend refuses", detail)
    }
}

impl From<shardwise::Error> for Problem {
    fn from(error: shardwise::Error) -> Self {
        let detail = error.to_string();
        match error.kind() {
            _ if error.is_retryable() => Self::unavailable(detail),
            ErrorKind::UnknownInstance => Self::unknown_instance(detail),
            ErrorKind::UnknownPolicy => Self::not_found(detail),
            ErrorKind::Conflict | ErrorKind::Settings | ErrorKind::OtherPolicy | ErrorKind::InstanceIdInUse => Self::conflict(detail),
            ErrorKind::Closed => Self::unavailable(detail),
            _ => Self::internal(detail),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let header = self.header.take();
        let mut response = (status, [(CONTENT_TYPE, PROBLEM_JSON)], serde_json::to_vec(&self).unwrap_or_default()).into_response();
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
