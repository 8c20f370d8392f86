//! The status that every member answers without a handler: its state and its view.

use std::time::Duration;

use serde_json::{Value, json};
use shardwise_core::{MemberState, ServiceState};

use crate::membership::Membership;

/// The path of the status; the worker's own handler takes precedence.
pub(super) const STATUS: &str = "status";
/// The path at which handlers cannot replace it.
pub(super) const OWN_STATUS: &str = "shardwise/status";
/// No handler's path may start with this.
const RESERVED: &str = "shardwise";

pub(super) fn is_reserved(path: &str) -> bool {
    path.split('/').next() == Some(RESERVED)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn status(membership: &Membership) -> Value {
    let (ownership, now) = (membership.ownership(), membership.clock.now());
    let (is_live, view) = (ownership.is_live_at(now), ownership.view());
    let me = view.member(&membership.instance_id);
    let is_drained = ownership.state() == ServiceState::Active && me.is_some_and(|me| me.state == MemberState::Draining);
    json!({
        "policy": membership.policy.name.as_str(),
        "group": membership.policy.group.as_str(),
        "instance_id": membership.instance_id.as_str(),
        "incarnation": membership.life.incarnation().to_string(),
        "version": me.and_then(|me| me.version.as_deref()),
        "state": ownership.state_at(now).as_str(),
        "hint": ownership.not_owning_at(now).map(|why| why.hint),
        "drained": is_drained,
        "revision": view.revision(),
        "view_fingerprint": view.fingerprint().to_string(),
        "view_age_ms": membership.view_age().map(millis),
        "policy_fingerprint": ownership.policy_fingerprint().map(|fingerprint| fingerprint.to_string()),
        "members": view.members().len(),
        "slots_owned": ownership.slots_owned().map(|owned| if is_live { owned } else { 0 }),
        "owned_for_ms": ownership.deadline().filter(|_| is_live).map(|end| millis(end.since(now))),
        "renewed_ms_ago": membership.renewed_ago().map(millis),
        "stands_still": ownership.rebalancing_frozen(),
    })
}
