//! The grants of the worker, as a stream or one answer at a time, and what it has finished.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::{Deserialize, Serialize};
use shardwise::Period;
use shardwise::core::Resource;
use tokio::sync::{OwnedSemaphorePermit, watch};
use utoipa::ToSchema;

use super::lease::leasable;
use crate::app::App;
use crate::body::{self, Whole};
use crate::leases::state::{GrantChange, GrantPhase, LeaseId, LeaseRefusal, LeaseState, WorkerGrant};
use crate::leases::{FOLLOWERS_MAX, Leases};
use crate::millis::millis;
use crate::path_parameters::PolicyPath;
use crate::problem::{BAD_REQUEST, Result, TOO_MANY};

/// The interval of lines in a stream without changes, so that both sides notice when the other one is gone.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// The most grants that are finished by one request.
const FINISHED_MAX: usize = 65_536;
/// The longest wait for a change.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A slot or a name that the worker was granted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Grant)]
pub(crate) struct ShownGrant {
    /// No other grant of this policy has this number, while the sidecar runs.
    grant: u64,
    /// The slot; null for a name.
    slot: Option<u32>,
    /// The name of a singleton, daemon or timer; null for a slot.
    name: Option<String>,
    /// The fencing token for the worker's own writes.
    epoch: u64,
    /// The period that a timer fired; else null.
    period: Option<FiredPeriod>,
    /// It must be handed over: finish the work in flight, start none, then report it at `grants/finished`.
    finish: bool,
}

/// One period of a timer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FiredPeriod {
    /// Its start, in milliseconds since the start of 1970 (UTC).
    due_ms: u64,
    /// Its number, from 0 at the start of 1970.
    number: u64,
}

/// What the worker was granted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GrantList {
    /// Rises with each change.
    version: u64,
    /// For how long all grants hold unless the lease is renewed, counted from before the request was sent, in milliseconds.
    valid_ms: u64,
    /// How many slots there are: a key's slot follows from its hash.
    slots: u32,
    grants: Vec<ShownGrant>,
    /// The numbers of grants that are lost, until the worker confirms at `grants/finished` that its work under them has stopped. Only with
    /// the whole list: with `wait`, and in the line `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<Vec<u64>>,
}

/// A line of the stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GrantLine {
    /// `all`, `granted`, `finish`, `lost`, `alive` or `ended`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Why the lease has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
    #[serde(flatten)]
    list: GrantList,
}

/// What is this worker granted?
///
/// Without `wait` the answer is a stream of JSON lines (GrantLine): `all` is the first line; then `granted`, `finish` (they are to go) and
/// `lost` (stop now) as it happens, `alive` each second, and `ended` with the lease. With `wait` the answer is the list, as soon as its
/// version is another than `after`. A worker says with its renewals which version it has processed.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/grants", tag = "worker",
    params(
        ("shardwise-lease" = Option<String>, Header, description = "The id of the worker's lease"),
        ("wait" = Option<u64>, Query, maximum = 30_000, description = "Answer once, after this many milliseconds at the latest"),
        ("after" = Option<u64>, Query, description = "With wait: the version that is known already")
    ),
    responses((status = 200, description = "The grants", content((GrantList = "application/json"), (GrantLine = "application/x-ndjson"))))
)]
pub(crate) async fn grants(PolicyPath(joined): PolicyPath, RawQuery(query): RawQuery, headers: HeaderMap) -> Result<Response> {
    let leases = leasable(&joined)?;
    leases.grants_anything()?;
    let id = leases.shown(&headers)?;
    let wanted = wanted(query.as_deref().unwrap_or_default())?;
    let busy = |_| TOO_MANY.because(format!("at most {FOLLOWERS_MAX} requests follow the grants of a policy at a time"));
    let permit = Arc::clone(&leases.followers).try_acquire_owned().map_err(busy)?;
    let changed = leases.changed.subscribe();
    let mut follower = GrantFollower { leases: Arc::clone(leases), id, changed, read: None, is_over: false, _permit: permit };
    if let Some((wait, after)) = wanted {
        return Ok(Json(follower.list_after(wait, after).await?).into_response());
    }
    leases.update(|state, now| state.check(now, id)).map_err(|refusal| leases.refused(refusal))?;
    let lines = stream::unfold(follower, |mut follower| async move { Some((follower.next().await?, follower)) });
    let body = Body::from_stream(futures::StreamExt::map(lines, Ok::<_, Infallible>));
    Ok(([(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")], body).into_response())
}

/// How long to wait and after which version; `None` for a stream.
fn wanted(query: &str) -> Result<Option<(Duration, Option<u64>)>> {
    let (mut wait, mut after) = (None, None);
    for (name, value) in query.split('&').filter(|part| !part.is_empty()).map(|part| part.split_once('=').unwrap_or((part, ""))) {
        let place = match name {
            "wait" => &mut wait,
            "after" => &mut after,
            _ => return Err(BAD_REQUEST.because("the parameters are wait and after")),
        };
        *place = Some(value.parse::<u64>().map_err(|_| BAD_REQUEST.because(format!("{name} is a number")))?);
    }
    match wait.map(Duration::from_millis) {
        Some(wait) if wait > WAIT_MAX => Err(BAD_REQUEST.because(format!("wait is at most {} ms", millis(WAIT_MAX)))),
        None if after.is_some() => Err(BAD_REQUEST.because("after needs wait")),
        wait => Ok(wait.map(|wait| (wait, after))),
    }
}

/// The grants that are finished.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FinishRequest {
    /// The numbers of the grants.
    #[schema(value_type = Vec<u64>, max_items = 65_536)]
    grants: Vec<Whole>,
}

/// How many were released.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Finished {
    finished: usize,
}

/// No work is in flight any more under these grants.
///
/// Each slot among them that was asked to finish, or is lost, is released; others stay granted. The work under a name may end at any time.
/// A worker that goes on in a slot after this works at the same time as the next holder, and only the fence in its writes stops it.
#[utoipa::path(
    post, path = "/v1/policies/{policy}/grants/finished", tag = "worker",
    request_body(content = FinishRequest, content_type = "application/json"),
    params(("shardwise-lease" = Option<String>, Header, description = "The id of the worker's lease")),
    responses((status = 200, description = "How many were released", body = Finished))
)]
pub(crate) async fn finished(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, request: Request) -> Result<Json<Finished>> {
    let leases = leasable(&joined)?;
    leases.grants_anything()?;
    let id = leases.shown(request.headers())?;
    let FinishRequest { grants } = body::json(&app, request).await?;
    if grants.len() > FINISHED_MAX {
        return Err(BAD_REQUEST.because(format!("at most {FINISHED_MAX} grants in one request")));
    }
    let grants: Vec<u64> = grants.into_iter().map(|Whole(number)| number).collect();
    let finished = leases.update(|state, now| state.check(now, id).map(|_| state.finished(&grants)));
    leases.wake.notify_one();
    Ok(Json(Finished { finished: finished.map_err(|refusal| leases.refused(refusal))? }))
}

impl ShownGrant {
    fn of(grant: &WorkerGrant) -> Self {
        let (slot, name) = match &grant.resource {
            Resource::Slot(slot) => (Some(*slot), None),
            Resource::Name(name) => (None, Some(name.to_string())),
        };
        let period = grant.period.map(|Period { due_ms, number }| FiredPeriod { due_ms, number });
        Self { grant: grant.number, slot, name, epoch: grant.epoch.get(), period, finish: grant.phase != GrantPhase::Granted }
    }
}

/// A request that follows the grants.
struct GrantFollower {
    leases: Arc<Leases>,
    id: LeaseId,
    changed: watch::Receiver<u64>,
    /// The version that was sent; `None` before the first line.
    read: Option<u64>,
    is_over: bool,
    _permit: OwnedSemaphorePermit,
}

impl GrantFollower {
    async fn list_after(&mut self, wait: Duration, after: Option<u64>) -> Result<GrantList> {
        let until = tokio::time::Instant::now() + wait;
        loop {
            self.changed.borrow_and_update();
            let (leases, id) = (&self.leases, self.id);
            let list = leases.read_swept(|state, now, valid| {
                state.check(now, id)?;
                state.saw(after);
                Ok(GrantList::whole(state, valid))
            });
            let list = list.map_err(|refusal| self.leases.refused(refusal))?;
            let is_late =
                tokio::time::timeout_at(until, async { after == Some(list.version) && self.changed.changed().await.is_ok() }).await;
            if is_late != Ok(true) {
                return Ok(list);
            }
        }
    }

    /// The next lines to send; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        let mut lines = self.lines();
        if lines.is_empty() {
            let _ = tokio::time::timeout(ALIVE_EVERY, self.changed.changed()).await;
            lines = self.lines();
        }
        if lines.is_empty() {
            lines =
                self.leases.read_swept(|state, _, valid| line("alive", state, self.read.unwrap_or_default(), valid, std::iter::empty()));
        }
        Some(lines)
    }

    /// What has changed since the last line.
    fn lines(&mut self) -> String {
        self.changed.borrow_and_update();
        let (id, read) = (self.id, self.read);
        let changes =
            self.leases.read_swept(|state, now, valid| state.check(now, id).map(|_| (state.version(), changes(state, read, valid))));
        match changes {
            Ok((version, lines)) => {
                self.read = Some(version);
                lines
            }
            Err(refusal) => {
                self.is_over = true;
                let why = if let LeaseRefusal::Ended(why) = refusal { why } else { "another lease is live" };
                let list = GrantList { version: read.unwrap_or_default(), valid_ms: 0, slots: 0, grants: Vec::new(), lost: None };
                as_line(&GrantLine { kind: "ended", why: Some(why), list })
            }
        }
    }
}

fn as_line(line: &GrantLine) -> String {
    serde_json::to_string(line).unwrap_or_default() + "\n"
}

impl GrantList {
    fn whole(state: &LeaseState, valid: Duration) -> Self {
        Self { lost: Some(state.lost().collect()), ..Self::of(state, state.version(), valid, state.grants()) }
    }

    fn of<'a>(state: &LeaseState, version: u64, valid: Duration, grants: impl Iterator<Item = &'a WorkerGrant>) -> Self {
        Self { version, valid_ms: millis(valid), slots: state.slots().slots(), grants: grants.map(ShownGrant::of).collect(), lost: None }
    }
}

/// A line up to that version.
fn line<'a>(
    kind: &'static str,
    state: &LeaseState,
    version: u64,
    valid: Duration,
    grants: impl Iterator<Item = &'a WorkerGrant>,
) -> String {
    as_line(&GrantLine { kind, why: None, list: GrantList::of(state, version, valid, grants) })
}

/// The changes after that version, or the whole list; changes of one kind in a row are one line.
fn changes(state: &LeaseState, read: Option<u64>, valid: Duration) -> String {
    let Some(changes) = read.and_then(|read| state.changes_after(read)) else {
        return as_line(&GrantLine { kind: "all", why: None, list: GrantList::whole(state, valid) });
    };
    let changes: Vec<&GrantChange> = changes.collect();
    let lines = changes.chunk_by(|one, next| one.grant.phase == next.grant.phase).map(|row| {
        let (phase, version) = row.last().map_or((GrantPhase::Granted, 0), |last| (last.grant.phase, last.version));
        let kind = match phase {
            GrantPhase::Granted => "granted",
            GrantPhase::Finish => "finish",
            GrantPhase::Lost => "lost",
        };
        line(kind, state, version, valid, row.iter().map(|change| &change.grant))
    });
    lines.collect()
}
