//! Who holds each slot and name, under exclusive ownership.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use shardwise::core::{Holding, Moment, Resource};
use utoipa::ToSchema;

use crate::app::{App, ServedGroup, in_turn};
use crate::path_parameters::PolicyPath;
use crate::problem::Result;

/// The holders of a group.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Holders)]
pub(crate) struct HolderList {
    revision: u64,
    view_fingerprint: String,
    /// Every slot, in order.
    slots: Vec<HeldSlot>,
    /// The names that are held: singletons, daemons and timers.
    names: Vec<HeldName>,
}

/// A slot and its holder.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HeldSlot {
    slot: u32,
    #[serde(flatten)]
    held: HeldBy,
}

/// A name and its holder.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HeldName {
    name: String,
    #[serde(flatten)]
    held: HeldBy,
}

/// Who holds it. All fields are null under eventual ownership, and while this sidecar cannot read the claims.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct HeldBy {
    /// The member; null if none holds it.
    holder: Option<String>,
    /// Its incarnation.
    incarnation: Option<String>,
    /// The fencing token that its writes carry.
    epoch: Option<u64>,
    /// Since when, by this machine's clock; null if it was held before this sidecar looked.
    since: Option<String>,
    /// The member that the placement names, if that is not the holder; null for names.
    wanted: Option<String>,
    /// Why that member does not hold it: `loss`, `grace`, `version_rule`, `drain`, `expiring`, `handover`, `unclaimed` or `min_members`.
    why: Option<&'static str>,
}

impl HeldBy {
    fn of(holding: &Holding, now: Moment) -> Self {
        let claim = holding.held.as_ref().map(|held| &held.claim);
        let since = holding.held.as_ref().and_then(|held| held.since).map(|since| ago(now.since(since)));
        Self {
            holder: claim.map(|claim| claim.holder.instance_id.to_string()),
            incarnation: claim.map(|claim| claim.holder.incarnation.to_string()),
            epoch: claim.map(|claim| claim.epoch.get()),
            since,
            wanted: holding.wanted.as_ref().map(ToString::to_string),
            why: holding.mismatch.map(shardwise::Mismatch::as_str),
        }
    }

    /// Who holds the slot of a key; nothing where no claims can be read, which the other fields of an answer do not need.
    pub(crate) fn of_key(joined: &ServedGroup, key: &str) -> Self {
        let holding = joined.observer.get().and_then(|observer| observer.holder(key).ok());
        holding.map(|holding| Self::of(&holding, joined.service.now())).unwrap_or_default()
    }
}

fn ago(time: Duration) -> String {
    let at = SystemTime::now().checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH);
    humantime::format_rfc3339_millis(at).to_string()
}

/// Who holds what?
///
/// The members whose work is let in now, by the claims; `slots` has the members that should hold them. Only under exclusive ownership.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/holders", tag = "group",
    responses((status = 200, description = "The holder of every slot and name", body = HolderList))
)]
pub(crate) async fn holders(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath) -> Result<Json<HolderList>> {
    app.spend()?;
    Ok(Json(in_turn(&app.placing, move || list(&joined)).await??))
}

fn list(joined: &ServedGroup) -> Result<HolderList> {
    let observer = joined.observer()?;
    let (view, now) = (observer.members(), joined.service.now());
    let (mut slots, mut names) = (Vec::new(), Vec::new());
    for holding in observer.holders()? {
        let held = HeldBy::of(&holding, now);
        match holding.resource {
            Resource::Slot(slot) => slots.push(HeldSlot { slot, held }),
            Resource::Name(name) => names.push(HeldName { name: name.to_string(), held }),
        }
    }
    Ok(HolderList { revision: view.revision(), view_fingerprint: view.fingerprint().to_string(), slots, names })
}
