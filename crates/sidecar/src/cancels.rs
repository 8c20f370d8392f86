//! Cancels a request by its id.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};

use crate::actions::may_send;
use crate::app::App;
use crate::path_parameters::{NamePath, PolicyPath};
use crate::problem::{NOT_FOUND, Result};

/// Cancel a request.
///
/// The id is what the client has sent with the request in the header `shardwise-request-id`. The request is answered with 502 `cancelled`,
/// and its handler is ended if it has begun. 404 if no request with that id is in flight here.
#[utoipa::path(
    delete, path = "/v1/policies/{policy}/requests/{id}", tag = "requests",
    responses((status = 204, description = "It is cancelled"))
)]
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(id): NamePath,
    headers: HeaderMap,
) -> Result<StatusCode> {
    may_send(&app, &headers)?;
    if app.cancels.cancel(joined.service.policy().name.as_str(), &id) {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(NOT_FOUND.because("no request with this id is in flight here: it has ended, or was sent to another sidecar"))
}
