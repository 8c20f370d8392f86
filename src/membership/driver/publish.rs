//! Publishes the snapshot and the rebalance, each with its metrics, span and log messages.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::machine::MemberRefusal;
use shardwise_core::{Fingerprint, Moment, Ownership, Rebalance, ServiceState};

use super::Driver;

/// How often a worker that stays fenced says so, and why.
const STILL_FENCED_EVERY: Duration = Duration::from_secs(30);

/// Since when a worker is fenced, and when it says so again.
pub(super) struct FencedTime {
    since: Moment,
    word_at: Moment,
}

impl Driver {
    pub(super) fn publish(&mut self, ownership: Arc<Ownership>) {
        let published = self.membership.ownership();
        self.meters.published(self.membership.clock.now(), &published, &ownership, self.machine.wanted_slots());
        let before = published.state();
        if ownership.state() == ServiceState::Stale && before != ServiceState::Stale {
            tracing::warn!(
                policy = %self.membership.policy.name,
                "the backend is out of reach: this worker keeps what it has, and others may do the same work"
            );
        }
        self.warn_of_fencing(&published, ownership.state());
        self.warn_of_refusal(&published, &ownership);
        if ownership.state() != before {
            tracing::info!(policy = %self.membership.policy.name, instance = %self.membership.instance_id, from = %before, to = %ownership.state(), "state");
        }
        self.log_switch(ownership.policy_fingerprint());
        self.membership.publish(ownership);
    }

    pub(super) fn rebalanced(&mut self, mut rebalance: Rebalance) {
        // Several views may be placed at once: a leaver's mark may have been in one of them.
        rebalance.members_vanished.retain(|id| !self.membership.departures.has_left(id));
        let span = tracing::info_span!(
            "rebalance",
            "shardwise.policy" = %self.membership.policy.name,
            "shardwise.cause" = rebalance.cause.as_str(),
            "shardwise.revision" = rebalance.revision,
            "shardwise.members" = rebalance.members_total,
            "shardwise.owned" = rebalance.slots_owned,
            "shardwise.gained" = rebalance.gained.len(),
            "shardwise.lost" = rebalance.lost.len()
        );
        let _within = span.enter();
        tracing::info!(
            policy = %self.membership.policy.name, cause = %rebalance.cause, members = rebalance.members_total,
            owned = rebalance.slots_owned, gained = rebalance.gained.len(), lost = rebalance.lost.len(), "rebalanced"
        );
        self.meters.rebalanced(&rebalance);
        self.membership.rebalanced(&rebalance);
    }

    /// A worker that the group refuses owns nothing until that ends. Refusals by the backend were logged with its answer.
    fn warn_of_refusal(&self, before: &Ownership, now: &Ownership) {
        let refusal =
            now.refusal().filter(|refusal| before.refusal() != Some(*refusal) && !matches!(refusal, MemberRefusal::Backend { .. }));
        if let Some(refusal) = refusal {
            let (policy, instance) = (&self.membership.policy.name, self.membership.instance_id.as_str());
            tracing::warn!(%policy, ?instance, %refusal, "refused: this worker owns nothing until the cause is gone");
        }
    }

    fn warn_of_fencing(&mut self, before: &Ownership, now: ServiceState) {
        let (policy, instance) = (&self.membership.policy.name, &self.membership.instance_id);
        match now {
            ServiceState::Fenced if self.fenced.is_none() => {
                let noticed = self.membership.clock.now();
                // A worker that was paused notices late that its ownership has ended.
                let since = before.deadline().map_or(noticed, |deadline| deadline.min(noticed));
                self.fenced = Some(FencedTime { since, word_at: noticed.plus(STILL_FENCED_EVERY) });
                tracing::warn!(%policy, ?instance, "fenced: this worker lost its lease or its view of the group and owns nothing; it joins again");
            }
            ServiceState::Active => {
                if let Some(FencedTime { since, .. }) = self.fenced.take() {
                    let fenced_for = self.membership.clock.now().since(since);
                    tracing::warn!(%policy, ?instance, ?fenced_for, "back: this worker is active again after it was fenced");
                }
            }
            ServiceState::Draining | ServiceState::Left => self.fenced = None,
            _ => {}
        }
    }

    /// A failure is logged once, and an operator who looks an hour later must still see that this worker does nothing.
    pub(super) fn warn_if_still_fenced(&mut self) {
        let now = self.membership.clock.now();
        let Some(fenced) = self.fenced.as_mut().filter(|fenced| now >= fenced.word_at) else { return };
        fenced.word_at = now.plus(STILL_FENCED_EVERY);
        let (policy, instance) = (&self.membership.policy.name, self.membership.instance_id.as_str());
        let failure = self.membership.failure.load();
        let failure = failure.as_ref().map_or("none since it joined", |failure| failure.as_str());
        tracing::warn!(
            %policy, ?instance, state = %self.machine.ownership().state(), fenced_for = ?now.since(fenced.since), last_failure = failure,
            "still fenced: this worker owns nothing and goes on trying to join"
        );
    }

    /// Logs a change of the placement in force; a joining worker expects the policy's own.
    fn log_switch(&self, now: Option<Fingerprint>) {
        let policy = &self.membership.policy;
        let before = self.membership.ownership().policy_fingerprint().unwrap_or_else(|| policy.fingerprint());
        let Some((now, placement)) = now.filter(|now| *now != before).and_then(|now| Some((now, policy.serving(Some(now))?))) else {
            return;
        };
        tracing::info!(
            policy = %policy.name, from = %before, to = %now, slots = placement.ring_slots(), virtual_nodes = placement.virtual_nodes,
            load_margin = %placement.load_margin, "the group serves placement {} now", placement.kind.as_str()
        );
    }
}
