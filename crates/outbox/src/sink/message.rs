//! Events as messages of a protocol with headers: `CloudEvents` 1.0 in binary mode, where attributes are headers and the payload is the
//! unchanged body; or in structured mode, where the body is the whole event in JSON.
//!
//! `traceparent` and `tracestate` among an event's headers are attributes like others, and are also sent under their own names, as W3C
//! Trace Context requires.

use std::fmt::Write as _;

use serde_json::Value;

use super::cloud_event::{EventData, attributes_of, datum, encode, headers_of, rfc3339};
use crate::Delivery;

pub(super) const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";
/// Headers of W3C Trace Context.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// How an event is encoded in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Attributes are headers; the payload is the unchanged body.
    #[default]
    Binary,
    /// The body is the whole event in JSON.
    Structured,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BrokerMessage {
    /// `CloudEvents` attributes by name; none in structured mode.
    pub(super) attributes: Vec<(String, String)>,
    /// Headers of W3C Trace Context.
    pub(super) trace: Vec<(&'static str, String)>,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
}

impl BrokerMessage {
    pub(super) fn new(event: &Delivery, source: &str, mode: Mode) -> Self {
        let (headers, unread) = headers_of(event);
        let trace = TRACE.iter().filter_map(|name| {
            let value = headers.get(*name).and_then(Value::as_str)?;
            value.bytes().all(|byte| matches!(byte, b' '..=b'~')).then(|| (*name, value.to_owned()))
        });
        let trace = trace.collect();
        if mode == Mode::Structured {
            let mut body = Vec::with_capacity(event.bytes() + 300);
            encode(event, source, &mut body);
            // Remove the newline at the end of the line.
            body.pop();
            return Self { attributes: Vec::new(), trace, content_type: Some(STRUCTURED.to_owned()), body };
        }
        let key = event.key();
        let mut attributes: Vec<(String, String)> = [
            ("specversion", "1.0".to_owned()),
            ("id", event.id.clone()),
            ("source", source.to_owned()),
            ("type", event.event_type.clone()),
            ("subject", key.clone()),
            ("time", rfc3339(event.created_at_unix_ms)),
            ("partitionkey", key),
            ("sequence", event.sequence.to_string()),
            ("shardslot", event.slot.to_string()),
            ("shardepoch", event.epoch.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        attributes.extend(event.replayed.map(|first| ("replayed".to_owned(), first.to_string())));
        let others = attributes_of(&headers, |name, value| {
            attributes.push((name.to_owned(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        });
        attributes.extend(others.or_else(|| unread.map(str::to_owned)).map(|others| ("outboxheaders".to_owned(), others)));
        let (datum, content_type) = datum(&event.payload, headers.get("datacontenttype").and_then(Value::as_str));
        let body = match datum {
            EventData::Nothing => Vec::new(),
            EventData::Json(text) | EventData::Text(text) => text.as_bytes().to_vec(),
            EventData::Bytes(bytes) => bytes.to_vec(),
        };
        // A media type is a header too, and this one comes from the event.
        let content_type = content_type.map(|media_type| percent(media_type, |byte| matches!(byte, b' '..=b'~')));
        Self { attributes, trace, content_type, body }
    }
}

/// A value encoded for a header, as in the HTTP binding of `CloudEvents`: spaces, quotes, percent signs and everything except printable
/// ASCII become `%XX`.
#[cfg(any(feature = "http", feature = "nats"))]
pub(super) fn header_value(value: &str) -> String {
    percent(value, |byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'%'))
}

fn percent(value: &str, plain: impl Fn(u8) -> bool) -> String {
    if value.bytes().all(&plain) {
        return value.to_owned();
    }
    let mut text = String::with_capacity(value.len() + 16);
    for byte in value.bytes() {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}
