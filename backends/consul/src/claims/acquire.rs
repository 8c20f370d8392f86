//! Asking for resources and giving them back, in transactions of as many as Consul takes.
//!
//! A grant is the lock of a resource's key by the member's session; its epoch is the index that the locking transaction gave the key, above
//! the store's floor. Each transaction also holds that the store's key is what it was when it was read, under this very session: a Consul
//! that was wiped knows neither.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Value, json};
use shardwise_core::{ClaimStore, Epoch, Resource};
use shardwise_discovery::{AcquireOutcome, RecordId};

use super::session::{HeldLock, LockSession};
use super::{keys, read_store};
use crate::caller::Caller;
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::keys::{KvPair, OPERATIONS_MAX, Txn, TxnError, operation};

/// How many transactions of one call are under way at a time.
const AT_ONCE: usize = 8;
/// One operation is for the store.
const LOCKS_MAX: usize = OPERATIONS_MAX - 1;
/// Each release is two operations.
const RELEASES_MAX: usize = OPERATIONS_MAX / 2;

type AcquireAnswers = Vec<(Resource, AcquireOutcome)>;

pub(crate) struct AcquireCall<'a> {
    pub(crate) client: &'a Client,
    pub(crate) caller: &'a Caller,
    pub(crate) record_id: &'a RecordId,
    pub(crate) session: &'a LockSession,
    pub(crate) store: ClaimStore,
}

impl AcquireCall<'_> {
    pub(crate) async fn all(&self, wanted: &[Resource]) -> Result<AcquireAnswers> {
        let index = self.store_index(false).await?;
        match self.under(index, wanted).await {
            // Perhaps it was only written again as it was.
            Err(Failure::StoreChanged) => match self.under(self.store_index(true).await?, wanted).await {
                Err(Failure::StoreChanged) => Err(Failure::Overtaken),
                answer => answer,
            },
            answer => answer,
        }
    }

    /// The index of the store's key while the store is the one that is asked under.
    async fn store_index(&self, afresh: bool) -> Result<u64> {
        let known = self.session.memory().store.filter(|(known, _)| !afresh && *known == self.store);
        if let Some((_, index)) = known {
            return Ok(index);
        }
        match read_store(self.client, &self.record_id.group).await? {
            Some((found, index)) if found == self.store => {
                self.session.memory().store = Some((found, index));
                Ok(index)
            }
            found => Err(Failure::OtherStore { asked: self.store, found: found.map(|(found, _)| found) }),
        }
    }

    async fn under(&self, index: u64, wanted: &[Resource]) -> Result<AcquireAnswers> {
        let wanted: BTreeSet<_> = wanted.iter().collect();
        let (delayed, mut first): (Vec<_>, Vec<_>) = wanted.into_iter().cloned().partition(|resource| self.session.is_delayed(resource));
        let mut answers = AcquireAnswers::new();
        // Held-back resources all come free at about the same time. Consul logs a line for each early request.
        if let Some(sample) = self.session.longest_delayed(&delayed) {
            let answer = self.part(index, vec![sample.clone()]).await?;
            let others = delayed.into_iter().filter(|resource| *resource != sample);
            if answer.iter().any(|(_, acquired)| *acquired == AcquireOutcome::NotYet) {
                answers.extend(others.map(|resource| (resource, AcquireOutcome::NotYet)));
            } else {
                first.extend(others);
            }
            answers.extend(answer);
        }
        let parts: Vec<_> = first.chunks(LOCKS_MAX).map(<[_]>::to_vec).collect();
        let parts = parts.into_iter().map(|part| self.part(index, part));
        let parts: Vec<AcquireAnswers> = stream::iter(parts).buffer_unordered(AT_ONCE).try_collect().await?;
        answers.extend(parts.into_iter().flatten());
        Ok(answers)
    }

    /// As many as fit into one transaction. Each try settles at least one of them.
    async fn part(&self, index: u64, mut left: Vec<Resource>) -> Result<AcquireAnswers> {
        let mut answers = AcquireAnswers::with_capacity(left.len());
        while !left.is_empty() {
            if self.caller.is_gone() {
                return Err(Failure::GivenUp);
            }
            match self.client.txn("acquiring claims", &self.locks(index, &left)).await? {
                Txn::Done(stored) => {
                    self.granted(left, &stored, &mut answers)?;
                    break;
                }
                Txn::Refused(refusals) => self.refused(&mut left, &refusals, &mut answers)?,
            }
        }
        Ok(answers)
    }

    fn locks(&self, index: u64, wanted: &[Resource]) -> Vec<Value> {
        let prefix = keys::prefix(&self.record_id.group);
        let (value, flags) = (keys::claim_value(self.record_id, &self.store), self.record_id.incarnation.get());
        let lock = json!({ "Session": self.session.id, "Value": value, "Flags": flags });
        let same_store = operation("check-index", &keys::store_key(&self.record_id.group), json!({ "Index": index }));
        let locks = wanted.iter().map(|resource| operation("lock", &keys::claim_key(&prefix, resource), lock.clone()));
        std::iter::once(same_store).chain(locks).collect()
    }

    fn granted(&self, wanted: Vec<Resource>, stored: &[KvPair], answers: &mut AcquireAnswers) -> Result<()> {
        let prefix = keys::prefix(&self.record_id.group);
        let indexes: BTreeMap<_, _> = stored.iter().map(|stored| (stored.key.as_str(), stored.modify_index)).collect();
        for resource in wanted {
            let index = indexes.get(keys::claim_key(&prefix, &resource).as_str());
            let index = *index.ok_or_else(|| self.client.strange("a transaction without a result"))?;
            let epoch = self.store.epoch(index).map_err(Failure::Epoch)?;
            self.session.holds(resource.clone(), HeldLock { epoch, index });
            answers.push((resource, AcquireOutcome::Granted(epoch)));
        }
        Ok(())
    }

    fn refused(&self, left: &mut Vec<Resource>, refusals: &[TxnError], answers: &mut AcquireAnswers) -> Result<()> {
        if refusals.iter().any(|refusal| refusal.what.contains("invalid session")) {
            return Err(Failure::Lost { instance_id: self.record_id.instance_id.clone(), why: "its session has ended" });
        }
        if refusals.is_empty() || refusals.iter().any(|refusal| refusal.at == 0) {
            return Err(Failure::StoreChanged);
        }
        for refusal in refusals {
            let Some(resource) = left.get(refusal.at - 1) else { return Err(self.client.strange("an operation that was not asked for")) };
            let acquired = match &refusal.what {
                // Another session has the lock.
                what if what.contains("already held") => {
                    self.session.memory().delayed.remove(resource);
                    AcquireOutcome::Held
                }
                // The session that had the lock ended a moment ago.
                what if what.contains("lock delay") => {
                    self.session.memory().delayed.entry(resource.clone()).or_insert(self.client.clock.now());
                    AcquireOutcome::NotYet
                }
                what => return Err(self.client.refused(what)),
            };
            answers.push((resource.clone(), acquired));
        }
        taken_out(left, &refusals.iter().map(|refusal| refusal.at - 1).collect());
        Ok(())
    }
}

/// Releases claims that are still held under exactly this epoch; the rest is not ours any more.
pub(crate) async fn release(client: &Client, record_id: &RecordId, session: &LockSession, held: &[(Resource, Epoch)]) -> Result<()> {
    let mut held_locks: Vec<(Resource, HeldLock)> = Vec::with_capacity(held.len());
    let mut floor = None;
    for (resource, epoch) in held {
        let index = match (session.held_lock(resource, *epoch), floor) {
            (Some(held_lock), _) => Some(held_lock.index),
            // Granted in an answer that was lost, or through another connection: the watch has delivered the epoch.
            (None, Some(floor)) => epoch.get().checked_sub(floor),
            (None, None) => match read_store(client, &record_id.group).await? {
                Some((found, _)) => epoch.get().checked_sub(*floor.insert(found.floor)),
                None => None,
            },
        };
        held_locks.extend(index.map(|index| (resource.clone(), HeldLock { epoch: *epoch, index })));
    }
    let parts: Vec<_> = held_locks.chunks(RELEASES_MAX).map(<[_]>::to_vec).collect();
    let parts = parts.into_iter().map(|part| release_part(client, record_id, session, part));
    stream::iter(parts).buffer_unordered(AT_ONCE).try_collect().await
}

/// Releases everything that this process knows to be held, before the session ends: locks that a session's end frees are held back.
pub(crate) async fn release_all(client: &Client, record_id: &RecordId, session: &LockSession) {
    let held: Vec<_> = session.memory().held.iter().map(|(resource, held_lock)| (resource.clone(), held_lock.epoch)).collect();
    if let Err(failure) = release(client, record_id, session, &held).await {
        tracing::debug!(%failure, "the claims of a member that leaves come free with its session");
    }
}

/// As many as fit into one transaction. Each try settles at least one of them.
async fn release_part(client: &Client, record_id: &RecordId, session: &LockSession, mut left: Vec<(Resource, HeldLock)>) -> Result<()> {
    let prefix = keys::prefix(&record_id.group);
    while !left.is_empty() {
        let unlock = |(resource, held_lock): &(Resource, HeldLock)| {
            let key = keys::claim_key(&prefix, resource);
            [
                operation("check-index", &key, json!({ "Index": held_lock.index })),
                operation("unlock", &key, json!({ "Session": session.id, "Value": "" })),
            ]
        };
        let unlocks: Vec<_> = left.iter().flat_map(unlock).collect();
        match client.txn("releasing claims", &unlocks).await? {
            Txn::Done(_) => {
                settled(session, &left);
                break;
            }
            Txn::Refused(refusals) => {
                let gone = taken_out(&mut left, &refusals.iter().map(|refusal| refusal.at / 2).collect());
                if gone.is_empty() {
                    return Err(client.strange("a transaction that was refused without a reason"));
                }
                settled(session, &gone);
            }
        }
    }
    Ok(())
}

fn settled(session: &LockSession, released: &[(Resource, HeldLock)]) {
    for (resource, held_lock) in released {
        session.lets_go(resource, held_lock.epoch);
    }
}

/// Takes out what stands at these places.
fn taken_out<T>(left: &mut Vec<T>, places: &BTreeSet<usize>) -> Vec<T> {
    let (out, rest): (Vec<_>, Vec<_>) = std::mem::take(left).into_iter().enumerate().partition(|(at, _)| places.contains(at));
    left.extend(rest.into_iter().map(|(_, one)| one));
    out.into_iter().map(|(_, one)| one).collect()
}
