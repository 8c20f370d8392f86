//! Bodies of requests, with limits on size and time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use futures::StreamExt;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::bodies::{Bodies, Room};
use crate::connections::HEAD_BYTES_MAX;
use crate::options::Limits;
use crate::problem::{Problem, Result};

const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// The most bytes of a piece, which is what a connection reads at a time.
const PIECE_BYTES_MAX: u64 = HEAD_BYTES_MAX as u64;

/// A body that is being received.
pub(crate) struct IncomingBody {
    stream: BodyDataStream,
    most: u64,
    declared: Option<u64>,
    seen: u64,
    stall: Duration,
    end: Instant,
}

impl IncomingBody {
    /// # Errors
    ///
    /// If the declared length is too large.
    pub(crate) fn new(body: Body, most: u64, limits: &Limits) -> Result<Self> {
        if body.size_hint().lower() > most {
            return Err(too_large(most));
        }
        let declared = body.size_hint().exact();
        Ok(Self { stream: body.into_data_stream(), most, declared, seen: 0, stall: limits.stall, end: Instant::now() + limits.body })
    }

    /// The most bytes of the next piece.
    pub(crate) fn ahead(&self) -> usize {
        let left = self.declared.unwrap_or(u64::MAX).saturating_sub(self.seen);
        usize::try_from(left.min(PIECE_BYTES_MAX)).unwrap_or(usize::MAX)
    }

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

/// The media type in lower case, without its parameters; a charset must be UTF-8.
pub(crate) fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next()?.to_owned();
    let charset = |part: &str| part.strip_prefix("charset=").map(|charset| charset.trim_matches('"').to_owned());
    parts.filter_map(charset).all(|charset| charset == "utf-8").then_some(kind)
}

/// A complete body, and the memory reserved for it.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    pub(crate) bytes: Vec<u8>,
    pub(crate) room: Room,
}

/// Reads a whole body. Until `is_whole` is called on its reservation, it may still be dropped for others.
pub(crate) async fn whole(body: Body, limits: &Limits, bodies: &Arc<Bodies>) -> Result<BufferedBody> {
    let mut incoming = IncomingBody::new(body, WHOLE_BYTES_MAX, limits)?;
    let (mut bytes, mut room) = (Vec::new(), bodies.room());
    loop {
        // Reserved before reading: the piece, and the vector that receives it, which grows by doubling, but not beyond the limit of a
        // body.
        let (ahead, most) = (incoming.ahead(), usize::try_from(WHOLE_BYTES_MAX).unwrap_or(usize::MAX));
        let wanted = bytes.len() + ahead;
        let capacity = if wanted > bytes.capacity() { wanted.max(2 * bytes.capacity()).min(most.max(wanted)) } else { bytes.capacity() };
        room.keeps(capacity + ahead).await?;
        let Some(piece) = room.unless_given_up(incoming.next()).await?? else { break };
        if bytes.len() + piece.len() > bytes.capacity() {
            bytes.reserve_exact(capacity - bytes.len());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(BufferedBody { bytes, room })
}

/// Reads a whole body whose media type is JSON.
pub(crate) async fn said_json(headers: &HeaderMap, body: Body, limits: &Limits, bodies: &Arc<Bodies>) -> Result<BufferedBody> {
    if media_type(headers).as_deref() != Some("application/json") {
        return Err(Problem::media_type("application/json"));
    }
    whole(body, limits, bodies).await
}

/// Parses a body that is a JSON object.
pub(crate) fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    // serde would accept an array of the values as well.
    let is_object = bytes.trim_ascii_start().first() == Some(&b'{');
    match serde_json::from_slice(bytes) {
        Ok(value) if is_object => Ok(value),
        Err(error) if error.is_syntax() || error.is_eof() => Err(Problem::bad_request(format!("the body is not JSON: {error}"))),
        Err(error) if is_object => Err(Problem::bad_request(format!("the body: {error}"))),
        Ok(_) | Err(_) => Err(Problem::bad_request("the body is JSON, but no object; write {…}")),
    }
}

pub(crate) async fn json<T: DeserializeOwned>(headers: &HeaderMap, body: Body, limits: &Limits, bodies: &Arc<Bodies>) -> Result<T> {
    parsed(&said_json(headers, body, limits, bodies).await?.bytes)
}
