//! What is asked of etcd about claims: many keys in one transaction, each on a branch of its own, so that one that is held does not keep the
//! others back.

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use crate::client::{Entry, Link};
use crate::error::Failure;

/// The most keys of one transaction. etcd takes 128 operations (`--max-txn-ops`): a branch for each key, and one for what is in a branch.
pub(crate) const KEYS_MAX: usize = 127;

/// What a member's right to claim stands on, as one read saw it.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    /// The key of its record, and the lease which is of that life of it alone.
    pub(crate) record: Vec<u8>,
    pub(crate) lease: i64,
    /// The key of the store of claims, and the revision that wrote it last.
    pub(crate) store: Vec<u8>,
    pub(crate) written: i64,
}

/// What a transaction has made of one key.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Nothing stood there; now the claim does, made by this revision.
    Made(i64),
    /// This stands there.
    There(Entry),
}

impl Link {
    /// Writes `claim` under those of the keys, at most [`KEYS_MAX`], where nothing stands; what became of each. Nothing: the standing has changed.
    pub(crate) async fn take(&self, standing: &Standing, keys: &[Vec<u8>], claim: &str) -> Result<Option<Vec<Taken>>, Failure> {
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
        let odd = || Failure::NotEtcd { endpoint: self.endpoint(), why: "an answer does not fit its transaction".into() };
        taken.filter(|taken| taken.len() == keys.len()).map(Some).ok_or_else(odd)
    }

    /// Deletes exactly these entries, at most [`KEYS_MAX`]; what has changed since stays.
    pub(crate) async fn give_back(&self, entries: &[Entry]) -> Result<(), Failure> {
        let branch = |entry: &Entry| {
            let same = Compare::mod_revision(entry.key.as_slice(), CompareOp::Equal, entry.modified);
            TxnOp::txn(Txn::new().when([same]).and_then([TxnOp::delete(entry.key.as_slice(), None)]))
        };
        self.txn(&Txn::new().and_then(entries.iter().map(branch).collect::<Vec<_>>())).await.map(drop)
    }
}

fn taken(answer: TxnOpResponse, revision: i64) -> Option<Taken> {
    let TxnOpResponse::Txn(branch) = answer else { return None };
    if TxnResponse::succeeded(&branch) {
        return Some(Taken::Made(revision));
    }
    match branch.op_responses().pop()? {
        TxnOpResponse::Get(found) => found.kvs().first().map(|kv| Taken::There(Entry::from(kv))),
        _ => None,
    }
}
