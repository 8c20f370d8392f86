//! The rebalances so far, and new ones as server-sent events that can be resumed.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt as _, stream};
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::app::{App, FOLLOWERS_MAX};
use crate::history::{EventLog, RebalanceList};
use crate::path_parameters::PolicyPath;
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
    let busy = |_| TOO_MANY.because(format!("{FOLLOWERS_MAX} clients follow already"));
    let permit = Arc::clone(&app.followers).try_acquire_owned().map_err(busy)?;
    let log = joined.history.follow();
    let (read, is_missing) = match headers.get("last-event-id") {
        None => (log.borrow().last, false),
        Some(id) => joined.history.number_of(id.to_str().unwrap_or_default()),
    };
    // Sent at once, so that the client knows that the stream works.
    let first = stream::iter([": following\nretry: 1000\n\n".to_owned()]);
    let follower = EventFollower { log, read, is_missing, _permit: permit };
    let events = stream::unfold(follower, |mut follower| async move { Some((follower.next().await?, follower)) });
    let body = Body::from_stream(first.chain(events).map(Ok::<_, Infallible>));
    Ok(([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], body).into_response())
}

struct EventFollower {
    log: watch::Receiver<EventLog>,
    /// The number of the latest event that was sent.
    read: u64,
    is_missing: bool,
    _permit: OwnedSemaphorePermit,
}

impl EventFollower {
    /// The next text to send; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        loop {
            let text = self.unsent()?;
            if !text.is_empty() {
                return Some(text);
            }
            match tokio::time::timeout(ALIVE_EVERY, self.log.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some(": alive\n\n".into()),
            }
        }
    }

    /// The events that were not sent yet.
    fn unsent(&mut self) -> Option<String> {
        let log = self.log.borrow_and_update();
        let (events, has_gap) = log.behind(self.read);
        // Written behind the lock, which the thread that keeps ownership takes too.
        let events: Vec<_> = events.cloned().collect();
        self.read = log.last;
        drop(log);
        let mut text = String::new();
        if std::mem::take(&mut self.is_missing) || has_gap {
            text += "event: gap\ndata: {}\n\n";
        }
        for event in events {
            let data = serde_json::to_string(&event).ok()?;
            let _ = write!(text, "event: rebalance\nid: {}\ndata: {data}\n\n", event.id());
        }
        Some(text)
    }
}
