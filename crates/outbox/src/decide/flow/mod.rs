//! The path of events through the publisher: read, waiting, being sent, answered, recorded.
//!
//! An aggregate is in use while any of its events is on that path, and it is not read again before. Within an aggregate an event is sent
//! only after its predecessors were accepted, or in one batch with them. A slot is in use while one of its aggregates is.
//!
//! This file: what is in memory, and what waits. `sending`: batches being sent and their answers. `outcomes`: what must be recorded.
//! `lanes`: the amounts for each destination. `room`: what slow destinations keep of the memory.

mod lanes;
mod outcomes;
mod room;
mod sending;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use shardwise::Moment;

use self::lanes::Lanes;
use self::outcomes::Unrecorded;
pub(crate) use self::room::ReadAhead;
use self::sending::InFlightSend;
pub(crate) use self::sending::{RefusedHead, SendBatch};
use super::destination::HeadState;
use super::destinations::DestinationKey;
use super::io::SendId;
use crate::store::{EventRun, HeadUpdate, Hold, Outcome};
use crate::{AggregateId, Delivery};

/// Events of one aggregate that wait for their turn.
#[derive(Debug)]
struct WaitingEvents {
    aggregate: AggregateId,
    hold: Hold,
    head: HeadState,
    /// The aggregate is delivered up to this sequence once the last of these events is.
    through: u64,
    /// The destination of the first event.
    to: DestinationKey,
    events: VecDeque<Delivery>,
    read_at: Moment,
    /// Since when no event of the aggregate is being sent, so that the first of these waits for a send.
    ready_at: Moment,
}

impl WaitingEvents {
    fn outcome(&self, through: Option<u64>, then: HeadUpdate) -> Outcome {
        Outcome { aggregate: self.aggregate, hold: self.hold, through, then }
    }
}

/// All events that this publisher has in memory.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    lanes: Lanes,
    ready: VecDeque<WaitingEvents>,
    /// Events that wait behind events of the same aggregate that are being sent.
    rests: BTreeMap<AggregateId, WaitingEvents>,
    sends: BTreeMap<SendId, InFlightSend>,
    next_send: SendId,
    outcomes: BTreeMap<AggregateId, Unrecorded>,
    recording: Vec<Unrecorded>,
    uses: BTreeMap<AggregateId, usize>,
    pub(super) slot_uses: BTreeMap<u32, usize>,
    pub(super) waiting_events: usize,
    pub(super) waiting_bytes: usize,
}

impl Flow {
    pub(crate) fn aggregates_in_use(&self) -> Vec<AggregateId> {
        self.uses.keys().copied().collect()
    }

    fn enter(&mut self, aggregate: AggregateId, slot: u32) {
        *self.uses.entry(aggregate).or_default() += 1;
        *self.slot_uses.entry(slot).or_default() += 1;
    }

    fn leave(&mut self, aggregate: AggregateId, slot: u32) {
        decrease(&mut self.uses, aggregate);
        decrease(&mut self.slot_uses, slot);
    }

    /// Adds events that were read; `to` is the destination of the first.
    pub(crate) fn add(&mut self, run: EventRun, to: DestinationKey, now: Moment) {
        if self.uses.contains_key(&run.aggregate) {
            return;
        }
        let waiting = WaitingEvents {
            aggregate: run.aggregate,
            hold: run.hold,
            head: HeadState::read(run.trouble, now),
            through: run.through,
            to,
            events: run.events.into(),
            read_at: now,
            ready_at: now,
        };
        if waiting.events.is_empty() {
            // All of it was deleted by hand: there is nothing to send.
            self.settle(waiting.outcome(Some(waiting.through), HeadUpdate::Next), 0);
        } else {
            self.count_in(&waiting);
            self.ready.push_back(waiting);
        }
    }

    fn count_in(&mut self, waiting: &WaitingEvents) {
        self.enter(waiting.aggregate, waiting.hold.slot);
        self.lanes.change(&waiting.to, |lane| lane.waiting += 1);
        self.waiting_events += waiting.events.len();
        self.waiting_bytes += waiting.events.iter().map(Delivery::bytes).sum::<usize>();
    }

    fn count_out(&mut self, waiting: &WaitingEvents) {
        self.leave(waiting.aggregate, waiting.hold.slot);
        self.lanes.change(&waiting.to, |lane| lane.waiting -= 1);
        self.waiting_events -= waiting.events.len();
        self.waiting_bytes -= waiting.events.iter().map(Delivery::bytes).sum::<usize>();
    }

    fn wait_first(&mut self, waiting: WaitingEvents) {
        if !waiting.events.is_empty() {
            self.count_in(&waiting);
            self.ready.push_front(waiting);
        }
    }

    /// Returns waiting events to the store that must not stay, by their destination, the sends that it has, and their head; `then` gives
    /// the update for that.
    pub(crate) fn put_off(
        &mut self,
        must_go: impl Fn(&DestinationKey, usize, HeadState) -> bool,
        mut then: impl FnMut(&DestinationKey, HeadState, u64) -> HeadUpdate,
    ) -> usize {
        let goes = |waiting: &WaitingEvents| must_go(&waiting.to, self.lanes.sends(&waiting.to), waiting.head);
        if !self.ready.iter().any(goes) {
            return 0;
        }
        let (gone, keep): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.ready).into_iter().partition(goes);
        self.ready = keep;
        for waiting in &gone {
            self.count_out(waiting);
            if let Some(head) = waiting.events.front() {
                let then = then(&waiting.to, waiting.head, head.sequence);
                self.settle(waiting.outcome(None, then), 0);
            }
        }
        gone.len()
    }

    pub(crate) fn sends_to(&self, to: &DestinationKey) -> usize {
        self.lanes.sends(to)
    }

    pub(crate) fn drop_waiting(&mut self, may_send: impl Fn(Hold) -> bool) {
        let (keep, gone): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.ready).into_iter().partition(|waiting| may_send(waiting.hold));
        self.ready = keep;
        let rests: Vec<_> = self.rests.extract_if(.., |_, waiting| !may_send(waiting.hold)).map(|(_, waiting)| waiting).collect();
        gone.iter().chain(&rests).for_each(|waiting| self.count_out(waiting));
    }
}

fn decrease<K: Ord>(uses: &mut BTreeMap<K, usize>, key: K) {
    if let Entry::Occupied(mut entry) = uses.entry(key) {
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}
