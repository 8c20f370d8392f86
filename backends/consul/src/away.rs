//! Leaving for a while: the instance is registered once more by its own agent, with a check that lasts for the grace and that nobody passes.

use std::time::Duration;

use shardwise_discovery::{Registration, Seat};

use crate::caller::Caller;
use crate::claims;
use crate::error::{Failure, Result};
use crate::health::Whom;
use crate::names;
use crate::registrar::{Registrar, written};
use crate::seats::Life;

impl Registrar {
    /// Puts a record that says its member is away in the place of the living one. The new check takes the place of the old one, with which the
    /// member's session ends; what it has locked is released before, or its lock delay would hold it back.
    pub(crate) async fn step_away(&self, registration: &Registration, grace: Duration, caller: &Caller) -> Result<()> {
        let seat = registration.seat();
        let lost = |why| Failure::Lost { instance_id: seat.instance_id.clone(), why };
        let Some(life) = self.seats.get(&seat) else {
            return if self.is_away(&seat).await? { Ok(()) } else { Err(lost("this process has not made one")) };
        };
        let number = self.next_change();
        let check = format!("{}{number}", names::check_prefix(&seat));
        let away = Life::new(life.service.clone(), life.service_id.clone(), check, life.joined, grace, self.client.clock.now());
        let resting = Registration { member: registration.away_member(), ..registration.clone() };
        let definition = written(&resting, &away, number).registration()?;
        let change = async {
            if !self.is_shown(&life).await? {
                return Err(lost("the servers do not show it"));
            }
            if let Some(session) = &life.session {
                claims::release_all(&self.client, &seat, session).await;
            }
            self.client.register_service(&away.service, definition, true).await?;
            self.await_shown(&seat, &away, number).await
        };
        self.guarded(&seat, caller, async |guard| self.while_held(guard, change).await).await?;
        self.seats.forget(&seat, &life);
        Ok(())
    }

    async fn is_away(&self, seat: &Seat) -> Result<bool> {
        let list = self.client.passing(&names::service_name(&seat.group), Whom::Instance(seat.instance_id.as_str()), None).await?;
        let prefix = names::check_prefix(seat);
        let mut found = list.entries.iter().map(|entry| &entry.service);
        Ok(found.any(|found| found.is_away() && found.check().is_some_and(|check| check.starts_with(&prefix))))
    }
}
