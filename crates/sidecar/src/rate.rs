//! Limits on how often something is done: a token bucket, and one report a member.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use shardwise::InstanceId;

use tokio::time::Instant;

/// How often a member is notified that its worker is suspected.
const SUSPECTED_EVERY: Duration = Duration::from_secs(5);

/// A bucket that fills at a steady rate and holds as much as two seconds add.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    per_second: f64,
    bucket: Mutex<(f64, Instant)>,
}

impl RateLimiter {
    pub(crate) fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, bucket: Mutex::new((per_second * 2.0, Instant::now())) }
    }

    /// Takes one token; `false` if the bucket is empty.
    pub(crate) fn passes(&self) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let ((left, filled), now) = (*bucket, Instant::now());
        let left = (left + (now - filled).as_secs_f64() * self.per_second).min(self.per_second * 2.0);
        let passes = left >= 1.0;
        *bucket = (if passes { left - 1.0 } else { left }, now);
        passes
    }
}

/// The members that were notified of a suspicion lately.
#[derive(Debug, Default)]
pub(crate) struct Suspected(Mutex<BTreeMap<InstanceId, Instant>>);

impl Suspected {
    /// Whether to notify this member; `false` if it was notified within the last five seconds.
    pub(crate) fn passes(&self, member: &InstanceId) -> bool {
        let mut notified = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        notified.retain(|_, at| now - *at < SUSPECTED_EVERY);
        if notified.contains_key(member) {
            return false;
        }
        notified.insert(member.clone(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_member_is_notified_once_in_five_seconds() {
        let (suspected, a, b) = (Suspected::default(), InstanceId::new("a").unwrap(), InstanceId::new("b").unwrap());
        assert!(suspected.passes(&a) && !suspected.passes(&a) && suspected.passes(&b));
        tokio::time::advance(SUSPECTED_EVERY).await;
        assert!(suspected.passes(&a));
    }

    #[tokio::test(start_paused = true)]
    async fn two_seconds_worth_at_once_and_then_at_the_rate() {
        let rate = RateLimiter::new(5);
        for (after, passed) in [(0, 10), (0, 0), (1_000, 5), (200, 1), (0, 0), (58_800, 10)] {
            tokio::time::advance(Duration::from_millis(after)).await;
            assert_eq!((0..100).filter(|_| rate.passes()).count(), passed, "after {after} ms");
        }
    }
}
