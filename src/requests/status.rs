//! The status that every member has, and answers without a handler.

use std::time::Duration;

use serde_json::{Value, json};
use shardwise_core::{Member, MemberState, ServiceState, WorkerHealth};

use super::Answer;
use crate::membership::{Membership, OwnershipContext};

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The status that every member has.
pub(super) fn status(context: &OwnershipContext) -> Answer {
    match context.membership() {
        Some(membership) => Answer::from(status_of(&membership)),
        None => Answer::problem(503, "unavailable", "Not now", "this worker is stopping"),
    }
}

/// What it says of requests; null without the feature.
#[cfg(feature = "requests")]
fn requests(membership: &Membership) -> Value {
    super::receiver::report(&membership.ownership_context)
}

#[cfg(not(feature = "requests"))]
const fn requests(_: &Membership) -> Value {
    Value::Null
}

fn status_of(membership: &Membership) -> Value {
    let (ownership, now) = (membership.ownership(), membership.clock.now());
    let (is_live, view) = (ownership.is_live_at(now), ownership.view());
    let me = view.member(&membership.instance_id);
    let by_operator = |me: &Member| me.state == MemberState::Draining && me.worker.is_none();
    let is_drained = ownership.state() == ServiceState::Active && me.is_some_and(by_operator);
    let worker = membership.worker.report.borrow().clone();
    json!({
        "policy": membership.policy.name.as_str(),
        "group": membership.policy.group.as_str(),
        "instance_id": membership.life.instance_id().as_str(),
        "incarnation": membership.life.incarnation().to_string(),
        "version": me.and_then(|me| me.version.as_deref()),
        "state": ownership.state_at(now).as_str(),
        "hint": ownership.not_owning_at(now).map(|why| why.hint),
        "drained": is_drained,
        "worker": worker.health.map(WorkerHealth::as_str),
        "worker_failure": worker.failure.as_deref(),
        "revision": view.revision(),
        "view_fingerprint": view.fingerprint().to_string(),
        "view_age_ms": membership.view_age().map(millis),
        "policy_fingerprint": ownership.policy_fingerprint().map(|fingerprint| fingerprint.to_string()),
        "members": view.members().len(),
        "slots_owned": ownership.slots_owned().map(|owned| if is_live { owned } else { 0 }),
        "owned_for_ms": ownership.deadline().filter(|_| is_live).map(|end| millis(end.since(now))),
        "renewed_ms_ago": membership.renewed_ago().map(millis),
        "stands_still": ownership.rebalancing_frozen(),
        "requests": requests(membership),
    })
}
