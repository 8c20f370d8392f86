//! Predicts what would move if members joined or left.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use shardwise::core::{Balance, MEMBERS_MAX, PlacementChange, ViewPlacement, WEIGHT_MAX};
use shardwise::{InstanceId, Member, MemberState, PlacementParams, View, Weight};
use utoipa::ToSchema;

use crate::app::{App, in_turn};
use crate::body;
use crate::path_parameters::PolicyPath;
use crate::problem::{BAD_REQUEST, CONFLICT, Result, UNKNOWN_INSTANCE};

/// A hypothetical change of the group.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Wanted)]
pub(crate) struct PlanRequest {
    /// The members that would join, or that are drained and would be undrained.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    join: Vec<Newcomer>,
    /// The ids of the members that would leave. With a drained member nothing moves.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    leave: Vec<String>,
}

/// A member that would join.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Newcomer {
    instance_id: String,
    /// Unless set, 1, or of a drained member the weight in its record.
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
const CHANGES_MAX: usize = 1_000;

type MemberWeights = Vec<(InstanceId, Weight)>;

/// What would move if members joined or left?
///
/// Changes nothing. The plan starts from the members that the placement counts now; drained members are not among them.
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
    let view = joined.observer()?.members();
    // The request is parsed on this thread too: it may take many times the memory of its text.
    let work = move || {
        let wanted = body::parsed(&bytes)?;
        drop(bytes);
        let after = after(&before, &view, wanted)?;
        planned(before, after, params)
    };
    room.unless_given_up(in_turn(&app.placing, work)).await??.map(Json)
}

fn after(before: &[(InstanceId, Weight)], view: &View, wanted: PlanRequest) -> Result<MemberWeights> {
    if wanted.join.len().max(wanted.leave.len()) > CHANGES_MAX {
        return Err(BAD_REQUEST.because(format!("at most {CHANGES_MAX} may join and as many leave")));
    }
    let mut after = before.to_vec();
    for id in &wanted.leave {
        if let Some(at) = after.iter().position(|(known, _)| known.as_str() == id) {
            after.remove(at);
        } else if idle(view, before, id).is_none() {
            let there = view.members().iter().take(32).map(|member| member.instance_id.as_str()).collect::<Vec<_>>().join(", ");
            return Err(UNKNOWN_INSTANCE.because(format!("leave {:?}: there is no member of that id; there are: {there}", short(id))));
        }
    }
    for Newcomer { instance_id, weight } in wanted.join {
        let join = |why: &dyn std::fmt::Display| format!("join {:?}: {why}", short(&instance_id));
        let id = InstanceId::new(&instance_id).map_err(|error| CONFLICT.because(join(&error)))?;
        let weight = match weight {
            Some(weight) => {
                (1..=WEIGHT_MAX).find(|whole| f64::from(*whole).total_cmp(&weight).is_eq()).and_then(|whole| Weight::new(whole.into()))
            }
            None => Some(idle(view, before, &instance_id).map_or(Weight::ONE, |member| member.weight)),
        };
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

/// The member of that id, if it is drained or leaves, and so has no share.
fn idle<'v>(view: &'v View, before: &[(InstanceId, Weight)], id: &str) -> Option<&'v Member> {
    let member = view.member(&InstanceId::new(id).ok()?)?;
    let has_share = before.iter().any(|(known, _)| *known == member.instance_id);
    (member.state == MemberState::Draining && !has_share).then_some(member)
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

#[cfg(test)]
mod tests {
    use shardwise::MemberState;

    use super::*;

    /// What is left of a group of `here` and the drained `drained`, which has weight 3.
    fn left(wanted: &str) -> Result<Vec<(String, u8)>> {
        let named = |id: &str| Member::named(InstanceId::new(id).unwrap());
        let drained = Member { state: MemberState::Draining, weight: Weight::new(3).unwrap(), ..named("drained") };
        let view = View::new(1, vec![named("here"), drained]);
        let after = after(&[(InstanceId::new("here").unwrap(), Weight::ONE)], &view, serde_json::from_str(wanted).unwrap())?;
        Ok(after.into_iter().map(|(id, weight)| (id.as_str().to_owned(), weight.get())).collect())
    }

    #[test]
    fn a_drained_member_may_leave_and_joins_with_its_weight() {
        let of = |members: &[(&str, u8)]| members.iter().map(|(id, weight)| ((*id).to_owned(), *weight)).collect::<Vec<_>>();
        assert_eq!(left(r#"{"leave":["drained"]}"#).unwrap(), of(&[("here", 1)]));
        assert_eq!(left(r#"{"join":[{"instance_id":"drained"}]}"#).unwrap(), of(&[("here", 1), ("drained", 3)]));
        assert_eq!(left(r#"{"join":[{"instance_id":"drained","weight":2}]}"#).unwrap(), of(&[("here", 1), ("drained", 2)]));
        assert_eq!(left(r#"{"join":[{"instance_id":"new"}]}"#).unwrap(), of(&[("here", 1), ("new", 1)]));
    }

    #[test]
    fn only_members_can_leave_and_each_only_once() {
        for (wanted, status) in
            [(r#"{"leave":["nobody"]}"#, 404), (r#"{"leave":["here","here"]}"#, 404), (r#"{"join":[{"instance_id":"here"}]}"#, 409)]
        {
            assert_eq!(left(wanted).unwrap_err().status(), status, "{wanted}");
        }
        assert!(left(r#"{"leave":["nobody"]}"#).unwrap_err().detail().contains("there are: drained, here"));
    }
}
