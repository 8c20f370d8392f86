//! The rebalances so far, and new ones as server-sent events that can be resumed.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::app::{App, FOLLOWERS_MOST, PolicyPath, ServedGroup};
use crate::history::{Cursor, NewEvents, RebalanceList};
use crate::problem::{Result, TOO_MANY};

/// The interval of keep-alive lines in a stream, so that both sides notice when the other one is gone.
const ALIVE_EVERY: Duration = Duration::from_secs(3);

/// What has moved so far; as server-sent events also each new rebalance.
///
/// With `Accept: text/event-stream` the answer is a stream: each rebalance is an event `rebalance` with its id, and a client that
/// reconnects with the header Last-Event-ID continues after that id. The event `gap` means that some rebalances in between are no longer
/// kept: ask for the current ownership.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/rebalances", tag = "group",
    params(("Last-Event-ID" = Option<String>, Header, description = "For a stream: the id of the last event received")),
    responses((
        status = 200, description = "The latest rebalances of this worker, the oldest first; as a stream the following ones too",
        content((RebalanceList = "application/json"), (String = "text/event-stream"))
    ))
)]
pub(crate) async fn rebalances(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, headers: HeaderMap) -> Result<Response> {
    let wants_stream =
        headers.get_all(ACCEPT).iter().any(|accept| accept.to_str().is_ok_and(|accept| accept.contains("text/event-stream")));
    if !wants_stream {
        app.spend()?;
        return Ok(Json(joined.history.past()).into_response());
    }
    let busy = |_| TOO_MANY.because(format!("{FOLLOWERS_MOST} clients follow already"));
    let permit = Arc::clone(&app.followers).try_acquire_owned().map_err(busy)?;
    let last = headers.get("last-event-id").map(|id| joined.history.behind(id.to_str().unwrap_or_default()));
    let (cursor, missed) = match last {
        None => (joined.history.now(), false),
        Some(Ok(cursor)) => (cursor, false),
        Some(Err(first)) => (first, true),
    };
    let changes = joined.history.changes();
    let follower = EventFollower { joined, cursor, missed, changes, _permit: permit, has_begun: false };
    let events = stream::unfold(follower, |mut follower| async move {
        let text = follower.next().await?;
        Some((Ok::<_, std::io::Error>(Bytes::from(text)), follower))
    });
    Ok(([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], Body::from_stream(events)).into_response())
}

struct EventFollower {
    joined: Arc<ServedGroup>,
    cursor: Cursor,
    missed: bool,
    changes: watch::Receiver<u64>,
    _permit: OwnedSemaphorePermit,
    has_begun: bool,
}

impl EventFollower {
    /// The next text to send; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        if !std::mem::replace(&mut self.has_begun, true) {
            // Sent at once, so that the client knows that the stream works.
            return Some(": following\nretry: 1000\n\n".into());
        }
        loop {
            self.changes.mark_unchanged();
            let NewEvents { events, has_gap } = self.joined.history.take(&mut self.cursor);
            let mut text = String::new();
            if std::mem::take(&mut self.missed) || has_gap {
                text += "event: gap\ndata: {}\n\n";
            }
            for event in &events {
                let data = serde_json::to_string(event).ok()?;
                let _ = write!(text, "event: rebalance\nid: {}\ndata: {data}\n\n", event.id());
            }
            if !text.is_empty() {
                return Some(text);
            }
            match tokio::time::timeout(ALIVE_EVERY, self.changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some(": alive\n\n".into()),
            }
        }
    }
}
