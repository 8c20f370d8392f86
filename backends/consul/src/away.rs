//! Leaving for a while: the agent registers the instance again, with a check that lasts for the grace and that no one renews.

use std::time::Duration;

use shardwise_discovery::{RecordId, Registration};

use crate::caller::Caller;
use crate::claims;
use crate::error::{Failure, Result};
use crate::health::InstanceFilter;
use crate::names;
use crate::registrar::{Registrar, written};
use crate::registrations::LiveRegistration;

impl Registrar {
    /// Puts a record that says its member is away in the place of the living one. The new check takes the place of the old one, with which
    /// the member's session ends; what it has locked is released before, or its lock delay would hold it back.
    pub(crate) async fn step_away(&self, registration: &Registration, grace: Duration, caller: &Caller) -> Result<()> {
        let record_id = registration.record_id();
        let lost = |why| Failure::Lost { instance_id: record_id.instance_id.clone(), why };
        let Some(life) = self.registrations.get(&record_id) else {
            return if self.is_away(&record_id).await? { Ok(()) } else { Err(lost("this process has not made one")) };
        };
        let number = self.next_change();
        let check = format!("{}{number}", names::check_prefix(&record_id));
        let away = LiveRegistration::new(life.service.clone(), life.service_id.clone(), check, life.joined, grace, self.client.clock.now());
        let resting = Registration { member: registration.away_member(), ..registration.clone() };
        let definition = written(&resting, &away, number).registration()?;
        let change = async {
            if !self.is_shown(&life).await? {
                return Err(lost("the servers do not show it"));
            }
            if let Some(session) = &life.session {
                claims::release_all(&self.client, &record_id, session).await;
            }
            self.client.register_service(&away.service, definition, true).await?;
            self.await_shown(&record_id, &away, number).await
        };
        self.under_lock(&record_id, caller, async |lock| self.while_held(lock, change).await).await?;
        self.registrations.forget(&record_id, &life);
        Ok(())
    }

    async fn is_away(&self, record_id: &RecordId) -> Result<bool> {
        let list = self
            .client
            .passing(&names::service_name(&record_id.group), InstanceFilter::Instance(record_id.instance_id.as_str()), None)
            .await?;
        let prefix = names::check_prefix(record_id);
        let mut found = list.entries.iter().map(|entry| &entry.service);
        Ok(found.any(|found| found.is_away() && found.check().is_some_and(|check| check.starts_with(&prefix))))
    }
}
