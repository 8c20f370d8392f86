//! Ends a member's absence: releases the place that is kept for it (`rejoin_grace`).

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{InstanceId, Member, MemberState, Policy, Timing};
use shardwise_discovery::{Discovery, Registration, random_incarnation};

use crate::error::{Error, ErrorKind, Result};
use crate::membership::limited;

/// How long a deleted record may still be seen: a backend's lists may lag behind its writes.
const GONE_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Removes the record of a member that is away, and returns whether it existed.
///
/// It registers in that member's name, as draining, and leaves. A registration replaces the away record of its id atomically, and never
/// the record of a living member, so the member itself may return at the same moment without losing anything.
pub(crate) async fn end_absence(policy: &Policy, timing: Timing, backend: Arc<dyn Discovery>, id: &InstanceId) -> Result<bool> {
    let look = || limited(timing.ttl, &*backend, "members", backend.members(&policy.group));
    let view = look().await?.view;
    let Some(member) = view.member(id) else { return Ok(false) };
    let conflict = |state: &str| {
        let message = format!("{id:?} is not away but {state}; to remove it, stop that worker");
        Error::new(ErrorKind::Conflict, message)
    };
    if member.state != MemberState::Away {
        return Err(conflict(member.state.as_str()));
    }
    let (incarnation, stand_in) = (member.incarnation, random_incarnation());
    let member = Member { incarnation: stand_in, state: MemberState::Draining, ..member.clone() };
    let registration = Registration { group: policy.group.clone(), member, ttl: timing.ttl, claims: false };
    let registered = limited(timing.ttl, &*backend, "register", backend.register(&registration)).await;
    match registered.map_err(Error::from) {
        Err(error) if error.kind() == ErrorKind::InstanceIdInUse => return Err(conflict("back")),
        registered => registered?,
    };
    limited(timing.ttl, &*backend, "deregister", backend.deregister(&registration.record_id())).await?;
    let asked = tokio::time::Instant::now();
    let is_left = |seen: &Member| seen.incarnation == stand_in || seen.incarnation == incarnation && seen.state == MemberState::Away;
    while look().await?.view.member(id).is_some_and(is_left) {
        if asked.elapsed() >= GONE_WITHIN {
            let message = format!(
                "{id:?} is still away; on Consul ask the agent at which that worker was registered, or wait until rejoin_grace is over"
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(true)
}
