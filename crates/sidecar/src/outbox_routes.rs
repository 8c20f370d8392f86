//! The requests to an outbox, their permissions and their rates.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::actions::may_act;
use crate::app::App;
use crate::body;
use crate::outbox::{Outbox, OutboxReplay, OutboxStatus};
use crate::page::LOG;
use crate::problem::{BAD_REQUEST, NOT_FOUND, Result, UNAVAILABLE};

/// The timeout of a database call for a client.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of a name or a reason in a request.
const WORDS_BYTES_MAX: usize = 4_096;

/// The event to replay.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Again)]
pub(crate) struct ReplayRequest {
    /// The event's id.
    #[schema(min_length = 1, max_length = 1_000)]
    id: String,
    /// The name of the operator, for the outbox's audit table.
    #[schema(min_length = 1, max_length = 500)]
    who: String,
    /// The reason, for the audit table.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
}

/// What is the status of the outbox?
#[utoipa::path(get, path = "/v1/outbox", tag = "outbox", responses((status = 200, description = "The status of the outbox", body = OutboxStatus)))]
pub(crate) async fn status(State(app): State<Arc<App>>) -> Result<Json<OutboxStatus>> {
    app.spend()?;
    in_time(named(&app)?.status()).await.map(Json)
}

/// Replay a parked event, or retry one that blocks its aggregate.
#[utoipa::path(
    post, path = "/v1/outbox/replay", tag = "outbox", request_body(content = ReplayRequest, content_type = "application/json"),
    responses((status = 200, description = "The outcome", body = OutboxReplay))
)]
pub(crate) async fn replay(State(app): State<Arc<App>>, request: Request) -> Result<Json<OutboxReplay>> {
    may_act(&app, request.headers())?;
    let outbox = named(&app)?;
    let ReplayRequest { id, who, reason } = body::json(&app, request).await?;
    if [&id, &who, &reason].iter().any(|text| text.trim().is_empty() || text.len() > WORDS_BYTES_MAX) {
        return Err(BAD_REQUEST.because(format!("id, who and reason are texts of 1 to {WORDS_BYTES_MAX} bytes")));
    }
    app.spend()?;
    tracing::info!(target: LOG, outbox = outbox.name(), event = ?id, ?who, ?reason, "a replay of a dead letter was requested over HTTP");
    let replay = in_time(outbox.replay(&id, &who, &reason)).await.inspect_err(|problem| {
        tracing::warn!(target: LOG, outbox = outbox.name(), event = ?id, why = problem.detail(), "it is unknown whether the dead letter was replayed");
    })?;
    tracing::info!(target: LOG, outbox = outbox.name(), event = ?id, done = replay.done.as_deref(), "the replay of a dead letter has ended");
    Ok(Json(replay))
}

fn named(app: &App) -> Result<&dyn Outbox> {
    let none = || NOT_FOUND.because("this sidecar was started without an outbox: --outbox NAME names one of the settings");
    app.options.outbox.as_deref().ok_or_else(none)
}

async fn in_time<T>(answer: impl Future<Output = std::result::Result<T, String>>) -> Result<T> {
    match tokio::time::timeout(ANSWER_WITHIN, answer).await {
        Ok(answer) => answer.map_err(|why| UNAVAILABLE.because(why)),
        Err(_) => Err(UNAVAILABLE.because(format!("the outbox's database has not answered within {ANSWER_WITHIN:?}; try again"))),
    }
}
