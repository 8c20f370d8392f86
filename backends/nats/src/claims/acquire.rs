//! Acquiring claims: each is written on the condition of what stands there, over nothing, over what was released, or over a claim whose
//! life is known to have ended.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use shardwise_core::{ClaimStore, InstanceId, Resource, SLOTS_MAX};
use shardwise_discovery::{AcquireOutcome, RecordId};
use tokio::sync::OnceCell;

use super::{AT_ONCE, refuse_too_many};
use crate::error::{Failure, NatsResult};
use crate::handle::{AwaitedLife, BucketHandle};
use crate::jetstream::CasOutcome;
use crate::messages::{ClaimMessage, LifeBeat, millis};

/// How often a claim is tried again where another write came first.
const TRIES: usize = 4;

/// What is known of the life that a claim names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HolderState {
    /// It has ended, for ever.
    Ended,
    /// It holds what it holds, and the watch reports when that ends.
    Alive { ttl: Duration },
    /// No watch reports its end, so the end has to be waited for.
    Unclear { ttl: Duration },
}

/// The lives of holders, each looked up once in a call.
type MetHolders = HashMap<(InstanceId, u64), Arc<OnceCell<HolderState>>>;

/// One call: who asks, and the holders that it has met.
struct ClaimCall<'a> {
    record_id: &'a RecordId,
    store: &'a ClaimStore,
    beat: LifeBeat,
    holders: Mutex<MetHolders>,
    awaited: Mutex<HashMap<(InstanceId, u64), AwaitedLife>>,
}

impl ClaimCall<'_> {
    fn holder(&self, claim: &ClaimMessage) -> Arc<OnceCell<HolderState>> {
        let key = (claim.holder.clone(), claim.life);
        Arc::clone(locked(&self.holders).entry(key).or_default())
    }

    fn wait_for(&self, claim: &ClaimMessage, ttl: Duration) {
        let record = RecordId { group: self.record_id.group.clone(), instance_id: claim.holder.clone(), incarnation: claim.incarnation };
        let awaited = AwaitedLife { record, life: claim.life, ttl };
        locked(&self.awaited).insert((claim.holder.clone(), claim.life), awaited);
    }

    fn is_mine(&self, claim: &ClaimMessage) -> bool {
        claim.holder == self.record_id.instance_id && claim.life == self.beat.life
    }

    fn message(&self) -> Vec<u8> {
        let RecordId { instance_id, incarnation, .. } = self.record_id;
        let LifeBeat { life, ttl, .. } = self.beat;
        let claim =
            ClaimMessage { holder: instance_id.clone(), incarnation: *incarnation, life, floor: self.store.floor, ttl_ms: millis(ttl) };
        claim.bytes()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks can panic halfway through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BucketHandle {
    pub(super) async fn acquire(
        &self,
        record_id: &RecordId,
        store: &ClaimStore,
        wanted: BTreeSet<Resource>,
    ) -> NatsResult<Vec<(Resource, AcquireOutcome)>> {
        refuse_too_many(wanted.len())?;
        if let Some(Resource::Slot(slot)) = wanted.iter().find(|resource| matches!(resource, Resource::Slot(slot) if *slot >= SLOTS_MAX)) {
            return Err(Failure::NoSlot { slot: *slot });
        }
        self.in_force(&record_id.group, store).await?;
        let (_, beat) = self.living(record_id).await?;
        let call = ClaimCall { record_id, store, beat, holders: Mutex::default(), awaited: Mutex::default() };
        let call = &call;
        let asking = wanted.into_iter().map(|resource| async move {
            let outcome = self.acquire_one(call, &resource).await?;
            Ok::<_, Failure>((resource, outcome))
        });
        let outcomes: Vec<_> = stream::iter(asking).buffer_unordered(AT_ONCE).try_collect().await?;
        // A floor that was raised meanwhile, or messages that were lost: what was granted then is no grant, and goes back.
        if let Err(failure) = self.in_force(&record_id.group, store).await {
            let granted = outcomes.iter().filter_map(|(resource, outcome)| match outcome {
                AcquireOutcome::Granted(epoch) => Some((resource.clone(), *epoch)),
                AcquireOutcome::Held | AcquireOutcome::NotYet => None,
            });
            self.release(record_id, granted.collect()).await?;
            return Err(failure);
        }
        let awaited = std::mem::take(&mut *locked(&call.awaited));
        self.groups.wait_for(record_id, awaited.into_values().collect());
        Ok(outcomes)
    }

    async fn acquire_one(&self, call: &ClaimCall<'_>, resource: &Resource) -> NatsResult<AcquireOutcome> {
        let subject = self.client.bucket.group(&call.record_id.group).claim(resource);
        let mut expected = 0;
        for _ in 0..TRIES {
            if let CasOutcome::Written(sequence) = self.client.write(subject.clone(), expected, call.message()).await? {
                return call.store.epoch(sequence).map(AcquireOutcome::Granted).map_err(Failure::NoEpoch);
            }
            let message = self.client.last(&subject).await?;
            let Some(message) = message else {
                expected = 0;
                continue;
            };
            expected = message.sequence;
            let claim = match ClaimMessage::read(&message.payload) {
                Ok(Some(claim)) => claim,
                Ok(None) => continue,
                Err(why) => {
                    // One claim that was edited by hand keeps no other from being granted.
                    tracing::warn!(subject, why, "a claim cannot be read and is not granted; delete that key");
                    return Ok(AcquireOutcome::NotYet);
                }
            };
            if call.is_mine(&claim) {
                // This read may be out of date, and another member may hold it by now: only a write tells, under a new epoch.
                continue;
            }
            match self.holder_state(call, &claim).await? {
                HolderState::Ended => {}
                HolderState::Alive { ttl } => {
                    call.wait_for(&claim, ttl);
                    return Ok(AcquireOutcome::Held);
                }
                HolderState::Unclear { ttl } => {
                    call.wait_for(&claim, ttl);
                    return Ok(AcquireOutcome::NotYet);
                }
            }
        }
        Ok(AcquireOutcome::NotYet)
    }

    async fn holder_state(&self, call: &ClaimCall<'_>, claim: &ClaimMessage) -> NatsResult<HolderState> {
        let cell = call.holder(claim);
        cell.get_or_try_init(|| self.read_holder(call, claim)).await.copied()
    }

    /// An answer that is out of date shows an earlier state, in which the life was not over yet; so `Ended` is never wrong.
    async fn read_holder(&self, call: &ClaimCall<'_>, claim: &ClaimMessage) -> NatsResult<HolderState> {
        let group = &call.record_id.group;
        let Some(there) = self.stored_beat(group, &claim.holder).await? else {
            return Ok(HolderState::Unclear { ttl: Duration::from_millis(claim.ttl_ms) });
        };
        if there.has_ended(claim.life) {
            return Ok(HolderState::Ended);
        }
        let ttl = there.renewing().map_or(Duration::from_millis(claim.ttl_ms), |beat| beat.ttl);
        // The watch shows claims of the lives that have a record.
        let member = self.stored_member(group, &claim.holder).await?;
        let is_shown = member.is_some_and(|stored| stored.life == claim.life && stored.member.state != shardwise_core::MemberState::Away);
        Ok(if is_shown { HolderState::Alive { ttl } } else { HolderState::Unclear { ttl } })
    }
}
