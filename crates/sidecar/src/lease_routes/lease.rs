//! Opens, renews and ends the worker's lease.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::{App, ServedGroup};
use crate::body::{self, Whole};
use crate::leases::Leases;
use crate::leases::state::{self, LeaseId, LeaseRefusal, LeaseState};
use crate::millis::millis;
use crate::path_parameters::{NamePath, PolicyPath};
use crate::problem::{BAD_REQUEST, CONFLICT, Result};

/// The shortest and the longest lease, in milliseconds.
const TTL_MS: std::ops::RangeInclusive<u64> = 1_000..=60_000;

/// The wish for a lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseRequest {
    /// How long the lease lasts after each renewal, in milliseconds.
    #[schema(value_type = u64, minimum = 1_000, maximum = 60_000)]
    ttl_ms: Whole,
    /// Under eventual ownership a lease grants nothing, and when it ends the member is drained: `true` says that this is meant.
    #[serde(default)]
    health: bool,
}

/// The renewal of a lease.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseRenewal {
    /// The version of the grants that the worker has processed. A worker that is behind for a whole `ttl_ms` is not renewed.
    #[schema(value_type = Option<u64>)]
    seen: Option<Whole>,
}

/// A live lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerLease {
    /// Sent in the header `shardwise-lease`; a client that has it can act for the worker.
    id: String,
    ttl_ms: u64,
    /// For how long all grants hold, counted from before the request was sent, in milliseconds; 0 while nothing is held.
    valid_ms: u64,
    /// The version of the grants.
    version: u64,
}

/// Open the worker's lease.
///
/// One lease on a policy is live at a time; the processes of one worker share it. While it is live, this member takes its share. When it
/// ends, the member gives its share up at once. Under exclusive ownership nothing is owned without a lease; under eventual ownership a
/// lease is refused without `health`.
#[utoipa::path(
    post, path = "/v1/policies/{policy}/leases", tag = "worker",
    request_body(content = LeaseRequest, content_type = "application/json"),
    responses((status = 201, description = "The lease", body = WorkerLease))
)]
pub(crate) async fn open(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    request: Request,
) -> Result<(StatusCode, Json<WorkerLease>)> {
    let LeaseRequest { ttl_ms: Whole(ttl_ms), health } = body::json(&app, request).await?;
    let leases = leasable(&joined)?;
    if !health && !leases.are_required() {
        let name = &joined.service.policy().name;
        return Err(CONFLICT.because(format!(
            "policy {name} has ownership = \"eventual\": a lease grants nothing there, and when it ends this member is drained. Send \
             \"health\": true too if that is meant, ask owned without a lease, or use a policy with ownership = \"exclusive\" and its own group_name"
        )));
    }
    if !TTL_MS.contains(&ttl_ms) {
        let (least, most) = (TTL_MS.start(), TTL_MS.end());
        return Err(BAD_REQUEST.because(format!("ttl_ms = {ttl_ms} is not allowed: a lease lasts {least} to {most} ms")));
    }
    let (id, ttl) = (LeaseId::new(rand::random()), Duration::from_millis(ttl_ms));
    let opened = leases.read_swept(|state, now, _| {
        state.open(now, id, ttl)?;
        // Nothing is granted yet.
        Ok(WorkerLease::of(state, id, ttl, Duration::ZERO))
    });
    let opened = opened.map_err(|refusal| leases.refused(refusal))?;
    leases.wake.notify_one();
    tracing::info!(policy = %joined.service.policy().name, ttl_ms, "the worker has opened a lease");
    Ok((StatusCode::CREATED, Json(opened)))
}

/// Renew the worker's lease.
///
/// The answer has the time for which all grants hold from now on.
#[utoipa::path(
    put, path = "/v1/policies/{policy}/leases/{lease}", tag = "worker",
    request_body(content = Option<LeaseRenewal>, content_type = "application/json"),
    responses((status = 200, description = "The lease", body = WorkerLease))
)]
pub(crate) async fn renew(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(id): NamePath,
    request: Request,
) -> Result<Json<WorkerLease>> {
    let has_body = request.headers().contains_key(CONTENT_TYPE);
    let LeaseRenewal { seen } = if has_body { body::json(&app, request).await? } else { LeaseRenewal::default() };
    let leases = leasable(&joined)?;
    let id = named(leases, &id)?;
    leases.update(|state, now| state.renew(now, id, seen.map(|Whole(version)| version))).map_err(|refusal| leases.refused(refusal))?;
    let renewed = leases.read_swept(|state, now, valid| {
        let ttl = state.check(now, id)?;
        Ok(WorkerLease::of(state, id, ttl, valid))
    });
    Ok(Json(renewed.map_err(|refusal| leases.refused(refusal))?))
}

/// End the worker's lease.
///
/// What was granted under it is released at once, so end all work before.
#[utoipa::path(
    delete, path = "/v1/policies/{policy}/leases/{lease}", tag = "worker",
    responses((status = 204, description = "The lease has ended"))
)]
pub(crate) async fn close(PolicyPath(joined): PolicyPath, NamePath(id): NamePath) -> Result<StatusCode> {
    let leases = leasable(&joined)?;
    let id = named(leases, &id)?;
    let closed = leases.update(|state, now| state.check(now, id).map(|_| state.end(state::CLOSED)));
    closed.map_err(|refusal| leases.refused(refusal))?;
    leases.wake.notify_one();
    tracing::info!(policy = %joined.service.policy().name, "the worker has ended its lease");
    Ok(StatusCode::NO_CONTENT)
}

fn named(leases: &Leases, id: &str) -> Result<LeaseId> {
    LeaseId::parse(id).ok_or_else(|| leases.refused(LeaseRefusal::Ended(state::BAD_ID)))
}

/// The leases of a policy; an error if it has none.
pub(super) fn leasable(joined: &ServedGroup) -> Result<&Arc<Leases>> {
    let policy = joined.service.policy();
    if joined.only_observes {
        let why = format!("this sidecar only observes policy {}: ask one that has joined it (--policy)", policy.name);
        return Err(CONFLICT.because(why));
    }
    match policy.placement.kind.by_key() {
        None => Ok(&joined.leases),
        Some(_) => Err(CONFLICT.because(format!(
            "policy {} has placement {}, whose members cannot be drained, so it has no leases",
            policy.name,
            policy.placement.kind.as_str()
        ))),
    }
}

impl WorkerLease {
    fn of(state: &LeaseState, id: LeaseId, ttl: Duration, valid: Duration) -> Self {
        Self { id: id.to_string(), ttl_ms: millis(ttl), valid_ms: millis(valid), version: state.version() }
    }
}
