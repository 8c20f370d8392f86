//! Errors in the format of RFC 9457.

use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use shardwise::ErrorKind;
use utoipa::ToSchema;

/// The media type of every error.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// A kind of problem: its status, the name that does not change, and its title.
pub(crate) struct Kind(u16, &'static str, &'static str);

pub(crate) const BAD_REQUEST: Kind = Kind(400, "bad-request", "The request cannot be understood");
pub(crate) const BAD_KEY: Kind = Kind(400, "bad-key", "The key is not valid");
pub(crate) const BAD_SESSION: Kind = Kind(400, "bad-session", "This is not a session");
pub(crate) const UNAUTHORIZED: Kind = Kind(401, "unauthorized", "The token is missing or wrong");
pub(crate) const FORBIDDEN: Kind = Kind(403, "forbidden", "The request is not allowed here");
pub(crate) const NOT_FOUND: Kind = Kind(404, "not-found", "Not found");
pub(crate) const UNKNOWN_INSTANCE: Kind = Kind(404, "unknown-instance", "The group has no such member");
pub(crate) const UNKNOWN_NAME: Kind = Kind(404, "unknown-name", "No member holds the name");
const METHOD_NOT_ALLOWED: Kind = Kind(405, "method-not-allowed", "The path does not allow this method");
pub(crate) const TOO_SLOW: Kind = Kind(408, "too-slow", "The body did not arrive in time");
pub(crate) const CONFLICT: Kind = Kind(409, "conflict", "The request conflicts with the policy or with the state of the group");
pub(crate) const LEASE_MISSING: Kind = Kind(409, "lease-missing", "This needs the worker's lease");
pub(crate) const LEASE_TAKEN: Kind = Kind(409, "lease-taken", "Another lease is live");
pub(crate) const LEASE_ENDED: Kind = Kind(410, "lease-ended", "The lease is not live");
pub(crate) const SESSION_ENDED: Kind = Kind(410, "session-ended", "The session has ended");
pub(crate) const TOO_LARGE: Kind = Kind(413, "too-large", "The body is too large");
pub(crate) const MEDIA_TYPE: Kind = Kind(415, "media-type", "The media type of the body is not supported");
pub(crate) const MISDIRECTED: Kind = Kind(421, "misdirected", "The request is for another host");
pub(crate) const BAD_WIDTH: Kind = Kind(422, "width", "The width is out of range");
pub(crate) const TOO_MANY: Kind = Kind(429, "too-many", "Too many requests");
const FAILED: Kind = Kind(500, "failed", "The backend refuses");
pub(crate) const UNREACHABLE: Kind = Kind(502, "unreachable-instance", "The member cannot be reached, and has done nothing");
pub(crate) const NO_WORKER: Kind = Kind(502, "unreachable-worker", "The member's worker cannot be reached, and has done nothing");
pub(crate) const BAD_GATEWAY: Kind = Kind(502, "bad-gateway", "The member does not answer");
pub(crate) const CANCELLED: Kind = Kind(502, "cancelled", "Cancelled, and it is unknown if it was handled");
pub(crate) const UNAVAILABLE: Kind = Kind(503, "unavailable", "Temporarily unavailable");
pub(crate) const NOT_HANDLED: Kind = Kind(503, "not-handled", "No member has taken the request, and nothing was done");
pub(crate) const TOO_LATE: Kind = Kind(504, "too-late", "No answer in time");

impl Kind {
    /// The problem of this kind; `detail` says what happened this time and what to do.
    pub(crate) fn because(self, detail: impl Into<String>) -> Problem {
        let Self(status, kind, title) = self;
        let header = (matches!(status, 429 | 503) || kind == "lease-taken").then_some((RETRY_AFTER, "1"));
        Problem { kind: format!("urn:shardwise:problem:{kind}"), title, status, detail: detail.into(), header }
    }
}

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
    pub(crate) fn with(self, name: HeaderName, value: &'static str) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    pub(crate) fn method_not_allowed(allowed: &'static str) -> Self {
        METHOD_NOT_ALLOWED.because(format!("this path takes {allowed}")).with(ALLOW, allowed)
    }

    pub(crate) const fn status(&self) -> u16 {
        self.status
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether the request was refused and has stored nothing. After every other problem it may have been carried out.
    pub(crate) const fn is_refusal(&self) -> bool {
        self.status < 500
    }
}

impl From<shardwise::Error> for Problem {
    fn from(error: shardwise::Error) -> Self {
        let kind = match error.kind() {
            _ if error.is_retryable() => UNAVAILABLE,
            ErrorKind::UnknownInstance => UNKNOWN_INSTANCE,
            ErrorKind::UnknownPolicy => NOT_FOUND,
            ErrorKind::Conflict | ErrorKind::Settings | ErrorKind::OtherPolicy | ErrorKind::InstanceIdInUse => CONFLICT,
            ErrorKind::Closed => UNAVAILABLE,
            _ => FAILED,
        };
        kind.because(error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let header = self.header.take().map(|(name, value)| [(name, HeaderValue::from_static(value))]);
        (status, [(CONTENT_TYPE, PROBLEM_JSON)], header, serde_json::to_vec(&self).unwrap_or_default()).into_response()
    }
}
