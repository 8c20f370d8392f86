//! Claims in the table: a claim is there as long as its holder's record, and a counter numbers the acquisitions.

use std::collections::btree_map::Entry;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{Claim, ClaimStore, Epoch, GroupName, Holder, Resource};

use super::MemoryBackend;
use super::groups::{MemoryGroup, MemoryGroups};
use super::watch::follow;
use crate::{AcquireOutcome, Claims, ClaimsStream, Error, ErrorKind, RecordId, Result};

#[async_trait]
impl Claims for MemoryBackend {
    async fn claim_store(&self, _group: &GroupName, floor: u64) -> Result<ClaimStore> {
        self.with_groups("claim_store", |groups, _| {
            groups.claim_store.floor = groups.claim_store.floor.max(floor.min(ClaimStore::FLOOR_MAX));
            Ok(groups.claim_store)
        })
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        self.with_groups("acquire", |groups, now| {
            groups.own(record_id, now, "acquire")?;
            if groups.claim_store != *store {
                let context = format!("the store of claims is {} now, it was {}; ask for it again", groups.claim_store.id, store.id);
                return Err(Error::new(ErrorKind::OtherStore, "acquire", context));
            }
            let number = groups.acquisitions + 1;
            let epoch = store.epoch(number).map_err(|e| Error::new(ErrorKind::Misconfigured, "acquire", e.to_string()))?;
            let Some(group) = groups.by_name.get_mut(&record_id.group) else { return Ok(Vec::new()) };
            let answers: Vec<_> = wanted.iter().map(|resource| (resource.clone(), group.grant(record_id, resource, epoch))).collect();
            if answers.iter().any(|(_, acquired)| *acquired == AcquireOutcome::Granted(epoch)) {
                groups.revision += 1;
                (group.claims_revision, groups.acquisitions) = (groups.revision, number);
            }
            Ok(answers)
        })
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        self.with_groups("release", |groups, now| {
            groups.reap(&record_id.group, now);
            let MemoryGroups { by_name, revision, .. } = groups;
            let Some(group) = by_name.get_mut(&record_id.group) else { return Ok(()) };
            let before = group.claims.len();
            for (resource, epoch) in held {
                if group.claims.get(resource).is_some_and(|claim| claim.epoch == *epoch && claim.holder == holder(record_id)) {
                    group.claims.remove(resource);
                }
            }
            if group.claims.len() != before {
                *revision += 1;
                group.claims_revision = *revision;
            }
            Ok(())
        })
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        follow(self, group, prove_every)
    }
}

fn holder(record_id: &RecordId) -> Holder {
    Holder { instance_id: record_id.instance_id.clone(), incarnation: record_id.incarnation }
}

impl MemoryGroup {
    fn grant(&mut self, record_id: &RecordId, resource: &Resource, epoch: Epoch) -> AcquireOutcome {
        match self.claims.entry(resource.clone()) {
            Entry::Vacant(free) => {
                free.insert(Claim { holder: holder(record_id), epoch });
                AcquireOutcome::Granted(epoch)
            }
            Entry::Occupied(held) if held.get().holder == holder(record_id) => AcquireOutcome::Granted(held.get().epoch),
            Entry::Occupied(_) => AcquireOutcome::Held,
        }
    }
}
