//! An epoch above all that a stopped group has used, from which another backend goes on.

use std::time::Duration;

use shardwise_core::{AcquireOutcome, ClaimName, Epoch, Incarnation, InstanceId, Member, MemberState, OwnershipMode, Resource, View};
use shardwise_discovery::{Claims, RecordId, random_incarnation};
use tokio::time::{Instant, sleep};

use super::group::{Group, listed};
use crate::backend;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::limited;

/// The name that is claimed; always the same, so that a backend which remembers released names remembers one.
const NAME: &str = "shardwise/epoch";
/// How often it is asked for while another call holds it.
const ASK_EVERY: Duration = Duration::from_millis(100);

impl Group<'_> {
    /// Claims a name and releases it: the epoch of that grant is above every epoch granted before in the group (clause 2 of
    /// [`Claims`]), by whichever member. Only a group without members is asked, because members could be granted higher epochs afterwards.
    pub(crate) async fn take_epoch(&self) -> Result<Epoch> {
        let refused = |why: &str| Error::new(ErrorKind::Settings, format!("policy {}: {why}", self.policy.name));
        if self.policy.ownership != OwnershipMode::Exclusive {
            return Err(refused("ownership is eventual, so no epochs are used, and the group moves without them"));
        }
        let capabilities = self.backend.capabilities();
        let claims = self
            .backend
            .as_claims()
            .ok_or_else(|| refused(&format!("epochs need a backend that can hold claims, and {}", backend::cannot_claim(&capabilities))))?;
        let incarnation = random_incarnation();
        let view = self.view().await?;
        has_stopped(&view, incarnation)?;
        let id = InstanceId::new(format!("epoch-{incarnation}")).map_err(|error| refused(&error.to_string()))?;
        let fingerprints = vec![self.policy.fingerprint()];
        // A draining member has no share, whichever members come.
        let member = Member { incarnation, state: MemberState::Draining, fingerprints, ..Member::named(id) };
        let registration = self.register(member, true).await?;
        let taken = self.granted(claims, &registration.record_id()).await;
        let left = self.deregister(&registration).await;
        let epoch = taken?;
        left?;
        // One that came meanwhile may have been granted a higher one.
        let view = self.view().await?;
        has_stopped(&view, incarnation)?;
        Ok(epoch)
    }

    /// The epoch under which the name is granted to that record; the name is free again afterwards.
    async fn granted(&self, claims: &dyn Claims, record_id: &RecordId) -> Result<Epoch> {
        let name = ClaimName::new(NAME).map_err(|error| Error::new(ErrorKind::Settings, error.to_string()))?;
        let wanted = [Resource::Name(name)];
        let (limit, until) = (self.limit(), Instant::now() + self.limit());
        let open = claims.claim_store(&self.policy.group, self.policy.epoch_floor);
        let store = limited(limit, &*self.backend, "claim_store", open).await?;
        loop {
            let answers = limited(limit, &*self.backend, "acquire", claims.acquire(record_id, &store, &wanted)).await?;
            for (resource, outcome) in answers {
                if let AcquireOutcome::Granted(epoch) = outcome {
                    let held = [(resource, epoch)];
                    limited(limit, &*self.backend, "release", claims.release(record_id, &held)).await?;
                    return Ok(epoch);
                }
            }
            if Instant::now() >= until {
                let message = format!("the name {NAME:?} is held: the same command may run elsewhere; try again after a TTL");
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            sleep(ASK_EVERY).await;
        }
    }
}

/// An error that names the members, if there are any but the one of this call, which a backend's list may still show.
fn has_stopped(view: &View, of_this_call: Incarnation) -> Result<()> {
    let others: Vec<&Member> = view.members().iter().filter(|member| member.incarnation != of_this_call).collect();
    if others.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the group has members, which may be granted higher epochs: stop them first, and end the absence of those that are away; there \
         are: {}",
        listed(&others)
    );
    Err(Error::new(ErrorKind::Conflict, message))
}
