//! Batches being sent: building them from waiting events, and applying their answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use shardwise::Moment;

use super::super::destination::{HeadState, SendGate};
use super::super::destinations::{DestinationKey, DestinationResolver};
use super::super::io::SendId;
use super::{Flow, WaitingEvents};
use crate::sink::{Acceptance, Refusal, SinkLimits};
use crate::store::{HeadUpdate, Hold, Outcome};
use crate::{AggregateId, Delivery};

/// Events of one aggregate within a send, all to one destination.
#[derive(Debug)]
struct SendPart {
    aggregate: AggregateId,
    hold: Hold,
    head: HeadState,
    events: usize,
    through: u64,
    to: DestinationKey,
    read_at: Moment,
}

impl SendPart {
    /// The number of its events that were accepted, if the part begins at `start` in its batch.
    fn delivered(&self, start: usize, accepted: &Acceptance) -> usize {
        match accepted.apart.get(&self.aggregate) {
            // If there is a refusal, at least one event was not accepted, whatever number the sink reports.
            Some((events, refusal)) => (*events).min(self.events.saturating_sub(usize::from(refusal.is_some()))),
            None => accepted.events.saturating_sub(start).min(self.events),
        }
    }
}

#[derive(Debug)]
pub(super) struct InFlightSend {
    batch: Arc<[Delivery]>,
    parts: Vec<SendPart>,
    to: BTreeSet<DestinationKey>,
}

#[derive(Debug)]
pub(crate) struct SendBatch {
    pub(crate) id: SendId,
    pub(crate) batch: Arc<[Delivery]>,
    pub(crate) probes: Option<DestinationKey>,
}

#[derive(Debug)]
pub(crate) struct RefusedHead<'a> {
    pub(crate) event: &'a Delivery,
    pub(crate) head: HeadState,
    pub(crate) to: &'a DestinationKey,
    pub(crate) refusal: &'a Refusal,
}

impl Flow {
    pub(crate) fn sends_under_way(&self) -> usize {
        self.sends.len()
    }

    pub(crate) fn events_under_way(&self) -> usize {
        self.sends.values().map(|sending| sending.batch.len()).sum()
    }

    /// Builds the next batch and marks it as being sent; `None` if no waiting event has a destination that is open or due for a probe. The
    /// caller has already dropped the waiting events that may not be sent.
    pub(crate) fn send_next(
        &mut self,
        limits: &SinkLimits,
        events_max: usize,
        address: &DestinationResolver,
        gate: impl Fn(&DestinationKey, usize) -> SendGate,
    ) -> Option<SendBatch> {
        let may_go = |flow: &Self, to: &DestinationKey| match gate(to, flow.lanes.sends(to)) {
            SendGate::Open => flow.lanes.has_room(to, limits),
            SendGate::Probe { .. } => true,
            SendGate::Shut { .. } => false,
        };
        let mut at = self.ready.iter().position(|waiting| may_go(self, &waiting.to))?;
        let first = self.ready.get(at).map(|first| first.to.clone())?;
        let (probes, events_max, of_aggregate) = match gate(&first, self.lanes.sends(&first)) {
            SendGate::Probe { aggregates } => (Some(first), events_max.min(aggregates), 1),
            _ => (None, events_max, events_max),
        };
        let events_max = events_max.min(limits.batch_events).max(1);
        let (mut batch, mut parts, mut bytes) = (Vec::new(), Vec::new(), 0);
        while batch.len() < events_max && (limits.mixed || parts.is_empty()) {
            let next = probes.as_ref().map_or_else(|| self.next_open(at, &gate), |to| self.least_failed(to));
            let Some((next, mut waiting)) = next.and_then(|next| Some((next, self.ready.remove(next)?))) else { break };
            at = next;
            self.count_out(&waiting);
            let before = batch.len();
            // The destination resolved on arrival is used here: a resolver that changes its answer must not block the batch.
            while batch.len() < events_max
                && batch.len() - before < of_aggregate
                && let Some(event) = waiting.events.pop_front_if(|event| {
                    (batch.is_empty() || bytes + event.bytes() <= limits.batch_bytes)
                        && (batch.len() == before || address(event) == waiting.to)
                })
            {
                bytes += event.bytes();
                batch.push(event);
            }
            if batch.len() == before {
                self.wait_first(waiting);
                break;
            }
            parts.push(self.part(waiting, &batch[before..], address));
        }
        if batch.is_empty() {
            return None;
        }
        let (id, batch): (_, Arc<[Delivery]>) = (self.next_send, batch.into());
        self.next_send += 1;
        let to: BTreeSet<DestinationKey> = parts.iter().map(|part: &SendPart| part.to.clone()).collect();
        for to in &to {
            self.lanes.change(to, |lane| lane.sends += 1);
        }
        self.sends.insert(id, InFlightSend { batch: Arc::clone(&batch), parts, to });
        Some(SendBatch { id, batch, probes })
    }

    /// The next aggregate, from there on, whose destination is open.
    fn next_open(&self, from: usize, gate: impl Fn(&DestinationKey, usize) -> SendGate) -> Option<usize> {
        let is_open = |waiting: &WaitingEvents| gate(&waiting.to, self.lanes.sends(&waiting.to)) == SendGate::Open;
        self.ready.iter().skip(from).position(is_open).map(|further| from + further)
    }

    /// The next aggregate to test a destination with: the first of those whose head has failed least. A head that has failed before may be
    /// the cause itself, and would give no more information.
    fn least_failed(&self, to: &DestinationKey) -> Option<usize> {
        let of_destination = self.ready.iter().enumerate().filter(|(_, waiting)| waiting.to == *to);
        of_destination.min_by_key(|(_, waiting)| waiting.head.failures).map(|(at, _)| at)
    }

    /// The part of a batch made of `events`; the remaining events wait behind it.
    fn part(&mut self, rest: WaitingEvents, events: &[Delivery], address: &DestinationResolver) -> SendPart {
        let through = match events.last() {
            Some(last) if !rest.events.is_empty() => last.sequence,
            _ => rest.through,
        };
        let (next, events) = (rest.events.front().and_then(address), events.len());
        let (to, read_at) = (rest.to.clone(), rest.read_at);
        let part = SendPart { aggregate: rest.aggregate, hold: rest.hold, head: rest.head, events, through, to, read_at };
        self.enter(part.aggregate, part.hold.slot);
        if !rest.events.is_empty() {
            let rest = WaitingEvents { head: HeadState::default(), to: next, ..rest };
            self.count_in(&rest);
            self.rests.insert(rest.aggregate, rest);
        }
        part
    }

    /// Drops and returns the sends whose parts are all in `lost`; their outcome is unknown.
    pub(crate) fn cancel(&mut self, lost: impl Fn(Hold) -> bool) -> Vec<(SendId, usize)> {
        let cancelled = self.sends.extract_if(.., |_, sending| sending.parts.iter().all(|part| lost(part.hold)));
        let cancelled: Vec<_> = cancelled.collect();
        for to in cancelled.iter().flat_map(|(_, sending)| &sending.to) {
            self.lanes.change(to, |lane| lane.sends -= 1);
        }
        for part in cancelled.iter().flat_map(|(_, sending)| &sending.parts) {
            if let Some(rest) = self.rests.remove(&part.aggregate) {
                self.count_out(&rest);
            }
            self.leave(part.aggregate, part.hold.slot);
        }
        cancelled.iter().map(|(id, sending)| (*id, sending.batch.len())).collect()
    }

    /// The number of accepted events of a send, for each destination that accepted any.
    pub(crate) fn accepted_of(&self, id: SendId, accepted: &Acceptance) -> BTreeMap<DestinationKey, usize> {
        let parts = self.sends.get(&id).map_or(&[][..], |sending| &sending.parts);
        let (mut start, mut taken) = (0, BTreeMap::new());
        for part in parts {
            let delivered = part.delivered(start, accepted);
            start += part.events;
            if delivered > 0 {
                *taken.entry(part.to.clone()).or_default() += delivered;
            }
        }
        taken
    }

    /// Applies the answer to a send. Events that were not tried wait again if they `may_send`. `decide` returns the update for a refused
    /// head; it is called at most once for each aggregate.
    pub(crate) fn sent(
        &mut self,
        id: SendId,
        accepted: &Acceptance,
        now: Moment,
        may_send: impl Fn(Hold) -> bool,
        mut decide: impl FnMut(RefusedHead<'_>) -> HeadUpdate,
    ) {
        let Some(InFlightSend { batch, parts, to }) = self.sends.remove(&id) else { return };
        for to in &to {
            self.lanes.change(to, |lane| lane.sends -= 1);
        }
        let (mut start, mut refusal, mut back) = (0, accepted.refusal.as_ref(), Vec::new());
        for part in parts {
            let (events, delivered) = (&batch[start..start + part.events], part.delivered(start, accepted));
            let refusal = match accepted.apart.get(&part.aggregate) {
                Some((_, refusal)) => refusal.as_ref(),
                None if delivered < part.events => refusal.take(),
                None => None,
            };
            start += part.events;
            let rest = self.rests.remove(&part.aggregate);
            if let Some(rest) = &rest {
                self.count_out(rest);
            }
            let through = delivered.checked_sub(1).map(|last| events[last].sequence);
            let outcome = |through, then| Outcome { aggregate: part.aggregate, hold: part.hold, through, then };
            if delivered == part.events {
                self.settle(outcome(Some(part.through), HeadUpdate::Next), delivered);
                back.extend(rest);
            } else if let Some(refusal) = refusal {
                // The events behind the refused one are dropped and read again later.
                let head = if delivered == 0 { part.head } else { HeadState::default() };
                let then = decide(RefusedHead { event: &events[delivered], head, to: &part.to, refusal });
                self.settle(outcome(through, then), delivered);
            } else {
                if through.is_some() {
                    self.settle(outcome(through, HeadUpdate::Next), delivered);
                }
                back.push(unsent(&part, &events[delivered..], rest));
            }
            self.leave(part.aggregate, part.hold.slot);
        }
        for waiting in back.into_iter().rev().filter(|waiting| may_send(waiting.hold)) {
            self.wait_first(WaitingEvents { ready_at: now, ..waiting });
        }
    }
}

/// The events of a part that were not tried, followed by the events that wait behind the part.
fn unsent(part: &SendPart, events: &[Delivery], rest: Option<WaitingEvents>) -> WaitingEvents {
    let through = rest.as_ref().map_or(part.through, |rest| rest.through);
    let left = events.len();
    let mut events: VecDeque<_> = events.iter().cloned().collect();
    events.extend(rest.into_iter().flat_map(|rest| rest.events));
    // After a delivery the aggregate has another head, which has not been tried.
    let head = if part.events == left { part.head } else { HeadState::default() };
    let (to, read_at) = (part.to.clone(), part.read_at);
    WaitingEvents { aggregate: part.aggregate, hold: part.hold, head, through, to, events, read_at, ready_at: read_at }
}
