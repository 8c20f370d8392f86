//! Who may change the record of an instance id: a key taken by compare-and-set, held only during the change.
//!
//! Consul's register does not compare and is not unique across agents, and deregister goes by id alone (decision 0009). A lock proves
//! nothing about who lives and may vanish at any time; one that a dead process left behind is void after [`VOID_AFTER`], counted on the
//! finder's clock from when it found the lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use shardwise_core::Moment;
use shardwise_discovery::{RecordId, jittered};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::api::WRITE_KEYS;
use crate::caller::Caller;
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::keys::operation;
use crate::names;

/// How long a change may take while it holds the lock.
pub(crate) const HELD_FOR: Duration = Duration::from_secs(3);
/// When a lock that has not moved belongs to a process that died in the middle. Any change is over after 7 s: the answer to taking the lock
/// may take 2 s (`ANSWER_TIMEOUT`), the lock is good for 3 s from then, and the last request within that is waited for 2 s. 3 s more are
/// for a request that was given up and is carried out all the same.
pub(crate) const VOID_AFTER: Duration = Duration::from_secs(10);
/// How long one waits for a lock that is taken.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest pause before the next poll.
const POLL_PAUSE_MAX: Duration = Duration::from_millis(15);

#[derive(Default)]
pub(crate) struct RegistrationLocks {
    /// Changes of one id in this process take turns here, so that a lock of the same incarnation is one that was left behind.
    lanes: Mutex<HashMap<String, Arc<AsyncMutex<()>>>>,
    /// Guards of others: their index, and when it was first seen.
    seen: Mutex<HashMap<String, (u64, Moment)>>,
}

pub(crate) struct RegistrationLock {
    key: String,
    /// The index that taking it had: higher than that of any earlier one.
    pub(crate) index: u64,
    /// Until then no other process treats it as void.
    pub(crate) good_until: Instant,
    _turn: OwnedMutexGuard<()>,
}

impl RegistrationLock {
    pub(crate) fn is_good(&self) -> bool {
        Instant::now() < self.good_until
    }
}

impl RegistrationLocks {
    /// Takes the lock of this record's id, or fails as [`Failure::Contended`], or as [`Failure::GivenUp`]. A try that is on its way is
    /// waited for in any case, so that a lock that was taken is known.
    pub(crate) async fn take(&self, client: &Client, record_id: &RecordId, caller: &Caller) -> Result<RegistrationLock> {
        let (key, by) = (names::lock_key(&record_id.instance_id), names::lock_holder(record_id));
        let lane = self.lane(&key);
        let turn = caller.or_gone(async { Ok(lane.lock_owned().await) }).await?;
        let gives_up = client.clock.now().plus(PATIENCE);
        let mut expected = 0;
        for tries in 0u32.. {
            if caller.is_gone() {
                return Err(Failure::GivenUp);
            }
            // What the first poll shows is tried in any case, however slow the way is.
            if tries > 1 && client.clock.now() >= gives_up {
                break;
            }
            if let Some(index) = client.compare_and_set("taking the registration lock", &key, "", by, expected).await? {
                self.seen().remove(&key);
                return Ok(RegistrationLock { key, index, good_until: Instant::now() + HELD_FOR, _turn: turn });
            }
            expected = match client.key("reading the registration lock", &key, WRITE_KEYS).await? {
                None => 0,
                Some(held) if held.flags == by || self.is_void(&key, held.modify_index, client.clock.now()) => held.modify_index,
                Some(_) => {
                    tokio::time::sleep(jittered(POLL_PAUSE_MAX)).await;
                    0
                }
            };
        }
        Err(Failure::Contended { instance_id: record_id.instance_id.clone() })
    }

    /// Gives the lock back, and its lane. If that fails it is void by itself later.
    pub(crate) async fn free(client: &Client, lock: RegistrationLock) {
        let free = operation("delete-cas", &lock.key, json!({ "Index": lock.index }));
        if let Err(failure) = client.txn("giving the registration lock back", &[free]).await {
            tracing::debug!(%failure, "a registration lock could not be given back and is void in a few seconds");
        }
    }

    fn lane(&self, key: &str) -> Arc<AsyncMutex<()>> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // What ended calls have left.
        lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        Arc::clone(lanes.entry(key.to_owned()).or_default())
    }

    fn is_void(&self, key: &str, index: u64, now: Moment) -> bool {
        let mut seen = self.seen();
        seen.retain(|_, (_, since)| now.since(*since) < VOID_AFTER * 10);
        let (known, since) = seen.entry(key.to_owned()).or_insert((index, now));
        if *known != index {
            (*known, *since) = (index, now);
        }
        now.since(*since) >= VOID_AFTER
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, HashMap<String, (u64, Moment)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ANSWER_TIMEOUT;

    #[test]
    fn a_lock_is_void_once_it_has_not_moved_for_long() {
        let locks = RegistrationLocks::default();
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        assert!(!locks.is_void("k", 5, at(1)));
        assert!(!locks.is_void("k", 5, at(10)));
        assert!(locks.is_void("k", 5, at(11)));
        assert!(!locks.is_void("k", 6, at(12)), "it has moved");
        assert!(!locks.is_void("l", 5, at(13)), "each key by itself");
    }

    #[test]
    fn a_lock_that_no_other_takes_is_void_after_any_change_is_over() {
        assert!(ANSWER_TIMEOUT + HELD_FOR + ANSWER_TIMEOUT + Duration::from_secs(1) < VOID_AFTER);
    }

    #[test]
    fn lanes_do_not_pile_up() {
        let locks = RegistrationLocks::default();
        let kept = locks.lane("a");
        for n in 0..100 {
            locks.lane(&n.to_string());
        }
        assert!(locks.lanes.lock().unwrap().len() <= 2);
        assert!(Arc::ptr_eq(&kept, &locks.lane("a")));
    }
}
