//! Bodies of requests: so many bytes, in so much time.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use futures::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use crate::options::Limits;
use crate::problem::{Problem, Result};

/// The most bytes of a body that is read as a whole.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// A body as it comes in.
pub(crate) struct Incoming {
    stream: BodyDataStream,
    most: u64,
    seen: u64,
    stall: Duration,
    end: Instant,
}

impl Incoming {
    /// # Errors
    ///
    /// If the body says itself that it is too large.
    pub(crate) fn new(body: Body, most: u64, limits: &Limits) -> Result<Self> {
        if body.size_hint().lower() > most {
            return Err(too_large(most));
        }
        Ok(Self { stream: body.into_data_stream(), most, seen: 0, stall: limits.stall, end: Instant::now() + limits.body })
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        let until = self.end.min(Instant::now() + self.stall);
        let piece = timeout_at(until, self.stream.next()).await.map_err(|_| Problem::too_slow("send the body faster, or in parts"))?;
        let Some(piece) = piece else { return Ok(None) };
        let piece = piece.map_err(|_| Problem::bad_request("the body ends before its end"))?;
        self.seen += piece.len() as u64;
        if self.seen > self.most { Err(too_large(self.most)) } else { Ok(Some(piece)) }
    }
}

fn too_large(most: u64) -> Problem {
    Problem::too_large(format!("at most {most} bytes; send it in parts"))
}

/// The media type in small letters, without its parameters; a charset must be UTF-8.
pub(crate) fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next()?.to_owned();
    let charset = |part: &str| part.strip_prefix("charset=").map(|charset| charset.trim_matches('"').to_owned());
    parts.filter_map(charset).all(|charset| charset == "utf-8").then_some(kind)
}

/// A body, read as a whole.
pub(crate) async fn whole(body: Body, limits: &Limits) -> Result<Vec<u8>> {
    let mut incoming = Incoming::new(body, WHOLE_BYTES_MAX, limits)?;
    let mut bytes = Vec::new();
    while let Some(piece) = incoming.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// A body of JSON, read as a whole.
pub(crate) async fn json<T: DeserializeOwned>(headers: &HeaderMap, body: Body, limits: &Limits) -> Result<T> {
    if media_type(headers).as_deref() != Some("application/json") {
        return Err(Problem::media_type("application/json"));
    }
    let bytes = whole(body, limits).await?;
    let refused = |error: serde_json::Error| Problem::bad_request(format!("the body: {error}"));
    // An object, because serde would take a list of the values as well.
    let object: Map<String, Value> = serde_json::from_slice(&bytes).map_err(refused)?;
    serde_json::from_value(Value::Object(object)).map_err(refused)
}
