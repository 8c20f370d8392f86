//! etcd transactions for claims: many keys in one transaction, each in a separate branch, so that a held one does not block the others.

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use crate::client::{EtcdConnection, KeyEntry};
use crate::error::Failure;

/// The most keys of one transaction. etcd takes 128 operations (`--max-txn-ops`): a branch for each key, and one for what is in a branch.
pub(crate) const KEYS_MAX: usize = 127;

/// The basis of a member's right to claim, as one read saw it.
#[derive(Debug, Clone)]
pub(crate) struct ClaimPreconditions {
    /// The key of its record, and the lease which is of that life of it alone.
    pub(crate) record: Vec<u8>,
    pub(crate) lease: i64,
    /// The key of the store of claims, and the revision that wrote it last.
    pub(crate) store: Vec<u8>,
    pub(crate) written: i64,
}

#[derive(Debug)]
pub(crate) enum PutOutcome {
    /// Nothing stood there; now the claim does, made by this revision.
    Made(i64),
    There(KeyEntry),
}

impl EtcdConnection {
    /// Writes `claim` under those of at most [`KEYS_MAX`] keys that are free, and
    /// returns each key's result. `None`: the record or store has changed.
    pub(crate) async fn take(
        &self,
        standing: &ClaimPreconditions,
        keys: &[Vec<u8>],
        claim: &str,
    ) -> Result<Option<Vec<PutOutcome>>, Failure> {
        let branch = |key: &Vec<u8>| {
            let free = Compare::create_revision(key.as_slice(), CompareOp::Equal, 0);
            let put = TxnOp::put(key.as_slice(), claim, Some(PutOptions::new().with_lease(standing.lease)));
            TxnOp::txn(Txn::new().when([free]).and_then([put]).or_else([TxnOp::get(key.as_slice(), None)]))
        };
        let alive = Compare::lease(standing.record.as_slice(), CompareOp::Equal, standing.lease);
        let same = Compare::mod_revision(standing.store.as_slice(), CompareOp::Equal, standing.written);
        let txn = Txn::new().when([alive, same]).and_then(keys.iter().map(branch).collect::<Vec<_>>());
        let Some(answer) = self.txn_under_lease(&txn).await? else { return Ok(None) };
        let revision = self.revision_of(answer.header())?;
        let taken: Option<Vec<_>> = answer.op_responses().into_iter().map(|branch| taken(branch, revision)).collect();
        taken.filter(|taken| taken.len() == keys.len()).map(Some).ok_or_else(|| self.odd("an answer does not fit its transaction"))
    }

    /// Deletes exactly these entries, at most [`KEYS_MAX`]; entries that have changed since stay.
    pub(crate) async fn give_back(&self, entries: &[KeyEntry]) -> Result<(), Failure> {
        let branch = |entry: &KeyEntry| {
            let same = Compare::mod_revision(entry.key.as_slice(), CompareOp::Equal, entry.modified);
            TxnOp::txn(Txn::new().when([same]).and_then([TxnOp::delete(entry.key.as_slice(), None)]))
        };
        self.txn(&Txn::new().and_then(entries.iter().map(branch).collect::<Vec<_>>())).await.map(drop)
    }
}

fn taken(answer: TxnOpResponse, revision: i64) -> Option<PutOutcome> {
    let TxnOpResponse::Txn(branch) = answer else { return None };
    if TxnResponse::succeeded(&branch) {
        return Some(PutOutcome::Made(revision));
    }
    match branch.op_responses().pop()? {
        TxnOpResponse::Get(found) => found.kvs().first().map(|kv| PutOutcome::There(KeyEntry::from(kv))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use shardwise_discovery::Clock;
    use shardwise_testkit::Etcd;

    use super::*;
    use crate::{EtcdBackend, EtcdConfig};

    /// What the transaction itself sees to, on a real server: the reads before it may be older.
    #[tokio::test]
    async fn nothing_is_made_once_the_standing_has_changed_and_nothing_deleted_that_was_written_since() {
        let server = Etcd::single().await.unwrap();
        let config = EtcdConfig { endpoints: vec![server.address()], ..EtcdConfig::default() };
        let backend = EtcdBackend::open(&config, Clock::system()).unwrap();
        let connection = backend.inner.pool.call(|connection| async move { Ok(connection) }).await.unwrap();
        let (lease, _) = connection.grant(60).await.unwrap();
        let (other, _) = connection.grant(60).await.unwrap();
        let (record, store, keys) = (b"/r".to_vec(), b"/s".to_vec(), [b"/1".to_vec(), b"/2".to_vec()]);
        assert!(connection.create(&record, "r", lease).await.unwrap() && connection.create(&store, "s", 0).await.unwrap());
        let there = async || connection.read(&[&keys[0], &keys[1]]).await.unwrap().0.into_iter().flatten().collect::<Vec<_>>();
        let written = connection.read(&[&store]).await.unwrap().1;
        let standing = ClaimPreconditions { record, lease, store, written };

        let under_another_lease = ClaimPreconditions { lease: other, ..standing.clone() };
        let of_another_store = ClaimPreconditions { written: written - 1, ..standing.clone() };
        for changed in [&under_another_lease, &of_another_store] {
            assert!(connection.take(changed, &keys, "c").await.unwrap().is_none(), "{changed:?}");
            assert!(there().await.is_empty());
        }
        let made = connection.take(&standing, &keys, "c").await.unwrap().unwrap();
        assert!(matches!(made[..], [PutOutcome::Made(one), PutOutcome::Made(two)] if one == two && one > written), "{made:?}");
        let again = connection.take(&standing, &keys, "d").await.unwrap().unwrap();
        assert!(
            matches!(&again[..], [PutOutcome::There(one), PutOutcome::There(two)] if one.value == b"c" && two.key == keys[1]),
            "{again:?}"
        );

        let before = there().await;
        assert!(connection.replace(&before[1], "e", lease).await.unwrap());
        connection.give_back(&before).await.unwrap();
        assert_eq!(there().await.iter().map(|entry| entry.value.as_slice()).collect::<Vec<_>>(), [b"e"]);

        connection.revoke(lease).await.unwrap();
        assert!(connection.take(&standing, &keys, "c").await.unwrap().is_none());
        assert!(there().await.is_empty(), "claims end with the lease, and there are none without");
    }
}
