//! An outbox in the sidecar: its status, and replay of its dead letters. The program that starts the sidecar implements the outbox;
//! this module has the requests, their permissions and their rates.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::App;
use crate::body;
use crate::page::{LOG, may_act};
use crate::problem::{BAD_REQUEST, NOT_FOUND, Result, UNAVAILABLE};

/// The timeout of a database call for a client.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of a name or a reason in a request.
const WORDS_BYTES_MAX: usize = 4_096;

/// An outbox whose status is shown and whose dead letters can be replayed.
pub trait Outbox: Send + Sync {
    /// Its name in the settings.
    fn name(&self) -> &str;

    /// Its present status. The error is a message.
    fn status(&self) -> BoxFuture<'_, std::result::Result<OutboxStatus, String>>;

    /// Replays a dead letter. `who` and `why` are written to the outbox's audit table; neither is empty.
    fn replay<'a>(&'a self, event: &'a str, who: &'a str, why: &'a str) -> BoxFuture<'a, std::result::Result<OutboxReplay, String>>;
}

/// The status of an outbox.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutboxStatus {
    /// Its name in the settings.
    pub outbox: String,
    /// What is stuck: events that no living publisher sends, or a backlog that is too old. Empty if nothing is.
    pub stuck: Vec<OutboxStuck>,
    /// Events not delivered yet, parked ones not counted.
    pub pending: u64,
    /// Age of the oldest of them in milliseconds; null if there is none.
    pub oldest_pending_age_ms: Option<u64>,
    /// How many aggregates wait for an operator.
    pub blocked_aggregates: u64,
    /// How many aggregates retry an event that failed.
    pub retrying_aggregates: u64,
    /// Events set aside.
    pub parked: u64,
    /// Slots that no living publisher holds.
    pub free_slots: u32,
    /// Publishers that are alive.
    pub publishers: usize,
    /// The oldest dead letters: parked, or at the head of a blocked aggregate.
    pub dead: Vec<OutboxLetter>,
    /// There are more of them.
    pub more: bool,
}

/// Why events wait that should have been delivered.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutboxStuck {
    /// `no_publisher`: events are pending in slots that no living publisher holds; `old_backlog`: the oldest pending event is older than a
    /// minute and than ten polls; `not_restored`: every event is refused until `shardwise outbox restored` has run.
    pub cause: String,
    /// What is stuck and what to do, for people.
    pub detail: String,
}

/// An event that is parked or that blocks its aggregate.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutboxLetter {
    /// The event's id.
    pub id: String,
    /// Its aggregate: type, slash, id.
    pub key: String,
    /// The event's type.
    pub event_type: String,
    /// Its place in the aggregate's order.
    pub sequence: u64,
    /// parked or blocked.
    pub state: String,
    /// For how many milliseconds.
    pub dead_for_ms: u64,
    /// The sink's message.
    pub error: String,
}

/// The outcome of a replay.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutboxReplay {
    /// The event's id.
    pub id: String,
    /// replayed, unblocked, or null: it is no dead letter.
    pub done: Option<String>,
    /// Its new sequence, if it has one.
    pub sequence: Option<u64>,
}

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
