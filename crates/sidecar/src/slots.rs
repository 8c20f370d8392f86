//! The owner of each slot, and the policies: the data for a picture of the group.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use shardwise::core::{SlotOwners, ViewPlacement};
use shardwise::{ErrorKind, Sharding as _};
use utoipa::ToSchema;

use crate::app::{App, ServedGroup};
use crate::millis::millis;
use crate::path_parameters::PolicyPath;
use crate::problem::Result;

/// The policies of a sidecar.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Served)]
pub(crate) struct PolicyList {
    /// The worker that it answers for.
    instance_id: String,
    /// Whether a client with the token may drain members; false without a token.
    may_act: bool,
    /// The outbox that is shown at /v1/outbox; null if none is configured.
    outbox: Option<String>,
    /// By name.
    policies: Vec<OnePolicy>,
}

/// A policy.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OnePolicy {
    policy: String,
    group: String,
    /// eventual or exclusive.
    ownership: &'static str,
    /// The group is only observed: this sidecar is not a member of it.
    only_observed: bool,
    /// With fewer active members no member owns anything.
    min_members: u32,
    /// How long a record lives without renewal.
    ttl_ms: u64,
}

/// Which policies does this sidecar serve?
#[utoipa::path(get, path = "/v1/policies", tag = "group", responses((status = 200, description = "The policies", body = PolicyList)))]
pub(crate) async fn policies(State(app): State<Arc<App>>) -> Json<PolicyList> {
    let one = |(name, joined): (&String, &Arc<ServedGroup>)| {
        let (service, policy) = (&joined.service, joined.service.policy());
        OnePolicy {
            policy: name.clone(),
            group: policy.group.as_str().to_owned(),
            ownership: policy.ownership.as_str(),
            only_observed: joined.only_observes,
            min_members: policy.min_members,
            ttl_ms: millis(service.timing().ttl),
        }
    };
    Json(PolicyList {
        instance_id: app.factory.instance_id().as_str().to_owned(),
        may_act: app.options.token.is_some(),
        outbox: app.options.outbox.as_deref().map(|outbox| outbox.name().to_owned()),
        policies: app.policies.iter().map(one).collect(),
    })
}

/// The owner of every slot.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Slots {
    revision: u64,
    view_fingerprint: String,
    /// ring, quota, uhashring, modulo or hashring; null while no member owns anything, and if `hint` says why it is unknown.
    placement: Option<&'static str>,
    /// The members that the placement counts, sorted by the bytes of their ids.
    members: Vec<WeightedMember>,
    /// For every slot its owner's index in `members`, from 0; null under a key placement and while no member owns anything.
    owners: Option<Vec<usize>>,
    /// Why this worker cannot compute the placement of the group, if its settings differ.
    hint: Option<String>,
}

/// A member that the placement counts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Weighed)]
pub(crate) struct WeightedMember {
    instance_id: String,
    weight: u32,
}

/// Who owns which slot?
///
/// By the placement of the newest view. Under exclusive ownership another member may still hold the slot.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/slots", tag = "group",
    responses((status = 200, description = "The owner of every slot", body = Slots))
)]
pub(crate) async fn slots(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath) -> Result<Json<Slots>> {
    app.spend()?;
    // In this order: if the view is newer than the placement, a client that compares them asks again.
    let observer = joined.observer()?;
    let (placed, hint) = match observer.placed() {
        Ok(placed) => (placed, None),
        // The members are still shown, with the reason why the owners are not.
        Err(error) if matches!(error.kind(), ErrorKind::OtherPolicy | ErrorKind::Settings) => (None, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let view = observer.members();
    let (placement, owners) = match &placed {
        None => (None, None),
        Some(ViewPlacement::Keys(owners)) => (Some(owners.placement().as_str()), None),
        Some(ViewPlacement::Slots(owners)) => (Some(owners.params().kind.as_str()), places(owners)),
    };
    let members = placed.iter().flat_map(ViewPlacement::members);
    let members = members.map(|(id, weight)| WeightedMember { instance_id: id.as_str().to_owned(), weight: weight.get().into() }).collect();
    let (revision, view_fingerprint) = (view.revision(), view.fingerprint().to_string());
    Ok(Json(Slots { revision, view_fingerprint, placement, members, owners, hint }))
}

/// `None` if no slot has an owner.
fn places(owners: &SlotOwners) -> Option<Vec<usize>> {
    let places: HashMap<_, _> = owners.members().iter().enumerate().map(|(place, (id, _))| (id, place)).collect();
    (0..owners.params().slots).map(|slot| owners.owner_of_slot(slot).and_then(|id| places.get(id)).copied()).collect()
}

/// The members that operators have drained.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Drained)]
pub(crate) struct DrainedMembers {
    /// Their ids, the latest request last; they may be absent.
    drained: Vec<String>,
}

/// Who is drained?
#[utoipa::path(
    get, path = "/v1/policies/{policy}/drained", tag = "operator",
    responses((status = 200, description = "The members that operators have drained", body = DrainedMembers))
)]
pub(crate) async fn drained(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath) -> Result<Json<DrainedMembers>> {
    let policy = joined.service.policy().name.to_string();
    let drained = app.call(|factory| async move { factory.drained(&policy).await }).await?;
    Ok(Json(DrainedMembers { drained: drained.into_iter().map(String::from).collect() }))
}
