//! Claims over PostgreSQL: a row each, which names the life of its holder. The group's row is locked first, so acquisitions are committed
//! in the order of their epochs.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{ClaimStore, Epoch, GroupName, Resource, SLOTS_MAX, StoreId};
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsStream, RecordId, Result};

use crate::PostgresBackend;
use crate::answers::Answers;
use crate::error::{Failure, PgResult};
use crate::history::Known;
use crate::shared::{Shared, lost};
use crate::sql::claims::{self, ClaimAnswer, KnownStore, StoreStanding};

/// The most resources of one transaction: others wait for the group's lock meanwhile.
const AT_ONCE: usize = 16_384;

#[async_trait]
impl Claims for PostgresBackend {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        self.shared.claim_store(group, floor.min(ClaimStore::FLOOR_MAX)).await.map_err(self.shared.during("claim_store"))
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let wanted: BTreeSet<_> = wanted.iter().cloned().collect();
        self.shared.acquire(record_id, store, wanted).await.map_err(self.shared.during("acquire"))
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        self.shared.release(record_id, held).await.map_err(self.shared.during("release"))
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        self.claims.watch(group, prove_every)
    }
}

impl Shared {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> PgResult<ClaimStore> {
        let (client, before) = (&self.client, self.client.history.now());
        let sql = claims::open_store(&client.schema, group, StoreId::new(rand::random()), floor);
        let standing = self.standing(before, &self.write(group, sql).await?)?;
        if !standing.is_durable {
            return Err(Failure::NotDurable);
        }
        let store = standing.store.ok_or(Failure::Emptied)?;
        if standing.history == standing.present {
            return Ok(store);
        }
        // For a process that has used the store it is another one now, which its members then refuse, with the highest epoch that they
        // know. A new process would take any: it must not.
        if self.stores.knows(group) {
            return Ok(ClaimStore { id: StoreId::new(!store.id.get()), ..store });
        }
        Err(Failure::OtherHistory { present: standing.present, history: standing.history })
    }

    fn standing(&self, before: Known, answers: &Answers) -> PgResult<StoreStanding> {
        let standing = StoreStanding::read(answers).map_err(Failure::of_row)?;
        let standing = standing.ok_or_else(|| Failure::BadRow { why: "the group's store of claims has no valid id".into() })?;
        self.client.history.arrive(before, &standing.position)?;
        Ok(standing)
    }

    async fn acquire(
        &self,
        record_id: &RecordId,
        store: &ClaimStore,
        wanted: BTreeSet<Resource>,
    ) -> PgResult<Vec<(Resource, AcquireOutcome)>> {
        refuse_too_many(wanted.len())?;
        if let Some(Resource::Slot(slot)) = wanted.iter().find(|resource| matches!(resource, Resource::Slot(slot) if *slot >= SLOTS_MAX)) {
            return Err(Failure::NoSlot { slot: *slot });
        }
        let wanted: Vec<_> = wanted.into_iter().collect();
        let (mut outcomes, mut holders) = (Vec::with_capacity(wanted.len()), BTreeSet::new());
        for some in wanted.chunks(AT_ONCE) {
            for row in self.acquire_some(record_id, store, some).await? {
                holders.extend(row.holder);
                outcomes.push(outcome(row));
            }
        }
        self.groups.wait_for(record_id, holders);
        Ok(outcomes)
    }

    async fn acquire_some(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> PgResult<Vec<ClaimAnswer>> {
        let (client, before) = (&self.client, self.client.history.now());
        self.admit(&record_id.group, store, before.era)?;
        let known = KnownStore { store: *store, lsn: before.lsn };
        let answers = self.write(&record_id.group, claims::acquire(&client.schema, record_id, &known, wanted)).await?;
        let standing = self.standing(before, &answers)?;
        if !standing.is_durable {
            return Err(Failure::NotDurable);
        }
        if !standing.is_alive {
            return Err(lost(record_id));
        }
        if standing.store != Some(*store) || standing.history != standing.present {
            return Err(other_store(store, &standing));
        }
        self.admit(&record_id.group, store, client.history.now().era)?;
        // At the end of the range nothing more is granted, even if the counter was set by hand.
        store.epoch(standing.counter).map_err(Failure::NoEpoch)?;
        claims::read_acquired(&answers).map_err(Failure::of_row)?.map_err(|why| Failure::BadClaim { why })
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> PgResult<()> {
        refuse_too_many(held.len())?;
        let mut locked = 0;
        for some in held.chunks(AT_ONCE) {
            let answers = self.write(&record_id.group, claims::release(&self.client.schema, record_id, some)).await?;
            locked += claims::read_locked(&answers).map_err(Failure::of_row)?;
        }
        if locked == 0 { Ok(()) } else { Err(Failure::HeldOpen { count: locked }) }
    }
}

fn outcome(ClaimAnswer { resource, epoch, holder }: ClaimAnswer) -> (Resource, AcquireOutcome) {
    let outcome = match (epoch, holder) {
        (Some(epoch), _) => AcquireOutcome::Granted(epoch),
        (None, Some(_)) => AcquireOutcome::Held,
        // Free, but another transaction has locked its row.
        (None, None) => AcquireOutcome::NotYet,
    };
    (resource, outcome)
}

fn other_store(was: &ClaimStore, standing: &StoreStanding) -> Failure {
    let shown = |store: &ClaimStore| format!("{} with the floor {}", store.id, store.floor);
    if standing.history != standing.present {
        let StoreStanding { history, present, .. } = standing;
        return Failure::OtherStore(Failure::OtherHistory { present: present.clone(), history: history.clone() }.to_string());
    }
    let now = standing.store.as_ref().map_or_else(|| "gone".to_owned(), shown);
    Failure::OtherStore(format!("the store of claims is {now} now, it was {}; ask for it again", shown(was)))
}

const fn refuse_too_many(count: usize) -> PgResult<()> {
    if count > SLOTS_MAX as usize { Err(Failure::TooManyClaims { count }) } else { Ok(()) }
}
