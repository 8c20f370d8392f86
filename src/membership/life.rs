//! The incarnation under which this worker is registered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shardwise_core::{GroupName, Holder, Incarnation, InstanceId, Member};

use super::proof::{Channel, Recipient};

/// This worker's name and incarnation, which changes each time it joins again after it has left. Clones share it.
#[derive(Clone)]
pub(crate) struct Life {
    instance_id: InstanceId,
    incarnation: Arc<AtomicU64>,
}

impl Life {
    pub(crate) fn of(member: &Member) -> Self {
        Self { instance_id: member.instance_id.clone(), incarnation: Arc::new(AtomicU64::new(member.incarnation.get())) }
    }

    pub(crate) fn begin(&self, incarnation: Incarnation) {
        self.incarnation.store(incarnation.get(), Ordering::SeqCst);
    }

    pub(crate) fn holder(&self) -> Holder {
        Holder { instance_id: self.instance_id.clone(), incarnation: self.incarnation() }
    }

    /// This incarnation as the recipient of a call on that channel, for the proofs of both sides.
    pub(crate) fn recipient<'a>(&'a self, channel: Channel, group: &'a GroupName) -> Recipient<'a> {
        Recipient { channel, group, instance_id: &self.instance_id, incarnation: self.incarnation() }
    }

    pub(crate) const fn instance_id(&self) -> &InstanceId {
        &self.instance_id
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation::new(self.incarnation.load(Ordering::SeqCst))
    }
}
