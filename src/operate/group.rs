//! Operators' calls on a group: its members, draining, confirming a loss, ending an absence.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use shardwise_core::{InstanceId, Loss, Member, MemberState, OwnershipMode, Policy, Timing, View};
use shardwise_discovery::{ClaimsEvent, Discovery, Registration, WatchEvent, random_incarnation};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, ErrorKind, Result};
use crate::membership::{follow, limited};

/// An operator's call waits at least this long for its answer, however short the TTL: no lease depends on it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the group is read until a member shows that it is drained.
const DRAINED_EVERY: Duration = Duration::from_millis(200);
/// How long a deleted record may still be seen: a backend's lists may lag behind its writes.
const GONE_WITHIN: Duration = Duration::from_secs(2);
const GONE_EVERY: Duration = Duration::from_millis(50);
/// The most members listed in a message.
const LISTED_MAX: usize = 32;

/// A group as operators reach it, without joining it.
pub(crate) struct Group<'g> {
    pub(crate) policy: &'g Policy,
    pub(crate) timing: Timing,
    pub(crate) backend: Arc<dyn Discovery>,
}

impl Group<'_> {
    /// How long one call may take.
    pub(crate) fn limit(&self) -> Duration {
        self.timing.ttl.max(PATIENCE)
    }

    /// The group as it is now.
    pub(crate) async fn view(&self) -> Result<Arc<View>> {
        Ok(limited(self.limit(), &*self.backend, "members", self.backend.members(&self.policy.group)).await?.view)
    }

    /// Registers for an operator's call; `claims`: it is going to claim something.
    pub(super) async fn register(&self, member: Member, claims: bool) -> Result<Registration> {
        let registration = Registration { group: self.policy.group.clone(), member, ttl: self.timing.ttl, claims };
        limited(self.limit(), &*self.backend, "register", self.backend.register(&registration)).await?;
        Ok(registration)
    }

    pub(super) async fn deregister(&self, registration: &Registration) -> Result<()> {
        let record_id = registration.record_id();
        Ok(limited(self.limit(), &*self.backend, "deregister", self.backend.deregister(&record_id)).await?)
    }

    /// Confirms that vanished members are gone for good: publishes a draining record that says so, until no member waits for it. Returns
    /// how many waited.
    pub(crate) async fn confirm_loss(&self) -> Result<usize> {
        let view = self.view().await?;
        let waiting = standing_still(&view);
        if waiting == 0 {
            return Ok(0);
        }
        let incarnation = random_incarnation();
        let id =
            InstanceId::new(format!("confirm-loss-{incarnation}")).map_err(|error| Error::new(ErrorKind::Settings, error.to_string()))?;
        let member = Member {
            incarnation,
            state: MemberState::Draining,
            loss: Some(Loss::Confirmed),
            // It must not affect what the group serves.
            fingerprints: vec![view.group_fingerprint().unwrap_or_else(|| self.policy.fingerprint())],
            serves: view.serves().cloned(),
            ..Member::named(id)
        };
        let registration = self.register(member, false).await?;
        let heard = timeout(self.timing.ttl, self.all_go_on()).await.is_ok();
        self.deregister(&registration).await?;
        if heard {
            return Ok(waiting);
        }
        Err(Error::new(ErrorKind::Unavailable, "some members still wait one TTL after the loss was confirmed; check their logs and retry"))
    }

    async fn all_go_on(&self) {
        let mut events = follow(&self.backend, &self.policy.group, self.timing.renew_every);
        while let Some(event) = events.next().await {
            if let Ok(WatchEvent::View(snapshot)) = event
                && standing_still(&snapshot.view) == 0
            {
                return;
            }
        }
    }

    /// Ends the absence of a member, whose place is kept (`rejoin_grace`): removes its record, and returns whether it existed.
    ///
    /// It registers in that member's name, as draining, and leaves. A registration replaces the away record of its id atomically, and never
    /// the record of a living member, so the member itself may return at the same moment without losing anything.
    pub(crate) async fn end_absence(&self, id: &InstanceId) -> Result<bool> {
        let view = self.view().await?;
        let Some(member) = view.member(id) else { return Ok(false) };
        let conflict = |state: &str| {
            let message = format!("{id:?} is not away but {state}; to remove it, stop that worker");
            Error::new(ErrorKind::Conflict, message)
        };
        if member.state != MemberState::Away {
            return Err(conflict(member.state.as_str()));
        }
        let (incarnation, stand_in) = (member.incarnation, random_incarnation());
        let registered = self.register(Member { incarnation: stand_in, state: MemberState::Draining, ..member.clone() }, false).await;
        let registration = registered.map_err(|error| if error.kind() == ErrorKind::InstanceIdInUse { conflict("back") } else { error })?;
        self.deregister(&registration).await?;
        let asked = Instant::now();
        let is_left = |seen: &Member| seen.incarnation == stand_in || seen.incarnation == incarnation && seen.state == MemberState::Away;
        while self.view().await?.member(id).is_some_and(is_left) {
            if asked.elapsed() >= GONE_WITHIN {
                let message = format!(
                    "{id:?} is still away; on Consul ask the agent at which that worker was registered, or wait until rejoin_grace is over"
                );
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            sleep(GONE_EVERY).await;
        }
        Ok(true)
    }

    /// Waits until a member asked to drain shows that it is drained and holds no claim any more; `false` if that takes longer than two TTLs
    /// and `drain_timeout`. A member that is gone holds nothing.
    pub(crate) async fn is_drained_in_time(&self, id: &InstanceId) -> Result<bool> {
        let until = Instant::now() + self.timing.ttl * 2 + self.policy.drain_timeout;
        loop {
            let shows = self.view().await?.member(id).is_none_or(|member| member.state == MemberState::Draining);
            if shows && !self.holds_claims(id).await? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            sleep(DRAINED_EVERY).await;
        }
    }

    async fn holds_claims(&self, id: &InstanceId) -> Result<bool> {
        let exclusive = self.policy.ownership == OwnershipMode::Exclusive;
        let Some(claims) = self.backend.as_claims().filter(|_| exclusive) else { return Ok(false) };
        let mut watch = claims.watch_claims(&self.policy.group, self.timing.ttl);
        let read = async {
            loop {
                match watch.next().await {
                    Some(Ok(ClaimsEvent::All { claims, .. })) => {
                        return Ok(claims.iter().any(|(_, claim)| claim.holder.instance_id == *id));
                    }
                    Some(Err(error)) if !error.is_retryable() => return Err(Error::from(error)),
                    Some(_) => {}
                    None => return Err(Error::new(ErrorKind::Unavailable, "the backend reports no claims; try again")),
                }
            }
        };
        let late = |_| Error::new(ErrorKind::Unavailable, "the backend did not report the claims within a TTL; try again");
        timeout(self.timing.ttl, read).await.map_err(late)?
    }
}

fn standing_still(view: &View) -> usize {
    view.members().iter().filter(|member| matches!(member.loss, Some(Loss::Missing(_)))).count()
}

/// The error that there is no such member, with a list of the members.
pub(crate) fn unknown_member(id: &InstanceId, view: &View) -> Error {
    let members: Vec<&Member> = view.members().iter().collect();
    let there = if members.is_empty() { "it has none at all".to_owned() } else { format!("there are: {}", listed(&members)) };
    let message = format!("the group has no member {:?}; {there}", id.as_str());
    Error::new(ErrorKind::UnknownInstance, message)
}

/// The members for a message; not all if there are many.
pub(super) fn listed(members: &[&Member]) -> String {
    let there: Vec<_> = members.iter().take(LISTED_MAX).map(|member| member.instance_id.to_string()).collect();
    let more = members.len().saturating_sub(LISTED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", there.join(", "))
}
