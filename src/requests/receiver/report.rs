//! What a member's status says of requests, for pages.

use serde_json::{Value, json};

use super::widths::KeyWidths;
use crate::membership::OwnershipContext;
use crate::requests::handlers::RequestHandlers;
use crate::requests::sessions::Sessions;

/// The most keys in a status.
const KEYS_MAX: usize = 64;

/// The member's load, the keys that it has spread, its open sessions, and how many requests it has refused since it was made.
pub(in crate::requests) fn report(context: &OwnershipContext) -> Value {
    let handlers = RequestHandlers::of(context);
    let wide = KeyWidths::of(context).widest(KEYS_MAX);
    let wide: Vec<_> = wide.into_iter().map(|(key, width)| json!({"key": key, "width": width})).collect();
    let (busy, not_mine) = handlers.refusals();
    json!({
        "load": handlers.load(),
        "wide": wide,
        "sessions": Sessions::of(context).len(),
        "refused_busy": busy,
        "refused_not_mine": not_mine,
    })
}
