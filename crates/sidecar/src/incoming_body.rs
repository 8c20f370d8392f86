//! A body while it arrives, with limits on size and time.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::{Instant, timeout_at};

use crate::limits::{HEAD_BYTES_MAX, Limits};
use crate::problem::{BAD_REQUEST, Problem, Result, TOO_LARGE, TOO_SLOW};

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
    /// An error if the declared length is too large.
    pub(crate) fn new(body: Body, most: u64, limits: &Limits) -> Result<Self> {
        if body.size_hint().lower() > most {
            return Err(too_large(most));
        }
        let declared = body.size_hint().exact();
        Ok(Self { stream: body.into_data_stream(), most, declared, seen: 0, stall: limits.stall, end: Instant::now() + limits.body })
    }

    /// The most bytes of the next piece: what a connection reads at a time, or what is left of the body.
    pub(crate) fn ahead(&self) -> usize {
        let left = self.declared.unwrap_or(u64::MAX).saturating_sub(self.seen);
        usize::try_from(left).map_or(HEAD_BYTES_MAX, |left| left.min(HEAD_BYTES_MAX))
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        let until = self.end.min(Instant::now() + self.stall);
        let piece = timeout_at(until, self.stream.next()).await.map_err(|_| TOO_SLOW.because("send the body faster, or in parts"))?;
        let Some(piece) = piece else { return Ok(None) };
        let piece = piece.map_err(|_| BAD_REQUEST.because("the body ends before its end"))?;
        self.seen += piece.len() as u64;
        if self.seen > self.most { Err(too_large(self.most)) } else { Ok(Some(piece)) }
    }
}

fn too_large(most: u64) -> Problem {
    TOO_LARGE.because(format!("at most {most} bytes; send it in parts"))
}
