//! The fences of keys in which the worker may start work now.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use shardwise::Fence;
use utoipa::ToSchema;

use super::lease::leasable;
use crate::app::App;
use crate::body;
use crate::key_list::KEY_BYTES_MAX;
use crate::leases::open_fence;
use crate::millis::millis;
use crate::path_parameters::PolicyPath;
use crate::problem::{BAD_KEY, BAD_REQUEST, Result};

/// The most keys of one request.
const KEYS_MAX: usize = 1_000;

/// The keys in which work is to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EnterRequest {
    #[schema(max_items = 1_000)]
    keys: Vec<String>,
}

/// A key that is held now, with its fence.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EnteredKey {
    key: String,
    slot: u32,
    /// The fencing token for the worker's own writes.
    epoch: u64,
    /// For how long it is held unless the lease is renewed, counted from before the request was sent, in milliseconds.
    valid_ms: u64,
}

/// Which of these keys are held now, and under which fence?
///
/// The answer has those that are held, in the order of the request. The slot of each stays until the worker has finished it
/// (`grants/finished`).
#[utoipa::path(
    post, path = "/v1/policies/{policy}/enter", tag = "worker",
    request_body(content = EnterRequest, content_type = "application/json"),
    params(("shardwise-lease" = Option<String>, Header, description = "The id of the worker's lease")),
    responses((status = 200, description = "The keys that are held", body = Vec<EnteredKey>))
)]
pub(crate) async fn enter(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, request: Request) -> Result<Json<Vec<EnteredKey>>> {
    let leases = leasable(&joined)?;
    leases.grants_anything()?;
    let id = leases.shown(request.headers())?;
    let EnterRequest { keys } = body::json(&app, request).await?;
    if keys.len() > KEYS_MAX {
        return Err(BAD_REQUEST.because(format!("at most {KEYS_MAX} keys in one request")));
    }
    if keys.iter().any(|key| key.len() > KEY_BYTES_MAX) {
        return Err(BAD_KEY.because(format!("a key has at most {KEY_BYTES_MAX} bytes")));
    }
    let entered = leases.read_unswept(|state, now, valid| {
        state.check(now, id)?;
        let (ownership, valid_ms) = (leases.service.ownership(), millis(valid));
        let entered = keys.into_iter().filter_map(|key| {
            let Fence { slot, epoch } = open_fence(state, &ownership, now, &key)?;
            Some(EnteredKey { slot, epoch: epoch.get(), valid_ms, key })
        });
        Ok(entered.collect())
    });
    Ok(Json(entered.map_err(|refusal| leases.refused(refusal))?))
}
