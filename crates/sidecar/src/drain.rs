//! The operator's actions: draining and undraining a member. They always require the token.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use shardwise::InstanceId;
use utoipa::ToSchema;

use crate::actions::may_act;
use crate::app::App;
use crate::body;
use crate::page::LOG;
use crate::path_parameters::PolicyPath;
use crate::problem::{Result, UNKNOWN_INSTANCE};

/// The member to drain or undrain.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Whom)]
pub(crate) struct DrainTarget {
    instance_id: String,
}

/// The result of a drain or undrain.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Heard)]
pub(crate) struct DrainResponse {
    instance_id: String,
    /// Whether it is drained from now on; the member sees it within a TTL.
    drained: bool,
    /// False if it was so already.
    changed: bool,
}

/// Drain a member: it stays registered and owns no slots, even after restarts.
#[utoipa::path(
    post, path = "/v1/policies/{policy}/drain", tag = "operator",
    request_body(content = DrainTarget, content_type = "application/json"),
    responses((status = 200, description = "The member is drained", body = DrainResponse))
)]
pub(crate) async fn drain(app: State<Arc<App>>, of: PolicyPath, request: Request) -> Result<Json<DrainResponse>> {
    wish(app, of, request, true).await
}

/// Undrain a member: it takes its share again.
#[utoipa::path(
    post, path = "/v1/policies/{policy}/undrain", tag = "operator",
    request_body(content = DrainTarget, content_type = "application/json"),
    responses((status = 200, description = "The member is no longer drained", body = DrainResponse))
)]
pub(crate) async fn undrain(app: State<Arc<App>>, of: PolicyPath, request: Request) -> Result<Json<DrainResponse>> {
    wish(app, of, request, false).await
}

async fn wish(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, request: Request, drained: bool) -> Result<Json<DrainResponse>> {
    may_act(&app, request.headers())?;
    let DrainTarget { instance_id } = body::json(&app, request).await?;
    // A text that cannot be an id names no member.
    let id = InstanceId::new(&instance_id).map_err(|error| UNKNOWN_INSTANCE.because(error.to_string()))?;
    let policy = joined.service.policy().name.to_string();
    let (name, whom) = (policy.clone(), id.clone());
    let call = |factory: shardwise::ShardingFactory| async move {
        if drained { factory.drain(&name, &whom).await } else { factory.undrain(&name, &whom).await }
    };
    tracing::info!(target: LOG, policy, instance = %id, drained, "a drain or undrain was requested over HTTP");
    let changed = app.call(call).await.inspect_err(|problem| {
        let why = problem.detail();
        if problem.is_refusal() {
            tracing::warn!(target: LOG, policy, instance = %id, drained, why, "the drain or undrain was refused, and nothing was stored");
        } else {
            tracing::warn!(target: LOG, policy, instance = %id, drained, why, "it is unknown whether the drain or undrain was stored");
        }
    })?;
    tracing::info!(target: LOG, policy, instance = %id, drained, changed, "the drain or undrain is stored");
    Ok(Json(DrainResponse { instance_id, drained, changed }))
}
