//! Reading a group: from the servers' list to a view, which never goes back and is never empty by mistake.

use std::sync::Arc;

use shardwise_core::{GroupName, InstanceId, MEMBERS_MAX, Moment, View};

use crate::api::Instances;
use crate::error::{Failure, Result};
use crate::group_indexes::{TrackedGroup, locked};
use crate::names;
use crate::registrar::Registrar;
use crate::wire::Service;

/// How often a list that was overtaken by another one is asked for again.
const ATTEMPTS: usize = 3;

pub(crate) struct GroupRead<T> {
    pub(crate) shown: Arc<T>,
    pub(crate) proven: Moment,
    /// Consul's index of it.
    pub(crate) index: u64,
}

pub(crate) async fn read(registrar: &Registrar, tracked: &TrackedGroup, group: &GroupName) -> Result<GroupRead<View>> {
    let (client, service) = (&registrar.client, names::service_name(group));
    for _ in 0..ATTEMPTS {
        let mut list = client.passing(&service, None, None).await?;
        if is_doubtful(&list, &service, &registrar.registrations.alive(group, client.clock.now())) {
            list = client.passing(&service, None, None).await?;
            if list.found.is_empty() {
                client.may_see(&service).await?;
            }
        }
        let revision = locked(tracked).revision(list.index, list.started, client.clock.now());
        if let Some(revision) = revision {
            return reading(list, &service, revision);
        }
    }
    Err(Failure::Overtaken)
}

/// An empty list, or one without a member that this process keeps alive.
fn is_doubtful(list: &Instances, service: &str, alive: &[InstanceId]) -> bool {
    let ours = || list.found.iter().filter(|entry| entry.service.name == service);
    let shows = |id: &str| ours().any(|entry| entry.service.meta.get("shardwise_id").is_some_and(|shown| shown == id));
    ours().next().is_none() || !alive.iter().all(|id| shows(id.as_str()))
}

fn reading(list: Instances, service: &str, revision: u64) -> Result<GroupRead<View>> {
    let (ours, foreign): (Vec<_>, Vec<_>) = list
        .found
        .into_iter()
        .map(|entry| entry.service)
        // Consul takes services whose names differ in case for one.
        .filter(|found| found.name == service)
        .partition(|found| found.check().is_some());
    if ours.len().max(foreign.len()) > MEMBERS_MAX as usize {
        return Err(Failure::TooMany);
    }
    let members = ours.iter().map(Service::member).collect::<Result<Vec<_>>>()?;
    let foreign = foreign.iter().filter_map(|found| InstanceId::new(found.id.as_str()).ok()).collect();
    let view = View::new(revision, members).with_foreign(foreign);
    Ok(GroupRead { shown: Arc::new(view), proven: list.started, index: list.index })
}
