//! Predicts what would move if members joined or left.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use shardwise::core::{Balance, MEMBERS_MAX, PlacementChange, ViewPlacement, WEIGHT_MAX};
use shardwise::{InstanceId, PlacementParams, Weight};
use utoipa::ToSchema;

use crate::app::{App, PolicyPath, in_turn};
use crate::body;
use crate::problem::{BAD_REQUEST, CONFLICT, Result, UNKNOWN_INSTANCE};

/// A hypothetical change of the group.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Wanted)]
pub(crate) struct PlanRequest {
    /// The members that would join.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    join: Vec<Newcomer>,
    /// The ids of the members that would leave.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    leave: Vec<String>,
}

/// A member that would join.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Newcomer {
    instance_id: String,
    /// 1 unless set.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100)]
    weight: Option<f64>,
}

/// What would move.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Planned)]
pub(crate) struct PlanResponse {
    placement: &'static str,
    /// The share of all keys that would have another owner, from 0 to 1.
    moved_share: f64,
    /// The share of all keys that would move if all shares matched the weights exactly.
    exact_share: f64,
    /// The moves between pairs of members, the largest first.
    moves: Vec<PlanMove>,
    before: Evenness,
    after: Evenness,
}

/// Keys that would go from one member to another.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Moved)]
pub(crate) struct PlanMove {
    /// Null if the keys had no owner.
    from: Option<String>,
    /// Null if the keys would have no owner.
    to: Option<String>,
    /// The share of all keys, from 0 to 1.
    share: f64,
}

/// How even the load is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Evenness {
    members: usize,
    /// The load of the most loaded member over the share of its weight.
    peak: f64,
    /// The same for the least loaded member.
    least: f64,
}

/// The most members that may join or leave in one request.
const CHANGES_MOST: usize = 1_000;

type MemberWeights = Vec<(InstanceId, Weight)>;

/// What would move if members joined or left?
///
/// Changes nothing. The plan starts from the members that the placement counts now.
#[utoipa::path(
    post, path = "/v1/policies/{policy}/plan", tag = "group",
    request_body(content = PlanRequest, content_type = "application/json"),
    responses((status = 200, description = "What would move", body = PlanResponse))
)]
pub(crate) async fn plan(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, request: Request) -> Result<Json<PlanResponse>> {
    let (bytes, room) = body::whole_json(&app, request).await?;
    // Not earlier, because unfinished requests would use up the rate.
    app.spend()?;
    let (params, before) = match joined.placed()? {
        Some(ViewPlacement::Slots(owners)) => (*owners.params(), owners.members().to_vec()),
        Some(ViewPlacement::Keys(owners)) => (joined.service.policy().placement, owners.members().to_vec()),
        None => (joined.service.policy().placement, Vec::new()),
    };
    // The request is parsed on this thread too: it may take many times the memory of its text.
    let work = move || {
        let wanted = body::parsed(&bytes)?;
        drop(bytes);
        let after = after(&before, wanted)?;
        planned(before, after, params)
    };
    room.unless_given_up(in_turn(&app.placing, work)).await??.map(Json)
}

fn after(before: &[(InstanceId, Weight)], wanted: PlanRequest) -> Result<MemberWeights> {
    if wanted.join.len().max(wanted.leave.len()) > CHANGES_MOST {
        return Err(BAD_REQUEST.because(format!("at most {CHANGES_MOST} may join and as many leave")));
    }
    let mut after = before.to_vec();
    for id in &wanted.leave {
        let Some(at) = after.iter().position(|(known, _)| known.as_str() == id) else {
            let there = before.iter().take(32).map(|(id, _)| id.as_str()).collect::<Vec<_>>().join(", ");
            return Err(UNKNOWN_INSTANCE.because(format!("leave {:?}: there is no member of that id; there are: {there}", short(id))));
        };
        after.remove(at);
    }
    for Newcomer { instance_id, weight } in wanted.join {
        let join = |why: &dyn std::fmt::Display| format!("join {:?}: {why}", short(&instance_id));
        let id = InstanceId::new(&instance_id).map_err(|error| CONFLICT.because(join(&error)))?;
        let weight = (1..=WEIGHT_MAX)
            .find(|whole| f64::from(*whole).total_cmp(&weight.unwrap_or(1.0)).is_eq())
            .and_then(|whole| Weight::new(whole.into()));
        let weight = weight.ok_or_else(|| BAD_REQUEST.because(join(&format_args!("a weight is a whole number from 1 to {WEIGHT_MAX}"))))?;
        if after.iter().any(|(known, _)| *known == id) {
            return Err(CONFLICT.because(format!("join {:?}: there is a member of that id already", short(&instance_id))));
        }
        after.push((id, weight));
    }
    if after.len() > MEMBERS_MAX as usize {
        return Err(CONFLICT.because(format!("a group has at most {MEMBERS_MAX} members")));
    }
    Ok(after)
}

fn short(id: &str) -> String {
    id.chars().take(64).collect()
}

fn planned(before: MemberWeights, after: MemberWeights, params: PlacementParams) -> Result<PlanResponse> {
    let change = PlacementChange::new((before, params), (after, params)).map_err(|error| CONFLICT.because(error.to_string()))?;
    let evenness = |balance: &Balance| Evenness { members: balance.members, peak: balance.peak, least: balance.least };
    let text = |id: Option<InstanceId>| id.map(String::from);
    Ok(PlanResponse {
        placement: change.before.placement,
        moved_share: change.moved_share,
        exact_share: change.exact_share,
        before: evenness(&change.before.balance),
        after: evenness(&change.after.balance),
        moves: change.moves.into_iter().map(|pair| PlanMove { from: text(pair.from), to: text(pair.to), share: pair.share }).collect(),
    })
}
