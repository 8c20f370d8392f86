//! Draining a member from outside: its group, and when it has drained.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use shardwise_core::{InstanceId, MemberState, OwnershipMode, Policy, Timing, View};
use shardwise_discovery::{ClaimsEvent, Discovery};

use crate::error::{Error, ErrorKind, Result};
use crate::membership::limited;

/// How often the group is read until a member shows that it is drained.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The most members listed in a message.
const LISTED_MAX: usize = 32;

/// The group as it is now.
pub(crate) async fn view_of(policy: &Policy, timing: Timing, backend: &dyn Discovery) -> Result<Arc<View>> {
    Ok(limited(timing.ttl, backend, "members", backend.members(&policy.group)).await?.view)
}

/// Waits until a member asked to drain shows that it is drained and holds no claim any more; `false` if that takes longer than `within`.
/// A member that is gone holds nothing.
pub(crate) async fn drained_within(
    policy: &Policy,
    timing: Timing,
    backend: &Arc<dyn Discovery>,
    id: &InstanceId,
    within: Duration,
) -> Result<bool> {
    let until = tokio::time::Instant::now() + within;
    loop {
        let view = view_of(policy, timing, &**backend).await?;
        let shows = view.member(id).is_none_or(|member| member.state == MemberState::Draining);
        if shows && !holds_claims(policy, timing, &**backend, id).await? {
            return Ok(true);
        }
        if tokio::time::Instant::now() >= until {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn holds_claims(policy: &Policy, timing: Timing, backend: &dyn Discovery, id: &InstanceId) -> Result<bool> {
    let Some(claims) = backend.as_claims().filter(|_| policy.ownership == OwnershipMode::Exclusive) else { return Ok(false) };
    let mut watch = claims.watch_claims(&policy.group, timing.ttl);
    let read = async {
        loop {
            match watch.next().await {
                Some(Ok(ClaimsEvent::All { claims, .. })) => return Ok(claims.iter().any(|(_, claim)| claim.holder.instance_id == *id)),
                Some(Err(error)) if !error.is_retryable() => return Err(Error::from(error)),
                Some(_) => {}
                None => return Err(Error::new(ErrorKind::Unavailable, "the backend reports no claims; try again")),
            }
        }
    };
    let late = |_| Error::new(ErrorKind::Unavailable, "the backend did not report the claims within a TTL; try again");
    tokio::time::timeout(timing.ttl, read).await.map_err(late)?
}

/// The error that there is no such member, with a list of the members.
pub(crate) fn unknown_member(id: &InstanceId, view: &View) -> Error {
    let there: Vec<_> = view.members().iter().take(LISTED_MAX).map(|member| member.instance_id.to_string()).collect();
    let more = view.members().len().saturating_sub(LISTED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let there = if there.is_empty() { "it has none at all".to_owned() } else { format!("there are: {}{more}", there.join(", ")) };
    let message = format!("the group has no member {:?}; {there}", id.as_str());
    Error::new(ErrorKind::UnknownInstance, message)
}
