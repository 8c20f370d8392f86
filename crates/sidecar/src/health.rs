//! Routes for probes and scrapers: liveness, readiness, metrics, and the API description.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use shardwise::core::Moment;
use shardwise::{Sharding as _, ShardingService};
use utoipa::ToSchema;

use crate::app::App;
use crate::problem::{NOT_FOUND, Result, UNAVAILABLE};

/// A probe's answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`; every other result is an error.
    status: &'static str,
}

/// Why `/metrics` is missing: the command `shardwise` renders metrics only with that feature.
const NO_METRICS: &str = "this program has no metrics: it was built without the feature prometheus; install it with --features prometheus";

const OK: Json<Health> = Json(Health { status: "ok" });

/// Is this process alive?
///
/// It does not depend on the backend, because a restart does not help while the backend is unreachable. It is 503 if the end of ownership
/// has gone unnoticed for a TTL: the task that keeps ownership hangs or has ended.
#[utoipa::path(get, path = "/livez", tag = "probes", responses((status = 200, description = "It is", body = Health)))]
pub(crate) async fn livez(State(app): State<Arc<App>>) -> Result<Json<Health>> {
    let hung = app.policies.iter().find(|(_, joined)| !goes_on(&joined.service));
    hung.map_or(
        Ok(OK),
        |(name, _)| Err(UNAVAILABLE.because(format!("policy {name}: the task that keeps its ownership hangs or has ended"))),
    )
}

/// Whether the service's driver works: it must notice the end of a deadline within a TTL, or it hangs. An unreachable backend is no reason
/// for a restart.
pub fn goes_on(service: &ShardingService) -> bool {
    is_noticed(service.ownership().deadline(), service.now(), service.timing().ttl)
}

fn is_noticed(deadline: Option<Moment>, now: Moment, ttl: Duration) -> bool {
    deadline.is_none_or(|deadline| now <= deadline.plus(ttl))
}

/// Has this worker joined, seen the group, and is it not leaving?
#[utoipa::path(get, path = "/readyz", tag = "probes", responses((status = 200, description = "It has", body = Health)))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Result<Json<Health>> {
    app.not_ready().map_or(Ok(OK), |why| Err(UNAVAILABLE.because(why)))
}

/// The metrics, in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "probes", responses((status = 200, description = "All metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response> {
    let Some(render) = &app.options.render else { return Err(NOT_FOUND.because(NO_METRICS)) };
    #[expect(clippy::cast_precision_loss, reason = "the number of connections is far below 2^52")]
    metrics::gauge!(crate::metrics::CONNECTIONS.name).set(app.connections.len() as f64);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render()).into_response())
}

/// The description of this API, for programs.
#[utoipa::path(get, path = "/openapi.json", tag = "probes", responses((status = 200, description = "This document", body = serde_json::Value)))]
pub(crate) async fn document(State(app): State<Arc<App>>) -> Response {
    ([(CONTENT_TYPE, "application/json")], app.document.clone()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_went_unnoticed_for_a_ttl_is_a_hung_driver() {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let noticed = |deadline, now| is_noticed(deadline, at(now), Duration::from_secs(10));
        assert!(noticed(None, 1_000) && noticed(Some(at(50)), 40) && noticed(Some(at(50)), 60));
        assert!(!noticed(Some(at(50)), 61));
    }
}
