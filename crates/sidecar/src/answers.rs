//! The owner of a key, this worker's share, and the members of the group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use shardwise::core::{ViewPlacement, WorkerHealth};
use shardwise::{Departure, InstanceId, Observer, ShardKey, slot_of};
use utoipa::ToSchema;

use crate::app::{App, ServedGroup};
use crate::holders::HeldBy;
use crate::millis::millis;
use crate::path_parameters::{NamePath, PolicyPath};
use crate::problem::Result;

/// The owner of a key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyOwner {
    /// The key, decoded from the path.
    key: String,
    /// Its slot; null under a key placement and while no member owns anything.
    slot: Option<u32>,
    /// The owner by the newest view; null if there is none. In a rolling upgrade with `version_rule = "newest"` it is the holder.
    owner: Option<String>,
    /// Host and port of the owner, from its record.
    address: Option<String>,
    /// Whether this worker owns it now, by its own deadline; under exclusive ownership only if work may start under the live lease.
    mine: bool,
    /// The view's number.
    revision: u64,
    #[serde(flatten)]
    held: HeldBy,
}

/// Who owns this key?
///
/// The key is in the path, percent-encoded (a slash as %2F); a path that ends with the slash has the key of 0 bytes. A path has at most
/// 65,534 bytes: ask for longer keys by `owned`.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/owner/{key}", tag = "keys",
    responses((status = 200, description = "Who owns it", body = KeyOwner))
)]
pub(crate) async fn owner(PolicyPath(joined): PolicyPath, NamePath(key): NamePath) -> Result<Json<KeyOwner>> {
    let placed = joined.placed()?;
    let view = joined.observer()?.members();
    let owner = joined.observer()?.owner(&key)?;
    let slot = match &placed {
        Some(ViewPlacement::Slots(owners)) => Some(slot_of(key.key_hash(), owners.params().slots)),
        _ => None,
    };
    let address = owner.as_ref().and_then(|id| view.member(id)).and_then(|member| member.address.as_ref()).map(ToString::to_string);
    let (mine, held) = (joined.service.owns(&key) && joined.leases.opens(&key), HeldBy::of_key(&joined, &key));
    Ok(Json(KeyOwner { slot, owner: owner.map(String::from), address, mine, revision: view.revision(), held, key }))
}

/// The share of this worker.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct WorkerShare {
    policy: String,
    group: String,
    instance_id: String,
    /// Its state: created, joining, active, stale, draining, left, fenced, refused or unsharded; `observing` where this sidecar
    /// is not a member of the group. Then nothing is owned, and the fields about a worker are null.
    state: &'static str,
    /// Why it owns nothing, if that is so.
    hint: Option<String>,
    /// An operator drained it: it stays and owns nothing.
    drained: bool,
    /// `absent` until a check of the worker has succeeded and while the worker has no lease that it needs, `failing` while its checks fail
    /// (--worker-health); else null.
    worker: Option<&'static str>,
    /// Why the latest check of the worker failed; null after one that succeeded.
    worker_failure: Option<String>,
    /// Milliseconds since the worker opened its lease; null without a live lease.
    lease_age_ms: Option<u64>,
    /// Milliseconds until the lease ends unless the worker renews it; null without a live lease.
    lease_ends_in_ms: Option<u64>,
    /// The worker's checks fail, and it keeps its share, because fewer than half of the group would stay active without it.
    spared: bool,
    /// Milliseconds until its ownership ends unless it is renewed; null if nothing is owned.
    owned_for_ms: Option<u64>,
    /// Milliseconds since the latest renewal that counted was answered; null before the first one.
    renewed_ms_ago: Option<u64>,
    /// For how many milliseconds this worker has used this view; null before it has one.
    viewed_ms_ago: Option<u64>,
    /// Milliseconds since the view was last proven current; null before the first view.
    view_age_ms: Option<u64>,
    /// The view's number.
    revision: u64,
    /// The same for all workers that see the same group.
    view_fingerprint: String,
    /// The fingerprint of the policy that the group uses; null until this worker has been active.
    policy_fingerprint: Option<String>,
    members: usize,
    /// How many slots there are, and how many are owned; null under a key placement.
    slots: Option<u32>,
    slots_owned: Option<u32>,
    /// The owned slots as inclusive ranges; null under a key placement.
    ranges: Option<Vec<[u32; 2]>>,
    /// Rises with each change of the claims that this sidecar sees, and when it cannot read them any more or can again: while it is the
    /// same, so is the answer of `holders`. Null under eventual ownership.
    claims_seen: Option<u64>,
    /// More members have vanished than `max_loss` allows, so no worker takes over what they had.
    stands_still: bool,
}

/// What does this worker own?
#[utoipa::path(
    get, path = "/v1/policies/{policy}/ownership", tag = "group",
    responses((status = 200, description = "State, deadline and slots", body = WorkerShare))
)]
pub(crate) async fn ownership(PolicyPath(joined): PolicyPath) -> Json<WorkerShare> {
    Json(if joined.only_observes { joined.observed() } else { joined.owned() })
}

impl ServedGroup {
    /// The share shown for a group that is only observed.
    fn observed(&self) -> WorkerShare {
        let (service, observer) = (&self.service, self.observer.get());
        let view = observer.map(Observer::members).unwrap_or_default();
        let placed = observer.and_then(|observer| observer.placed().ok().flatten());
        WorkerShare {
            policy: service.policy().name.to_string(),
            group: service.group_name().as_str().to_owned(),
            instance_id: service.instance_id().as_str().to_owned(),
            state: "observing",
            view_age_ms: observer.map(|observer| millis(observer.view_age())),
            revision: view.revision(),
            view_fingerprint: view.fingerprint().to_string(),
            policy_fingerprint: view.group_fingerprint().map(|fingerprint| fingerprint.to_string()),
            members: view.members().len(),
            slots: placed.and_then(|placed| if let ViewPlacement::Slots(owners) = placed { Some(owners.params().slots) } else { None }),
            claims_seen: observer.and_then(Observer::claims_seen),
            stands_still: !view.missing().is_empty(),
            ..WorkerShare::default()
        }
    }

    fn owned(&self) -> WorkerShare {
        let (service, ownership, now) = (&self.service, self.service.ownership(), self.service.now());
        let worker = service.worker().borrow().clone();
        let lease = self.leases.age_and_rest();
        let is_live = ownership.is_live_at(now);
        let slots_owned = ownership.slots_owned().map(|owned| if is_live { owned } else { 0 });
        let ranges = || if is_live { ownership.slots().ranges() } else { Vec::new() };
        WorkerShare {
            policy: service.policy().name.to_string(),
            group: service.group_name().as_str().to_owned(),
            instance_id: service.instance_id().as_str().to_owned(),
            state: ownership.state_at(now).as_str(),
            hint: self.not_owning().map(|why| why.hint),
            drained: service.is_drained(),
            worker: worker.health.map(WorkerHealth::as_str),
            worker_failure: worker.failure.as_deref().map(ToOwned::to_owned),
            lease_age_ms: lease.map(|(age, _)| millis(age)),
            lease_ends_in_ms: lease.map(|(_, rest)| millis(rest)),
            spared: service.is_spared(),
            owned_for_ms: ownership.deadline().filter(|_| is_live).map(|end| millis(end.since(now))),
            renewed_ms_ago: service.renewed_ago().map(millis),
            viewed_ms_ago: self.view_since.ago(now).map(millis),
            view_age_ms: service.view_age().map(millis),
            revision: ownership.view().revision(),
            view_fingerprint: ownership.view().fingerprint().to_string(),
            policy_fingerprint: ownership.policy_fingerprint().map(|fingerprint| fingerprint.to_string()),
            members: ownership.view().members().len(),
            slots: slots_owned.map(|_| ownership.slots().slots()),
            slots_owned,
            ranges: slots_owned.map(|_| ranges().into_iter().map(|range| [*range.start(), *range.end()]).collect()),
            claims_seen: self.observer.get().and_then(Observer::claims_seen),
            stands_still: ownership.rebalancing_frozen(),
        }
    }
}

/// The group.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Group)]
pub(crate) struct GroupMembers {
    revision: u64,
    view_fingerprint: String,
    /// Sorted by the bytes of their ids.
    members: Vec<OneMember>,
    /// Healthy instances of the group's name that have no record of shardwise.
    foreign: Vec<String>,
    /// Members that vanished without leaving, as seen by this sidecar within the last hour: at most 256, the latest last.
    vanished: Vec<Vanished>,
}

/// A member that died or lost its lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Vanished {
    instance_id: String,
    incarnation: String,
    /// When this was seen, by this machine's clock.
    at: String,
    /// Milliseconds since then.
    ms_ago: u64,
    /// A member with that id is in the group again.
    is_back: bool,
}

const VANISHED_WITHIN: Duration = Duration::from_hours(1);
const VANISHED_MAX: usize = 256;

fn vanished(observer: &Observer) -> Vec<Vanished> {
    let (view, now) = (observer.members(), SystemTime::now());
    let one = |gone: &Departure| {
        let ago = now.duration_since(gone.at).unwrap_or_default();
        (gone.vanished() && ago <= VANISHED_WITHIN).then(|| Vanished {
            instance_id: gone.instance_id.as_str().to_owned(),
            incarnation: gone.incarnation.to_string(),
            at: humantime::format_rfc3339_millis(gone.at).to_string(),
            ms_ago: millis(ago),
            is_back: view.member(&gone.instance_id).is_some(),
        })
    };
    let mut vanished: Vec<_> = observer.departures().iter().filter_map(one).collect();
    vanished.drain(..vanished.len().saturating_sub(VANISHED_MAX));
    vanished
}

/// One member as its record shows it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OneMember {
    instance_id: String,
    incarnation: String,
    /// active, draining (also if an operator drained it: those are at `drained`, or its worker does not work), pausing or away.
    state: &'static str,
    /// What it says of its worker: `absent` before it was seen, `failing` while its checks fail; else null.
    worker: Option<&'static str>,
    /// Its host and port, from its record.
    address: Option<String>,
    zone: Option<String>,
    version: Option<String>,
    weight: u32,
    /// How many slots the placement gives it; null under a key placement.
    slots: Option<u32>,
    /// How many slots it holds; null under eventual ownership and while the claims cannot be read.
    holds: Option<u32>,
    metadata: BTreeMap<String, String>,
}

/// Who is in the group?
#[utoipa::path(
    get, path = "/v1/policies/{policy}/members", tag = "group",
    responses((status = 200, description = "The members", body = GroupMembers))
)]
pub(crate) async fn members(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath) -> Result<Json<GroupMembers>> {
    // For a large group the answer is expensive to write.
    app.spend()?;
    let observer = joined.observer()?;
    let view = observer.members();
    // A group with another placement than this worker's settings is still shown.
    let loads = joined.placed().ok().flatten().map(|placed| loads(&placed)).unwrap_or_default();
    let held = observer.slots_held().ok();
    let members = view.members().iter().map(|member| OneMember {
        instance_id: member.instance_id.as_str().to_owned(),
        incarnation: member.incarnation.to_string(),
        state: member.state.as_str(),
        worker: member.worker.map(WorkerHealth::as_str),
        address: member.address.as_ref().map(ToString::to_string),
        zone: member.zone.clone(),
        version: member.version.clone(),
        weight: member.weight.get().into(),
        slots: loads.get(&member.instance_id).copied(),
        holds: held.as_ref().map(|held| held.get(&member.instance_id).copied().unwrap_or(0)),
        metadata: member.metadata.clone(),
    });
    Ok(Json(GroupMembers {
        revision: view.revision(),
        view_fingerprint: view.fingerprint().to_string(),
        members: members.collect(),
        foreign: view.foreign().iter().map(|id| id.as_str().to_owned()).collect(),
        vanished: vanished(observer),
    }))
}

/// The number of slots of each member; empty under a key placement.
fn loads(placed: &ViewPlacement) -> BTreeMap<InstanceId, u32> {
    let ViewPlacement::Slots(owners) = placed else { return BTreeMap::new() };
    let mut loads: BTreeMap<_, u32> = owners.members().iter().map(|(id, _)| (id.clone(), 0)).collect();
    for slot in 0..owners.params().slots {
        if let Some(load) = owners.owner_of_slot(slot).and_then(|owner| loads.get_mut(owner)) {
            *load += 1;
        }
    }
    loads
}
