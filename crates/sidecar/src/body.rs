//! Bodies of requests, with limits on size and time.

use std::fmt;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use serde::de::{self, DeserializeOwned, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::app::App;
use crate::bodies::Room;
use crate::incoming_body::IncomingBody;
use crate::problem::{BAD_REQUEST, MEDIA_TYPE, Result};

/// The most bytes of a body that is read whole.
const WHOLE_BYTES_MAX: usize = 1 << 20;

/// The media type in lower case, without its parameters; a charset must be UTF-8.
pub(crate) fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next()?.to_owned();
    let charset = |part: &str| part.strip_prefix("charset=").map(|charset| charset.trim_matches('"').to_owned());
    parts.filter_map(charset).all(|charset| charset == "utf-8").then_some(kind)
}

/// Reads a whole body, and reserves the memory for it. Until `is_whole` is called on the reservation, it may still be dropped for others.
pub(crate) async fn whole(app: &App, body: Body) -> Result<(Vec<u8>, Room)> {
    let mut incoming = IncomingBody::new(body, WHOLE_BYTES_MAX as u64, &app.options.limits)?;
    let (mut bytes, mut room) = (Vec::new(), app.bodies.room());
    loop {
        // Reserved before reading: the piece, and the vector that receives it, which grows by doubling, but not beyond the limit of a
        // body.
        let (ahead, had) = (incoming.ahead(), bytes.capacity());
        let wanted = bytes.len() + ahead;
        let capacity = if wanted > had { wanted.max(2 * had).min(WHOLE_BYTES_MAX.max(wanted)) } else { had };
        room.keeps(capacity + ahead).await?;
        let Some(piece) = room.unless_given_up(incoming.next()).await?? else { break };
        if bytes.len() + piece.len() > bytes.capacity() {
            bytes.reserve_exact(capacity - bytes.len());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes, room))
}

/// Reads a whole body whose media type is JSON.
pub(crate) async fn whole_json(app: &App, request: Request) -> Result<(Vec<u8>, Room)> {
    if media_type(request.headers()).as_deref() != Some("application/json") {
        return Err(MEDIA_TYPE.because("send Content-Type: application/json"));
    }
    whole(app, request.into_body()).await
}

/// Parses a body that is a JSON object.
pub(crate) fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    // serde would accept an array of the values as well.
    let is_object = bytes.trim_ascii_start().first() == Some(&b'{');
    match serde_json::from_slice(bytes) {
        Ok(value) if is_object => Ok(value),
        Err(error) if error.is_syntax() || error.is_eof() => Err(BAD_REQUEST.because(format!("the body is not JSON: {error}"))),
        Err(error) if is_object => Err(BAD_REQUEST.because(format!("the body: {error}"))),
        Ok(_) | Err(_) => Err(BAD_REQUEST.because("the body is JSON, but no object; write {…}")),
    }
}

pub(crate) async fn json<T: DeserializeOwned>(app: &App, request: Request) -> Result<T> {
    parsed(&whole_json(app, request).await?.0)
}

/// A whole number of a body. In JSON `5000.0` is one too; the schema's format, int64, has the maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Whole(pub(crate) u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct WholeVisitor;

        impl Visitor<'_> for WholeVisitor {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {}", i64::MAX)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> std::result::Result<Whole, E> {
                if i64::try_from(number).is_ok() { Ok(Whole(number)) } else { Err(E::invalid_value(Unexpected::Unsigned(number), &self)) }
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> std::result::Result<Whole, E> {
                // Only such a number has no fraction in this text; larger ones are not exact.
                let text = format!("{number:.0}");
                let whole = text.parse::<u64>().ok().filter(|_| number.fract() == 0.0);
                match whole {
                    Some(whole) => self.visit_u64(whole),
                    None => Err(E::invalid_value(Unexpected::Float(number), &self)),
                }
            }
        }

        deserializer.deserialize_any(WholeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_may_have_a_point() {
        let read = |text: &str| serde_json::from_str::<Whole>(text).ok().map(|Whole(number)| number);
        for (text, number) in [("0", 0), ("7", 7), ("5880.0", 5_880), ("5e3", 5_000), ("9223372036854775807", 9_223_372_036_854_775_807)] {
            assert_eq!(read(text), Some(number), "{text}");
        }
        for wrong in ["-1", "0.5", "9223372036854775808", "1e300", "-1.0", "null", "\"7\"", "true"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
