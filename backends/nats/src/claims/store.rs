//! The store of a group's claims: its id, its floor, and the stream in which its epochs are counted.

use rand::random;
use shardwise_core::{ClaimStore, GroupName, StoreId};

use crate::bucket;
use crate::client::bounded;
use crate::error::{Failure, NatsResult};
use crate::handle::{BucketHandle, TRIES};
use crate::jetstream::CasOutcome;
use crate::messages::StoredClaimStore;

impl BucketHandle {
    /// The store, and the sequence of what stands there: of the store, of what an operator left who deleted it by hand, or 0. Both of one
    /// reading: with a later sequence, a store that was made in between would be overwritten.
    pub(super) async fn stored_store(&self, group: &GroupName) -> NatsResult<(Option<StoredClaimStore>, u64)> {
        let subject = self.client.bucket.group(group).claim_store();
        let Some(message) = self.client.last(&subject).await? else { return Ok((None, 0)) };
        if message.payload.is_empty() {
            return Ok((None, message.sequence));
        }
        let read = StoredClaimStore::read(&message.payload).map_err(|why| Failure::Unreadable { subject, why });
        read.map(|store| (Some(store), message.sequence))
    }

    pub(super) async fn claim_store(&self, group: &GroupName, floor: u64) -> NatsResult<ClaimStore> {
        bounded(self.open_store(group, floor)).await
    }

    async fn open_store(&self, group: &GroupName, floor: u64) -> NatsResult<ClaimStore> {
        for _ in 0..TRIES {
            let (connection, state) = self.client.ready().await?;
            bucket::allow_exclusive(connection.version, self.client.sync_interval)?;
            let (there, sequence) = self.stored_store(group).await?;
            let is_of_another_stream = there.as_ref().is_some_and(|stored| stored.stream_created != state.created);
            // What is out of date may be what this process knows of the stream.
            if is_of_another_stream && self.client.is_made_anew(&connection, &state).await? {
                continue;
            }
            let wanted = match there {
                // A raised floor counts from here on in the present stream.
                Some(stored) if floor > stored.store.floor => {
                    StoredClaimStore { store: ClaimStore { floor, ..stored.store }, stream_created: state.created.clone() }
                }
                Some(stored) => return self.usable(group, &stored, &state.created),
                None => {
                    let store = ClaimStore { id: StoreId::new(random()), floor };
                    StoredClaimStore { store, stream_created: state.created.clone() }
                }
            };
            let subject = self.client.bucket.group(group).claim_store();
            let CasOutcome::Written(_) = self.client.write(subject.clone(), sequence, wanted.bytes()).await? else { continue };
            if !self.client.is_made_anew(&connection, &state).await? {
                return Ok(wanted.store);
            }
            // In the new stream it names the former one, so every member would refuse it.
            let (there, sequence) = self.stored_store(group).await?;
            if there.as_ref() == Some(&wanted) {
                // Refused: another member has replaced it.
                let (CasOutcome::Written(_) | CasOutcome::Refused) = self.client.write(subject, sequence, Vec::new()).await?;
            }
        }
        Err(Failure::Contended)
    }

    /// A store whose epochs were counted in another stream is another one for a process that has used it, which its members then refuse,
    /// with the highest epoch that they know. A new process would take any: it must not.
    fn usable(&self, group: &GroupName, stored: &StoredClaimStore, created: &str) -> NatsResult<ClaimStore> {
        let store = stored.store;
        if stored.stream_created == created {
            return Ok(store);
        }
        if self.stores.knows(group) {
            return Ok(ClaimStore { id: StoreId::new(!store.id.get()), ..store });
        }
        Err(Failure::OtherHistory { present: created.to_owned(), history: stored.stream_created.clone() })
    }

    /// Refuses a store that is not the one in force, or whose epochs would repeat because the stream has lost messages.
    pub(super) async fn in_force(&self, group: &GroupName, store: &ClaimStore) -> NatsResult<()> {
        let (connection, state) = self.client.ready().await?;
        // The servers of a cluster may have different versions.
        bucket::allow_exclusive(connection.version, self.client.sync_interval)?;
        let shown = |store: &ClaimStore| format!("{} with the floor {}", store.id, store.floor);
        let (present, _) = self.stored_store(group).await?;
        let is_present = present.as_ref().is_some_and(|stored| stored.store == *store);
        if let Some(stored) = present.filter(|_| is_present) {
            if stored.stream_created == state.created {
                return self.admit(group, store);
            }
            let other = Failure::OtherHistory { present: state.created.clone(), history: stored.stream_created };
            return Err(Failure::OtherStore(other.to_string()));
        }
        Err(Failure::OtherStore(format!("the store of claims is not {} any more; ask for it again", shown(store))))
    }

    fn admit(&self, group: &GroupName, store: &ClaimStore) -> NatsResult<()> {
        if self.stores.admit(group, store, self.client.history.now().era) {
            return Ok(());
        }
        Err(Failure::OtherStore(format!(
            "the stream has lost messages or was recreated, so the store of claims {} would give epochs that were given before; set epoch_floor above \
             the highest epoch used",
            store.id
        )))
    }
}
