//! The explanation of a key's owner, step by step.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use shardwise::core::{Explanation, KeyExplanation, ViewPlacement, WalkStep};
use utoipa::ToSchema;

use crate::app::{App, in_turn};
use crate::holders::HeldBy;
use crate::path_parameters::{NamePath, PolicyPath};
use crate::problem::Result;

/// The steps from a key to its owner. Points on the ring and hashes are hexadecimal text, because many readers of JSON keep only 53 of
/// their 64 bits.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Explained)]
pub(crate) struct ExplainResponse {
    key: String,
    /// ring, quota, uhashring, modulo or hashring; null while no member owns anything.
    placement: Option<&'static str>,
    hash: Option<String>,
    slot: Option<u32>,
    /// The start of the slot: the walk goes clockwise from there.
    start: Option<String>,
    /// The members that were passed over because they are full, in the order of the walk.
    passed: Vec<Step>,
    /// The owner; null if there is none.
    owner: Option<Step>,
    /// Under quota: the member that the slot was given to before it was moved to the owner; else null.
    before: Option<Step>,
    /// The owner if the present one left.
    next: Option<String>,
    #[serde(flatten)]
    held: HeldBy,
}

/// A member that the walk visited.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Step {
    instance_id: String,
    /// Which of its points, from 0.
    point: Option<u32>,
    /// The place of that point on the ring.
    place: Option<String>,
    /// How many slots it already had.
    slots: Option<u32>,
    /// The most slots that it takes.
    capacity: Option<u32>,
    /// Under quota with different weights: the slots that all members of its weight already had; else null.
    weight_slots: Option<u32>,
    /// The most slots that those members take together; when it is reached, all of them are passed over.
    weight_capacity: Option<u32>,
}

/// Why does this key have its owner?
///
/// For people: it costs as much as two placements.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/explain/{key}", tag = "keys",
    responses((status = 200, description = "The steps from the key to its owner", body = ExplainResponse))
)]
pub(crate) async fn explain(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(key): NamePath,
) -> Result<Json<ExplainResponse>> {
    app.spend()?;
    let Some(placed) = joined.placed()? else { return Ok(Json(ExplainResponse { key, ..ExplainResponse::default() })) };
    let held = HeldBy::of_key(&joined, &key);
    let explained = in_turn(&app.placing, move || explained(key, &placed)).await?;
    Ok(Json(ExplainResponse { held, ..explained }))
}

fn explained(key: String, placed: &ViewPlacement) -> ExplainResponse {
    match placed {
        ViewPlacement::Slots(owners) => {
            let Explanation { hash, slot, start, passed, owner, before, next } = owners.explain(&key);
            ExplainResponse {
                key,
                placement: Some(owners.params().kind.as_str()),
                hash: Some(format!("{hash:016x}")),
                slot: Some(slot),
                start: Some(format!("{start:016x}")),
                passed: passed.iter().map(step).collect(),
                owner: owner.as_ref().map(step),
                before: before.as_ref().map(step),
                next: next.map(String::from),
                held: HeldBy::default(),
            }
        }
        ViewPlacement::Keys(owners) => {
            let KeyExplanation { hash, point, position: _, owner, next } = owners.explain(&key);
            let owner = owner.map(|id| Step { instance_id: id.into(), place: point, ..Step::default() });
            let (placement, hash, next) = (Some(owners.placement().as_str()), Some(hash), next.map(String::from));
            ExplainResponse { key, placement, hash, owner, next, ..ExplainResponse::default() }
        }
    }
}

fn step(stop: &WalkStep) -> Step {
    Step {
        instance_id: stop.instance_id.as_str().to_owned(),
        point: Some(stop.point),
        place: Some(format!("{:016x}", stop.place)),
        slots: Some(stop.slots),
        capacity: Some(stop.capacity),
        weight_slots: stop.together.map(|together| together.slots),
        weight_capacity: stop.together.map(|together| together.most),
    }
}
