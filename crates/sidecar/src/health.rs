//! For probes and scrapers: is this process alive, may work be sent to it, and its metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::problem::{Problem, Result};

/// A probe's answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`: anything else is an error.
    status: &'static str,
}

const OK: Json<Health> = Json(Health { status: "ok" });

/// Is this process alive?
///
/// It says nothing of the backend: to restart a worker because the backend is away would help nobody.
#[utoipa::path(get, path = "/livez", tag = "probes", responses((status = 200, description = "It is", body = Health)))]
pub(crate) async fn livez() -> Json<Health> {
    OK
}

/// Has this worker joined, seen the group, and is it not leaving?
#[utoipa::path(get, path = "/readyz", tag = "probes", responses((status = 200, description = "It has", body = Health)))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Result<Json<Health>> {
    app.not_ready().map_or(Ok(OK), |why| Err(Problem::unavailable(why)))
}

/// The metrics, in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "probes", responses((status = 200, description = "All metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response> {
    let Some(render) = &app.render else { return Err(Problem::not_found("this program counts nothing")) };
    #[expect(clippy::cast_precision_loss, reason = "so many connections there are never")]
    metrics::gauge!("shardwise_sidecar_connections").set(app.seats.len() as f64);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render()).into_response())
}

/// What stands here, for programs.
#[utoipa::path(get, path = "/openapi.json", tag = "probes", responses((status = 200, description = "This document", body = serde_json::Value)))]
pub(crate) async fn document(State(app): State<Arc<App>>) -> Response {
    ([(CONTENT_TYPE, "application/json")], app.document.clone()).into_response()
}
