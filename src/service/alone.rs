//! A service without a backend (`enabled = false`): when it leaves, only its own work must know.

use std::sync::Arc;

use shardwise_core::{Cause, Ownership, Rebalance, ServiceState};

use super::ShardingService;

impl ShardingService {
    /// Takes everything from its work and waits until that has ended, up to `drain_timeout`. A frozen service stays unchanged.
    pub(super) async fn end_alone(&self) {
        let membership = self.membership();
        let before = membership.ownership();
        if before.state() == ServiceState::Unsharded {
            membership.in_flight.close();
            self.publish_alone(&before, before.left(membership.clock.now()), Cause::Draining);
        }
        if membership.ownership().state() == ServiceState::Left && self.handle.engine.is_none() {
            let ended = tokio::time::timeout(membership.policy.drain_timeout, membership.in_flight.wait()).await;
            if ended.is_err() {
                tracing::warn!(policy = %membership.policy.name, running = membership.in_flight.len(), "work did not end within drain_timeout");
            }
        }
    }

    /// Owns everything again, if it has left.
    pub(super) fn begin_alone(&self) {
        let membership = self.membership();
        let before = membership.ownership();
        if before.state() == ServiceState::Left {
            membership.in_flight.reopen();
            let again = Ownership::unsharded(&membership.policy.placement, Arc::clone(before.view()), membership.clock.now());
            self.publish_alone(&before, again, Cause::Joined);
        }
    }

    fn publish_alone(&self, before: &Ownership, after: Ownership, cause: Cause) {
        let rebalance = Rebalance::between(before, &after, cause, self.now());
        self.membership().publish(Arc::new(after));
        if let Some(rebalance) = rebalance {
            self.membership().rebalanced(&rebalance);
        }
    }
}
