//! A dependency that all workers share fails, so all their checks fail at once, and later succeed again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::RngExt;
use shardwise::discovery::Discovery;

use crate::life::Life;

/// Three checks, one every 2 s, and the handover after them: two TTLs and a second.
const WITHIN: Duration = Duration::from_secs(13);
const POLL_EVERY: Duration = Duration::from_millis(100);

impl Life {
    /// All checks fail at once. At least half of the group stays active at every moment, exactly half in the end, and they take over what
    /// the drained members held. When the checks succeed again, all members come back.
    pub(crate) async fn all_checks_fail(&mut self) -> Result<(), String> {
        let Some(succeed) = self.group.checks.clone() else { return Ok(()) };
        let group = self.workers.iter().filter(|worker| worker.stays()).count();
        let half = group.div_ceil(2);
        succeed.store(false, Ordering::Relaxed);
        let ends = self.now().plus(WITHIN + Duration::from_millis(self.dice.random_range(0..10_000)));
        while self.now() < ends {
            self.passes(POLL_EVERY).await?;
            let active = self.active().await;
            if active < half {
                return Err(format!("only {active} of {group} members are active while all checks fail: {}", self.summary()));
            }
        }
        let (active, spared) = (self.active().await, self.spared());
        if (active, spared) != (half, half) || !self.is_settled() {
            let of = format!("{active} of {group} members are active and {spared} spared");
            return Err(format!("{of} after {WITHIN:?} in which all checks failed: {}", self.summary()));
        }
        succeed.store(true, Ordering::Relaxed);
        let begun = self.now();
        while self.active().await < group || self.spared() > 0 || !self.is_settled() {
            let waited = self.now().since(begun);
            if waited > WITHIN {
                return Err(format!("not all are back {waited:?} after the checks succeeded again: {}", self.summary()));
            }
            self.passes(POLL_EVERY).await?;
        }
        self.took("back after all checks had failed", begun);
        self.happened("all checks failed at once");
        Ok(())
    }

    /// The number of active members, by the records.
    async fn active(&self) -> usize {
        self.group.store.members(&self.group.policy.group).await.expect("read").view.active()
    }

    /// The number of members that keep their share although their checks fail.
    fn spared(&self) -> usize {
        self.workers.iter().filter(|worker| worker.stays() && worker.service().is_spared()).count()
    }
}
