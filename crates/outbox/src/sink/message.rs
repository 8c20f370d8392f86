//! Events as messages of a protocol with headers: `CloudEvents` 1.0 in binary mode, where attributes are headers and the payload is the
//! unchanged body; or in structured mode, where the body is the whole event in JSON.
//!
//! `traceparent` and `tracestate` among an event's headers are attributes like others, and are also sent under their own names, as W3C
//! Trace Context requires.

use std::path::Path;

#[cfg(any(feature = "http", feature = "nats"))]
use percent_encoding::AsciiSet;
use percent_encoding::{CONTROLS, utf8_percent_encode};
use serde_json::Value;

use super::Mode;
use super::cloud_event::{EventData, attributes, datum, encode, headers_of};
use crate::{Delivery, Result, secret};

pub(super) const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";
/// Headers of W3C Trace Context.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

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
        let headers = headers_of(event);
        let trace = TRACE.iter().filter_map(|name| {
            let value = headers.0.get(*name).and_then(Value::as_str)?;
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
        // Those that every event has, and its headers.
        let mut named = Vec::with_capacity(12 + headers.0.len());
        named.push(("specversion".to_owned(), "1.0".to_owned()));
        attributes(event, source, &headers, |name, value, _| named.push((name.to_owned(), value.to_owned())));
        let (datum, content_type) = datum(&event.payload, headers.0.get("datacontenttype").and_then(Value::as_str));
        let body = match datum {
            EventData::Nothing => Vec::new(),
            EventData::Json(text) | EventData::Text(text) => text.as_bytes().to_vec(),
            EventData::Bytes(bytes) => bytes.to_vec(),
        };
        // A media type is a header too, and this one comes from the event.
        let content_type = content_type.map(|media_type| utf8_percent_encode(media_type, CONTROLS).to_string());
        Self { attributes: named, trace, content_type, body }
    }
}

/// A value encoded for a header, as in the HTTP binding of `CloudEvents`: spaces, quotes, percent signs and everything except printable
/// ASCII become `%XX`.
#[cfg(any(feature = "http", feature = "nats"))]
pub(super) fn header_value(value: &str) -> String {
    const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');
    utf8_percent_encode(value, ESCAPED).to_string()
}

/// The password, token or secret in a file, for the config of a sink: the file's text without its last newline. `what` names it in errors,
/// such as "the NATS sink's password".
///
/// # Errors
///
/// [`ErrorKind::Settings`](crate::ErrorKind::Settings): the file cannot be read, or has something else in it.
pub fn secret_in_file(path: &Path, what: &str) -> Result<String> {
    secret::in_file(path, &format!("the file with {what}"))
}
