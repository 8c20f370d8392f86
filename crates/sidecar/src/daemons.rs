//! The number of daemons of a set, which operators read and set, also in a group that this sidecar only observes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use shardwise::{DAEMONS_MAX, DaemonCount};
use utoipa::ToSchema;

use crate::actions::may_act;
use crate::app::App;
use crate::body::{self, Whole};
use crate::page::LOG;
use crate::path_parameters::{NamePath, PolicyPath};
use crate::problem::{BAD_REQUEST, Result};

/// The wish for a number of daemons.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DaemonSetRequest {
    /// How many daemons run from now on.
    #[schema(value_type = u64, maximum = 1_024)]
    count: Whole,
}

/// The number of daemons of a set.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DaemonSetSize {
    /// The set, decoded from the path.
    set: String,
    /// How many daemons run; null if no number is set, and then none runs.
    count: Option<u32>,
}

/// The new number of daemons of a set.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DaemonSetChange {
    /// The set, decoded from the path.
    set: String,
    count: u32,
    /// The number before; null if none was set.
    before: Option<u32>,
}

/// How many daemons does a set have?
///
/// The set is in the path, percent-encoded (a slash as %2F); a path that ends with the slash has the set without a name.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/daemons/{set}", tag = "operator",
    responses((status = 200, description = "The number", body = DaemonSetSize))
)]
pub(crate) async fn daemon_count(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(set): NamePath,
) -> Result<Json<DaemonSetSize>> {
    let (policy, of) = (joined.service.policy().name.to_string(), set.clone());
    let count = app.call(|factory| async move { factory.daemon_count(&policy, &of).await }).await?;
    Ok(Json(DaemonSetSize { set, count: number_in(count) }))
}

/// Set how many daemons a set has.
///
/// Members that offer the set read the number within a TTL. With a smaller number the highest daemons end.
#[utoipa::path(
    put, path = "/v1/policies/{policy}/daemons/{set}", tag = "operator",
    request_body(content = DaemonSetRequest, content_type = "application/json"),
    responses((status = 200, description = "The number is stored", body = DaemonSetChange))
)]
pub(crate) async fn set_daemon_count(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(set): NamePath,
    request: Request,
) -> Result<Json<DaemonSetChange>> {
    may_act(&app, request.headers())?;
    let DaemonSetRequest { count } = body::json(&app, request).await?;
    let count = allowed(count)?;
    let (policy, of) = (joined.service.policy().name.to_string(), set.clone());
    let name = policy.clone();
    tracing::info!(target: LOG, policy, ?set, count, "a number of daemons was requested over HTTP");
    let call = |factory: shardwise::ShardingFactory| async move { factory.set_daemon_count(&name, &of, count).await };
    let before = app.call(call).await.inspect_err(|problem| {
        let why = problem.detail();
        if problem.is_refusal() {
            tracing::warn!(target: LOG, policy, ?set, count, why, "the number of daemons was refused, and nothing was stored");
        } else {
            tracing::warn!(target: LOG, policy, ?set, count, why, "it is unknown whether the number of daemons was stored");
        }
    })?;
    let before = number_in(before);
    tracing::info!(target: LOG, policy, ?set, count, ?before, "the number of daemons is stored");
    Ok(Json(DaemonSetChange { set, count, before }))
}

fn number_in(count: DaemonCount) -> Option<u32> {
    count.is_set().then(|| count.get())
}

/// The number, if a set may have so many daemons.
pub(crate) fn allowed(Whole(number): Whole) -> Result<u32> {
    let refused = || BAD_REQUEST.because(format!("{number} daemons are too many; 0 to {DAEMONS_MAX} are allowed"));
    u32::try_from(number).ok().filter(|number| *number <= DAEMONS_MAX).ok_or_else(refused)
}
