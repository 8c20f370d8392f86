//! The slots of a publisher without a group.

use std::sync::Arc;

use shardwise::discovery::Clock;
use shardwise::{GroupName, InstanceId, Moment, Ownership, ServiceState, Sharding, SlotSet, Timing};
use tokio::sync::watch;

const SLOTS: u32 = 1_024;

/// A share of the slots: none at first, and a constant one after the start.
#[derive(Clone)]
pub(crate) struct Share {
    name: InstanceId,
    group: GroupName,
    slots: SlotSet,
    ownership: watch::Sender<Arc<Ownership>>,
}

impl Share {
    pub(crate) fn new(number: u32, of: u32) -> Self {
        let slots = SlotSet::from_slots(SLOTS, (0..SLOTS).filter(|slot| slot % of == number));
        let ownership = watch::Sender::new(Self::owning(SlotSet::empty(SLOTS)));
        Self { name: InstanceId::new(format!("bench-{number}")).unwrap(), group: GroupName::new("bench").unwrap(), slots, ownership }
    }

    pub(crate) fn begin(&self) {
        self.ownership.send_replace(Self::owning(self.slots.clone()));
    }

    fn owning(slots: SlotSet) -> Arc<Ownership> {
        Arc::new(Ownership::fixed(ServiceState::Unsharded, slots, Arc::default(), Moment::ZERO))
    }
}

impl Sharding for Share {
    fn ownership(&self) -> Arc<Ownership> {
        self.ownership.borrow().clone()
    }

    fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.ownership.subscribe()
    }

    fn now(&self) -> Moment {
        Clock::system().now()
    }

    fn instance_id(&self) -> &InstanceId {
        &self.name
    }

    fn group_name(&self) -> &GroupName {
        &self.group
    }

    fn timing(&self) -> Timing {
        Timing::default()
    }
}
