//! A request and its answer as HTTP/2 (RFC 9113): which header says what (`docs/reference/protocol.md`, section 9). The key of a request to
//! an owner stands before its body, because a header cannot be that long.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{StatusCode, Uri, response};
use http_body_util::Full;
use hyper::body::Bytes;
use percent_encoding::percent_decode_str;
use shardwise_core::{ClaimName, InstanceId, KEY_BYTES_MAX, OwnedKey, ShardKey};
use tracing::Span;

use crate::requests::handlers::{MESSAGE_BODY_BYTES_MAX, is_message};
use crate::requests::{
    ANSWERED, Addressee, Answer, BODY_BYTES_MAX, Method, PEER_HEADER, QUERY_BYTES_MAX, REFUSED, Request, TO_HEADER, UNKNOWN, Undelivered,
    encoded, is_path,
};
use crate::telemetry::trace::{self, TRACEPARENT};

/// How long the caller still waits, in milliseconds.
const WITHIN: HeaderName = HeaderName::from_static("shardwise-within-ms");
/// How many bytes of the body, at its beginning, are the key.
const KEY_BYTES: HeaderName = HeaderName::from_static("shardwise-key-bytes");
/// What the key's bytes are.
const KEY_KIND: HeaderName = HeaderName::from_static("shardwise-key-kind");
const NAME: HeaderName = HeaderName::from_static("shardwise-name");
const SESSION: HeaderName = HeaderName::from_static("shardwise-session");
/// The caller waits until a handler has begun, and no longer.
const TELL: HeaderName = HeaderName::from_static("shardwise-tell");
/// In an answer: the member's load, and the width of the request's key.
const LOAD: HeaderName = HeaderName::from_static("shardwise-load");
const WIDTH: HeaderName = HeaderName::from_static("shardwise-width");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// In a refusal: the member that the asked one believes to be the right one, percent-encoded.
const RIGHT_MEMBER: HeaderName = HeaderName::from_static("shardwise-holder");
const PEER: HeaderName = HeaderName::from_static(PEER_HEADER);
const TO: HeaderName = HeaderName::from_static(TO_HEADER);
/// The most characters of another member's error that are passed on.
const CAUSE_CHARS_MAX: usize = 512;
/// The status of a request that this member is not the right one for (RFC 9110, section 15.5.20).
pub(super) const NOT_MINE: StatusCode = StatusCode::MISDIRECTED_REQUEST;

/// The request as it is sent.
pub(super) fn request(request: &Request, within: Duration) -> Result<http::Request<Full<Bytes>>, http::Error> {
    let mut sent = http::Request::new(Full::new(whole(request)));
    *sent.method_mut() = if request.method == Method::Get { http::Method::GET } else { http::Method::POST };
    *sent.uri_mut() = uri(&request.path, request.query.as_deref())?;
    let headers = sent.headers_mut();
    headers.insert(TO, HeaderValue::from_static(request.to.as_str()));
    headers.insert(WITHIN, HeaderValue::from(coarse(u64::try_from(within.as_millis()).unwrap_or(u64::MAX))));
    if let Some(key) = &request.key {
        headers.insert(KEY_BYTES, HeaderValue::from(key.with_key(|key| key.bytes().len())));
        headers.insert(KEY_KIND, HeaderValue::from_static(key.kind()));
    }
    let texts = [
        (CONTENT_TYPE, request.content_type.as_deref()),
        (SESSION, request.session.as_deref()),
        (IDEMPOTENCY_KEY, request.idempotency_key.as_deref()),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            headers.insert(name, HeaderValue::from_str(text)?);
        }
    }
    if let Some(name) = &request.name {
        headers.insert(NAME, HeaderValue::from_str(&encoded(name.as_str()))?);
    }
    if request.tell {
        headers.insert(TELL, HeaderValue::from_static("1"));
    }
    if let Some(parent) = trace::name_of(&Span::current()) {
        headers.insert(TRACEPARENT, HeaderValue::from_str(&parent.to_string())?);
    }
    Ok(sent)
}

/// The number less up to a 64th of it, so that requests with one time limit send the same bytes, which HTTP/2 then sends as one.
const fn coarse(number: u64) -> u64 {
    let unsent = (u64::BITS - number.leading_zeros()).saturating_sub(7);
    number >> unsent << unsent
}

fn uri(path: &str, query: Option<&str>) -> Result<Uri, http::Error> {
    let whole = ["/", path, query.map_or("", |_| "?"), query.unwrap_or_default()].concat();
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = Some(http::uri::Authority::from_static("shardwise"));
    parts.path_and_query = Some(PathAndQuery::try_from(whole)?);
    Ok(Uri::from_parts(parts)?)
}

/// The key and the body.
fn whole(request: &Request) -> Bytes {
    match &request.key {
        None => Bytes::copy_from_slice(&request.body),
        Some(key) => key.with_key(|key| [key.bytes(), request.body.as_slice()].concat().into()),
    }
}

/// A request's head as it arrives, before its body is read.
pub(super) struct ArrivedHead {
    /// Everything but the key and the body.
    request: Request,
    /// Its length and its kind.
    key: Option<(usize, String)>,
    /// How long the caller waits; `None` if it does not say.
    pub(super) within: Option<Duration>,
}

impl ArrivedHead {
    /// # Errors
    ///
    /// What is wrong with it, for the answer 400.
    pub(super) fn parse(head: &Parts) -> Result<Self, &'static str> {
        let method = match head.method {
            http::Method::GET => Method::Get,
            http::Method::POST => Method::Post,
            _ => return Err("its method is neither GET nor POST"),
        };
        let path = head.uri.path().strip_prefix('/').filter(|path| is_path(path)).ok_or("its path is none")?;
        let query = head.uri.query();
        if query.is_some_and(|query| query.len() > QUERY_BYTES_MAX) {
            return Err("its query is too long");
        }
        let to = head.headers.get(TO).and_then(|to| Addressee::of_header(to.as_bytes()));
        let mut request = Request::new(method);
        request.to = to.ok_or("an unknown shardwise-to: upgrade this member")?;
        path.clone_into(&mut request.path);
        request.query = query.map(str::to_owned);
        let owned = |name: &HeaderName| text(&head.headers, name).map(str::to_owned);
        (request.content_type, request.idempotency_key) = (owned(&CONTENT_TYPE), owned(&IDEMPOTENCY_KEY));
        request.tell = text(&head.headers, &TELL) == Some("1");
        let (mut key, incomplete) = (None, "it does not say for which key, name or session it is");
        match request.to {
            Addressee::Owner => {
                let bytes = text(&head.headers, &KEY_BYTES).ok_or(incomplete)?;
                let bytes = bytes.parse().ok().filter(|bytes| *bytes <= KEY_BYTES_MAX).ok_or("its key is too long")?;
                key = Some((bytes, owned(&KEY_KIND).unwrap_or_default()));
            }
            Addressee::Holder => {
                let name = percent_decode_str(text(&head.headers, &NAME).ok_or(incomplete)?);
                let name = name.decode_utf8().map_err(|_| "its name is not text")?;
                request.name = Some(ClaimName::new(&*name).map_err(|_| "its name is none")?);
            }
            Addressee::Session => request.session = Some(owned(&SESSION).ok_or(incomplete)?),
            Addressee::Instance | Addressee::Any => {}
        }
        let within = text(&head.headers, &WITHIN).and_then(|within| within.parse().ok()).map(Duration::from_millis);
        Ok(Self { request, key, within })
    }

    pub(super) const fn to(&self) -> Addressee {
        self.request.to
    }

    pub(super) fn path(&self) -> &str {
        &self.request.path
    }

    pub(super) fn is_message(&self) -> bool {
        is_message(self.request.to, &self.request.path)
    }

    pub(super) const fn method(&self) -> Method {
        self.request.method
    }

    /// The most bytes that may follow: its key and its body.
    pub(super) fn bytes_max(&self) -> usize {
        self.body_bytes_max() + self.key.as_ref().map_or(0, |(bytes, _)| *bytes)
    }

    /// The most bytes of its body.
    pub(super) fn body_bytes_max(&self) -> usize {
        if self.is_message() { MESSAGE_BODY_BYTES_MAX } else { BODY_BYTES_MAX }
    }

    /// With the bytes that followed, at most [`ArrivedHead::bytes_max`].
    ///
    /// # Errors
    ///
    /// What is wrong with them, for the answer 400.
    pub(super) fn with_body(self, mut bytes: Vec<u8>) -> Result<Request, &'static str> {
        let mut request = self.request;
        if let Some((length, kind)) = self.key {
            if length > bytes.len() {
                return Err("it ends before its key does");
            }
            let body = bytes.split_off(length);
            request.key =
                Some(OwnedKey::from_parts(&kind, &bytes).ok_or("its key is of an unknown kind, or has another length than that kind has")?);
            bytes = body;
        }
        request.body = bytes;
        Ok(request)
    }
}

/// A handler's answer as it is sent.
pub(super) fn answer(answer: Answer) -> http::Response<Full<Bytes>> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = HeaderValue::try_from(answer.content_type).ok();
    let mut sent = http::Response::new(Full::new(answer.body.into()));
    *sent.status_mut() = status;
    sent.headers_mut().insert(PEER, HeaderValue::from_static(ANSWERED));
    if let Some(kind) = kind {
        sent.headers_mut().insert(CONTENT_TYPE, kind);
    }
    for (name, number) in [(LOAD, answer.load), (WIDTH, answer.width)] {
        if let Some(number) = number {
            sent.headers_mut().insert(name, HeaderValue::from(number));
        }
    }
    sent
}

/// The member's own refusal: no handler has seen the request.
pub(super) fn refusal(status: StatusCode, why: &str) -> http::Response<Full<Bytes>> {
    own(REFUSED, status, why)
}

/// What the member itself says instead of its handler.
fn own(by: &'static str, status: StatusCode, why: &str) -> http::Response<Full<Bytes>> {
    let mut sent = http::Response::new(Full::new(Bytes::copy_from_slice(why.as_bytes())));
    *sent.status_mut() = status;
    sent.headers_mut().insert(PEER, HeaderValue::from_static(by));
    sent.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    sent
}

/// A handler's side of [`Undelivered`] as it is sent.
pub(super) fn undelivered(undelivered: &Undelivered) -> http::Response<Full<Bytes>> {
    match undelivered {
        Undelivered::NotMine(right) => {
            let mut sent = refusal(NOT_MINE, "this member is not the one to ask");
            if let Some(right) = right.as_ref().and_then(|id| HeaderValue::from_str(&encoded(id.as_str())).ok()) {
                sent.headers_mut().insert(RIGHT_MEMBER, right);
            }
            sent
        }
        Undelivered::Busy(after) => {
            let mut sent = refusal(StatusCode::TOO_MANY_REQUESTS, "this member has as many requests as it takes at a time");
            if let Some(after) = after {
                sent.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
            }
            sent
        }
        Undelivered::Unsent(why) => refusal(StatusCode::SERVICE_UNAVAILABLE, why),
        Undelivered::Unproven(why) | Undelivered::Barred(why) => refusal(StatusCode::FORBIDDEN, why),
        Undelivered::Unknown(why) => own(UNKNOWN, StatusCode::BAD_GATEWAY, why),
    }
}

/// What a complete answer says.
pub(super) fn outcome(head: &response::Parts, body: Vec<u8>) -> Result<Answer, Undelivered> {
    let is_by = |by: &str| head.headers.get(PEER).is_some_and(|value| value == by);
    if is_by(ANSWERED) {
        let kind = text(&head.headers, &CONTENT_TYPE).unwrap_or("application/octet-stream");
        // Only numbers count; they are clamped where they are used.
        let number = |name: &HeaderName| text(&head.headers, name).and_then(|number| number.parse().ok());
        let (load, width) = (number(&LOAD), number(&WIDTH));
        return Ok(Answer { load, width, ..Answer::bytes(kind, body).with_status(head.status.as_u16()) });
    }
    // HTTP/2 itself answers so, before a request reaches what knows this header.
    if head.status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE && !is_by(REFUSED) {
        return Err(Undelivered::Barred("its path, query and headers together are too long".into()));
    }
    let why: String = String::from_utf8_lossy(&body).chars().take(CAUSE_CHARS_MAX).collect();
    if is_by(UNKNOWN) {
        return Err(Undelivered::Unknown(why));
    }
    if !is_by(REFUSED) {
        return Err(Undelivered::Unknown("its answer is not one of a member".into()));
    }
    Err(match head.status {
        NOT_MINE => {
            let right = text(&head.headers, &RIGHT_MEMBER).and_then(|right| percent_decode_str(right).decode_utf8().ok());
            Undelivered::NotMine(right.and_then(|right| InstanceId::new(&*right).ok()))
        }
        StatusCode::TOO_MANY_REQUESTS => {
            let after = text(&head.headers, &RETRY_AFTER).and_then(|after| after.parse().ok());
            Undelivered::Busy(after.map(Duration::from_secs))
        }
        // A body that came too slowly may come in time with another attempt.
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::REQUEST_TIMEOUT => Undelivered::Unsent(why),
        _ => Undelivered::Barred(why),
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests;
