//! Claims over etcd: a key each, under the lease of the holder's record, so that a claim ends with its record.
//!
//! A grant's epoch is the revision of the transaction that made the key, above the store's floor. The transaction makes sure by itself that
//! the holder's record is there, under the same lease, and that the store of claims is the one in force.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use shardwise_core::{ClaimStore, Epoch, GroupName, Holder, Resource, StoreId};
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsStream, RecordId, Result};

use crate::backend::EtcdBackend;
use crate::claim_records::{decode_claim, decode_store, encode_claim, encode_store};
use crate::claim_txns::{ClaimPreconditions, KEYS_MAX, PutOutcome};
use crate::client::{EtcdConnection, KeyEntry};
use crate::error::{EtcdResult, Failure};
use crate::inner::{EtcdInner, WRITE_TRIES, contended, lost};

/// How many transactions of one call are under way at a time.
const IN_FLIGHT: usize = 8;
/// No lease: a key written with it stays.
const NO_LEASE: i64 = 0;

type ClaimOutcomes = Vec<(Resource, AcquireOutcome)>;

#[async_trait]
impl Claims for EtcdBackend {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        let inner = &*self.inner;
        let answer = inner
            .pool
            .call(|connection| async move { inner.claim_store(&connection, group, floor.min(ClaimStore::FLOOR_MAX)).await })
            .await;
        answer.map_err(|failure| failure.during("claim_store"))
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let wanted: BTreeSet<_> = wanted.iter().cloned().collect();
        let answer = self.inner.acquire(record_id, store, wanted.into_iter().collect()).await;
        answer.map_err(|failure| failure.during("acquire"))
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        self.inner.release(record_id, held).await.map_err(|failure| failure.during("release"))
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        self.claims.watch(group, prove_every)
    }
}

impl EtcdInner {
    async fn claim_store(&self, connection: &EtcdConnection, group: &GroupName, floor: u64) -> EtcdResult<ClaimStore> {
        let key = self.prefix.claim_store(group);
        for _ in 0..WRITE_TRIES {
            let (store, written) = match connection.read(&[&key]).await?.0.pop().flatten() {
                None => {
                    let store = ClaimStore { id: StoreId::new(rand::random()), floor };
                    (store, connection.create(&key, &encode_store(&store), NO_LEASE).await?)
                }
                Some(there) => {
                    let store = decode_store(&there)?;
                    let raised = ClaimStore { floor: store.floor.max(floor), ..store };
                    (raised, raised == store || connection.replace(&there, &encode_store(&raised), NO_LEASE).await?)
                }
            };
            if written {
                return Ok(store);
            }
        }
        Err(contended(format!("the store of claims of {group:?}")))
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: Vec<Resource>) -> EtcdResult<ClaimOutcomes> {
        let standing = &self.pool.call(|connection| async move { self.standing(&connection, record_id, store).await }).await?;
        let batches: Vec<_> = wanted.chunks(KEYS_MAX).map(<[_]>::to_vec).collect();
        let taking = stream::iter(batches).map(|batch| async move {
            let batch = batch.as_slice();
            self.pool.call(|connection| async move { self.take(&connection, record_id, store, standing.clone(), batch).await }).await
        });
        taking.buffered(IN_FLIGHT).try_concat().await
    }

    /// The basis of the member's right to claim, if it has any under this store.
    async fn standing(&self, connection: &EtcdConnection, record_id: &RecordId, store: &ClaimStore) -> EtcdResult<ClaimPreconditions> {
        let (record, key) = (self.prefix.keys(record_id).member, self.prefix.claim_store(&record_id.group));
        let before = self.revisions.now();
        let (mut found, revision) = connection.read(&[&record, &key]).await?;
        self.revisions.report(before, revision)?;
        let there = found.pop().flatten();
        let KeyEntry { lease, .. } = Self::own(record_id, found.pop().flatten())?;
        if lease == NO_LEASE {
            // The record was written by hand, without a lease: its claims would never end.
            return Err(lost(record_id));
        }
        let other =
            |now: String| Failure::OtherStore(format!("the store of claims is {now} now, it was {}; ask for it again", known(store)));
        let there = there.ok_or_else(|| other("gone".into()))?;
        let now = decode_store(&there)?;
        if now != *store {
            return Err(other(known(&now)));
        }
        if !self.stores.admit(&record_id.group, store, self.revisions.now().era) {
            return Err(Failure::OtherStore(format!(
                "etcd's data was replaced by older data, so the store of claims {} would give epochs that were given before; \
                 set epoch_floor above the highest epoch used",
                store.id
            )));
        }
        Ok(ClaimPreconditions { record, lease, store: key, written: there.modified })
    }

    /// Acquires the free resources of a batch.
    async fn take(
        &self,
        connection: &EtcdConnection,
        record_id: &RecordId,
        store: &ClaimStore,
        mut standing: ClaimPreconditions,
        batch: &[Resource],
    ) -> EtcdResult<ClaimOutcomes> {
        let folder = self.prefix.claims(&record_id.group);
        let (keys, claim): (Vec<_>, _) =
            (batch.iter().map(|resource| folder.claim(resource)).collect(), encode_claim(record_id, store.floor));
        for _ in 0..WRITE_TRIES {
            if let Some(taken) = connection.take(&standing, &keys, &claim).await? {
                let answers = taken.iter().map(|taken| acquired(record_id, store, standing.lease, taken));
                return batch.iter().cloned().zip(answers).map(|(resource, answer)| Ok((resource, answer?))).collect();
            }
            standing = self.standing(connection, record_id, store).await?;
        }
        Err(contended(format!("a claim of {:?}", record_id.instance_id)))
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> EtcdResult<()> {
        let batches: Vec<_> = held.chunks(KEYS_MAX).map(<[_]>::to_vec).collect();
        let releasing = stream::iter(batches).map(|batch| async move {
            let batch = batch.as_slice();
            self.pool.call(|connection| async move { self.give_back(&connection, record_id, batch).await }).await
        });
        releasing.buffered(IN_FLIGHT).try_collect().await
    }

    /// Deletes those of a batch that are still the record's under that epoch.
    async fn give_back(&self, connection: &EtcdConnection, record_id: &RecordId, batch: &[(Resource, Epoch)]) -> EtcdResult<()> {
        let folder = self.prefix.claims(&record_id.group);
        let keys: Vec<_> = batch.iter().map(|(resource, _)| folder.claim(resource)).collect();
        let (found, _) = connection.read(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>()).await?;
        let own = |(entry, epoch): &(KeyEntry, Epoch)| {
            decode_claim(entry).is_ok_and(|claim| claim.holder == holder(record_id) && claim.epoch == *epoch)
        };
        let held = found.into_iter().zip(batch).filter_map(|(entry, (_, epoch))| Some((entry?, *epoch))).filter(own);
        let held: Vec<_> = held.map(|(entry, _)| entry).collect();
        if held.is_empty() { Ok(()) } else { connection.give_back(&held).await }
    }
}

fn known(store: &ClaimStore) -> String {
    format!("{} with floor {}", store.id, store.floor)
}

fn holder(record_id: &RecordId) -> Holder {
    Holder { instance_id: record_id.instance_id.clone(), incarnation: record_id.incarnation }
}

fn acquired(record_id: &RecordId, store: &ClaimStore, lease: i64, taken: &PutOutcome) -> EtcdResult<AcquireOutcome> {
    match taken {
        PutOutcome::Made(revision) => {
            let epoch = store.epoch(u64::try_from(*revision).unwrap_or_default());
            epoch
                .map(AcquireOutcome::Granted)
                .map_err(|error| Failure::OtherStore(format!("{error}; the floor of the store of claims is too high")))
        }
        PutOutcome::There(entry) => Ok(match decode_claim(entry) {
            // One under another lease is of a record that was replaced, and ends with that lease.
            Ok(claim) if claim.holder == holder(record_id) && entry.lease == lease => AcquireOutcome::Granted(claim.epoch),
            _ => AcquireOutcome::Held,
        }),
    }
}
