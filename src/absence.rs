//! Members that have left for a while (`rejoin_grace`): for how long still, and how to end that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardwise_core::{Incarnation, InstanceId, MemberState, Moment, Policy, Timing, View};
use shardwise_discovery::{Discovery, Seat};

use crate::calls::limited;
use crate::{Error, ErrorKind, Result};

/// How long a record that was taken out may still be seen: a backend's lists may lag behind its writes.
const GONE_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A member that has left for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absence {
    /// Who.
    pub instance_id: InstanceId,
    /// How long its place is kept at most, unless it comes back: `rejoin_grace` less the time for which it has been seen away. Who has begun to look only
    /// after it left sees up to the whole `rejoin_grace`; records carry no times, because no two machines' clocks are compared.
    pub within: Duration,
}

/// Since when which life of a member has been seen away.
#[derive(Default)]
pub(crate) struct Absences(Mutex<BTreeMap<InstanceId, (Incarnation, Moment)>>);

impl Absences {
    /// A new view.
    pub(crate) fn saw(&self, view: &View, now: Moment) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let away = view.members().iter().filter(|member| member.state == MemberState::Away);
        *seen = away
            .map(|member| {
                let known = seen.get(&member.instance_id).filter(|(incarnation, _)| *incarnation == member.incarnation);
                (member.instance_id.clone(), (member.incarnation, known.map_or(now, |(_, since)| *since)))
            })
            .collect();
    }

    /// Those who are away in that view, where places are kept for `grace`.
    pub(crate) fn told(&self, view: &View, grace: Duration, now: Moment) -> Vec<Absence> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let away = view.members().iter().filter(|member| member.state == MemberState::Away);
        away.map(|member| {
            let for_long = seen.get(&member.instance_id).map_or(Duration::ZERO, |(_, since)| now.since(*since));
            Absence { instance_id: member.instance_id.clone(), within: grace.saturating_sub(for_long) }
        })
        .collect()
    }
}

/// Takes the record of a member that is away out of the group. Whether it was there.
pub(crate) async fn end_absence(policy: &Policy, timing: Timing, backend: Arc<dyn Discovery>, id: &InstanceId) -> Result<bool> {
    let look = || limited(timing.ttl, &*backend, "members", backend.members(&policy.group));
    let view = look().await?.view;
    let Some(member) = view.member(id) else { return Ok(false) };
    if member.state != MemberState::Away {
        let message = format!("{id:?} is not away but {}: stop that worker itself if it is to leave", member.state.as_str());
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    let (group, instance_id, incarnation) = (policy.group.clone(), id.clone(), member.incarnation);
    let seat = Seat { group, instance_id, incarnation };
    limited(timing.ttl, &*backend, "deregister", backend.deregister(&seat)).await?;
    let asked = tokio::time::Instant::now();
    while look().await?.view.member(id).is_some_and(|seen| seen.incarnation == incarnation && seen.state == MemberState::Away) {
        if asked.elapsed() >= GONE_WITHIN {
            let message =
                format!("{id:?} is still away; on Consul ask the agent at which that worker was, or wait until rejoin_grace is over");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(true)
}
