//! What the local worker sees of a member's request: the method, the path and these headers, and nothing else of its sender.

use axum::body::Body;
use axum::http;
use axum::http::header::HOST;
use shardwise::core::OwnedKey;
use shardwise::requests::{Method, Request, TO_HEADER, encoded};
use shardwise::trace::{self, TRACEPARENT};
use shardwise::{Epoch, ShardKey as _};
use tracing::Span;

/// The key of a request to its owner, percent-encoded. It is left out if it is longer than many servers take a header.
const KEY_HEADER: &str = "shardwise-key";
pub(crate) const KEY_HEADER_BYTES_MAX: usize = 8 << 10;
/// The name of a request to its holder, percent-encoded, and the id of a session.
const NAME_HEADER: &str = "shardwise-name";
const SESSION_HEADER: &str = "shardwise-session";
/// The fence of the key under exclusive ownership, and the epoch of a name.
const SLOT_HEADER: &str = "shardwise-slot";
const EPOCH_HEADER: &str = "shardwise-epoch";
const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";

/// The claim under which the worker handles a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerFence {
    /// The slot of a key; `None` for a name.
    pub(crate) slot: Option<u32>,
    pub(crate) epoch: Epoch,
}

/// The request as it is sent to that authority, with the current span if traces are exported.
pub(crate) fn written(authority: &str, path: &str, request: &Request, fence: Option<WorkerFence>) -> http::Result<http::Request<Body>> {
    let key = request.key.as_ref().and_then(key_header);
    let name = request.name.as_ref().map(|name| encoded(name.as_str()));
    let slot = fence.and_then(|fence| fence.slot).map(|slot| slot.to_string());
    let epoch = fence.map(|fence| fence.epoch.get().to_string());
    let span = trace::name_of(&Span::current()).map(|span| span.to_string());
    let mut written = http::Request::builder().method(word(request.method)).uri(path).header(HOST, authority);
    written = written.header(TO_HEADER, request.to.as_str());
    let texts = [
        ("content-type", request.content_type.as_deref()),
        (KEY_HEADER, key.as_deref()),
        (NAME_HEADER, name.as_deref()),
        (SESSION_HEADER, request.session.as_deref()),
        (SLOT_HEADER, slot.as_deref()),
        (EPOCH_HEADER, epoch.as_deref()),
        (IDEMPOTENCY_KEY_HEADER, request.idempotency_key.as_deref()),
        (TRACEPARENT, span.as_deref()),
    ];
    for (header, text) in texts {
        if let Some(text) = text {
            written = written.header(header, text);
        }
    }
    written.body(Body::from(request.body.clone()))
}

pub(crate) const fn word(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Post => "POST",
    }
}

/// A key as a header: an integer as its decimal text, so that it is what the worker would write in a list of keys.
fn key_header(key: &OwnedKey) -> Option<String> {
    let encoded = key.with_key(|key| key.with_text(|text| (text.len() <= KEY_HEADER_BYTES_MAX).then(|| encoded(text))));
    encoded.filter(|text| text.len() <= KEY_HEADER_BYTES_MAX)
}
