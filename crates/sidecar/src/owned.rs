//! Filters a list of keys for those that this worker owns, in the same format, while the list is still being received.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use shardwise::ServiceState;

use crate::app::{App, ServedGroup};
use crate::bodies::Room;
use crate::body::media_type;
use crate::incoming_body::IncomingBody;
use crate::key_list::{KeyList, ListFormat};
use crate::leases::LeaseId;
use crate::path_parameters::PolicyPath;
use crate::problem::{BAD_KEY, CONFLICT, MEDIA_TYPE, Result};

/// How many bytes are checked before the status is sent: an error in them gets a proper answer. A later error ends the connection before
/// the answer's end.
const JUDGED_FIRST: usize = 256 << 10;
const PIECE_BYTES: usize = 64 << 10;
/// The header with this worker's state; in any state but `active`, `stale` and `unsharded` it owns nothing.
const STATE: HeaderName = HeaderName::from_static("shardwise-state");
/// Its value for an active worker of a group in which no member owns anything: below `min_members`, or all are drained. As `active`, an
/// empty list would look as if other members owned its keys.
const UNASSIGNED: &str = "unassigned";

/// Which of these keys are mine?
///
/// The answer has the format of the request, and its keys keep their order. Ownership is checked as each piece arrives, so it is current
/// when that piece is answered. Read the answer while you send: the sidecar does not buffer it. Under exclusive ownership the worker's
/// lease is required.
#[utoipa::path(
    post, path = "/v1/policies/{policy}/owned", tag = "keys",
    request_body(
        content((Vec<String> = "application/json"), (String = "text/plain")),
        description = "A JSON list of texts, or one key a line; an empty line is the key of 0 bytes. A key has at most 65,536 bytes."
    ),
    params(("shardwise-lease" = Option<String>, Header, description = "The id of the worker's lease, under exclusive ownership")),
    responses((
        status = 200, description = "The owned keys, as JSON or as lines",
        content((Vec<String> = "application/json"), (String = "text/plain")),
        headers(("shardwise-state" = String, description = "The state of this worker, or unassigned while no member of the group owns anything; unless it is active, stale or unsharded, this worker owns nothing"))
    ))
)]
pub(crate) async fn owned(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, request: Request) -> Result<Response> {
    if joined.only_observes {
        return Err(CONFLICT.because(format!(
            "this sidecar only observes policy {}, so it owns no key: ask one that has joined it (--policy)",
            joined.service.policy().name
        )));
    }
    let (format, kind) = match media_type(request.headers()).as_deref() {
        Some("application/json") => (ListFormat::Json, "application/json"),
        Some("text/plain") => (ListFormat::Text, "text/plain; charset=utf-8"),
        _ => return Err(MEDIA_TYPE.because("send Content-Type: application/json or text/plain, in UTF-8")),
    };
    let lease = joined.leases.are_required().then(|| joined.leases.shown(request.headers())).transpose()?;
    let state = state(&joined);
    let incoming = IncomingBody::new(request.into_body(), app.options.limits.list_bytes, &app.options.limits)?;
    let mut filter = KeyFilter { incoming, room: app.bodies.room(), list: KeyList::new(format), joined, lease, is_done: false };
    let mut first = Vec::new();
    filter.fill(&mut first, JUDGED_FIRST).await?;
    let headers = [(CONTENT_TYPE, kind), (STATE, state)];
    if filter.is_done {
        return Ok((headers, first).into_response());
    }
    let rest = stream::unfold(filter, |mut filter| async move {
        if filter.is_done {
            return None;
        }
        let mut piece = Vec::with_capacity(PIECE_BYTES + 1_024);
        // Too late for a status: the answer must not look complete.
        let filled = filter.fill(&mut piece, PIECE_BYTES).await.map_err(|_| std::io::Error::other("the list is refused"));
        filter.is_done |= filled.is_err();
        Some((filled.map(|()| piece), filter))
    });
    Ok((headers, Body::from_stream(stream::iter([Ok(first)]).chain(rest))).into_response())
}

fn state(joined: &ServedGroup) -> &'static str {
    let (ownership, now) = (joined.service.ownership(), joined.service.now());
    match ownership.not_owning_at(now) {
        Some(why) if why.state == ServiceState::Active => UNASSIGNED,
        _ => ownership.state_at(now).as_str(),
    }
}

struct KeyFilter {
    incoming: IncomingBody,
    /// The memory for input that has no output yet.
    room: Room,
    list: KeyList,
    joined: Arc<ServedGroup>,
    /// The worker's lease, under exclusive ownership.
    lease: Option<LeaseId>,
    is_done: bool,
}

impl KeyFilter {
    /// Continues until `most` bytes of output exist or the input ends.
    async fn fill(&mut self, out: &mut Vec<u8>, most: usize) -> Result<()> {
        while !self.is_done && out.len() < most {
            // The output is no longer than the input, except for a bracket or a line feed.
            let most = self.list.begun() + self.incoming.ahead() + 2;
            self.room.keeps(out.len() + 2 * most).await?;
            let piece = self.room.unless_given_up(self.incoming.next()).await??;
            out.reserve_exact(self.list.begun() + piece.as_ref().map_or(0, Bytes::len) + 2);
            // The clock is read once for each piece.
            let (ownership, now) = (self.joined.service.ownership(), self.joined.service.now());
            let granted = self.lease.map(|lease| self.joined.leases.open_slots(lease)).transpose()?;
            let mine = |key: &[u8]| granted.as_ref().map_or_else(|| ownership.owns_at(key, now), |slots| slots.holds(key));
            match &piece {
                Some(bytes) => self.list.feed(bytes, &mine, out),
                None => self.list.finish(&mine, out),
            }
            .map_err(|why| BAD_KEY.because(why))?;
            self.is_done = piece.is_none();
        }
        Ok(())
    }
}
