//! Batches on their way: put together from what waits, and taken apart by their answers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::destination::Head;
use super::super::io::SendId;
use super::{Flow, Waiting};
use crate::sink::{Accepted, Refusal, SinkLimits};
use crate::store::{Hold, Then};
use crate::{AggregateId, Delivery};

/// Events of one aggregate within a send.
#[derive(Debug)]
struct Part {
    aggregate: AggregateId,
    hold: Hold,
    head: Head,
    events: usize,
    through: u64,
}

impl Part {
    /// How many of its events were accepted, if it stands at `start` of its batch.
    fn delivered(&self, start: usize, accepted: &Accepted) -> usize {
        match accepted.apart.get(&self.aggregate) {
            // With a refusal one is left, whatever the sink counts.
            Some((events, refusal)) => (*events).min(self.events.saturating_sub(usize::from(refusal.is_some()))),
            None => accepted.events.saturating_sub(start).min(self.events),
        }
    }
}

#[derive(Debug)]
pub(super) struct Sending {
    batch: Arc<[Delivery]>,
    parts: Vec<Part>,
}

/// A refused head, for the decision what becomes of it.
#[derive(Debug)]
pub(crate) struct RefusedHead<'a> {
    pub(crate) aggregate: AggregateId,
    pub(crate) sequence: u64,
    pub(crate) head: Head,
    pub(crate) refusal: &'a Refusal,
}

impl Flow {
    pub(crate) fn sends_under_way(&self) -> usize {
        self.sends.len()
    }

    pub(crate) fn events_under_way(&self) -> usize {
        self.sends.values().map(|sending| sending.batch.len()).sum()
    }

    /// Puts the next batch together and sends it on its way; `None` if nothing is ready. All that waits may be sent: the caller has
    /// dropped the rest just now.
    pub(crate) fn send_next(&mut self, limits: &SinkLimits, events_max: usize) -> Option<(SendId, Arc<[Delivery]>)> {
        let events_max = events_max.min(limits.batch_events).max(1);
        let (mut batch, mut parts, mut bytes) = (Vec::new(), Vec::new(), 0);
        while batch.len() < events_max && (limits.mixed || parts.is_empty()) {
            let Some(mut waiting) = self.ready.pop_front() else { break };
            self.count_out(&waiting);
            let before = batch.len();
            while batch.len() < events_max
                && let Some(event) = waiting.events.pop_front_if(|event| batch.is_empty() || bytes + event.bytes() <= limits.batch_bytes)
            {
                bytes += event.bytes();
                batch.push(event);
            }
            if batch.len() == before {
                self.wait_first(waiting);
                break;
            }
            parts.push(self.part(waiting, &batch[before..]));
        }
        if batch.is_empty() {
            return None;
        }
        let (id, batch): (_, Arc<[Delivery]>) = (self.next_send, batch.into());
        self.next_send += 1;
        self.sends.insert(id, Sending { batch: Arc::clone(&batch), parts });
        Some((id, batch))
    }

    /// The part of a batch that `events` make; what is left of them waits behind it.
    fn part(&mut self, rest: Waiting, events: &[Delivery]) -> Part {
        let through = match events.last() {
            Some(last) if !rest.events.is_empty() => last.sequence,
            _ => rest.through,
        };
        let part = Part { aggregate: rest.aggregate, hold: rest.hold, head: rest.head, events: events.len(), through };
        self.enter(part.aggregate, part.hold.slot);
        if !rest.events.is_empty() {
            self.count_in(&rest);
            self.rests.insert(rest.aggregate, Waiting { head: Head::default(), ..rest });
        }
        part
    }

    /// Drops the sends of which `lost` holds everything, and returns them; their end is not known.
    pub(crate) fn cancel(&mut self, lost: impl Fn(Hold) -> bool) -> Vec<(SendId, usize)> {
        let cancelled = self.sends.extract_if(.., |_, sending| sending.parts.iter().all(|part| lost(part.hold)));
        let cancelled: Vec<_> = cancelled.collect();
        for part in cancelled.iter().flat_map(|(_, sending)| &sending.parts) {
            if let Some(rest) = self.rests.remove(&part.aggregate) {
                self.count_out(&rest);
            }
            self.leave(part.aggregate, part.hold.slot);
        }
        cancelled.iter().map(|(id, sending)| (*id, sending.batch.len())).collect()
    }

    /// How many events of a send were accepted.
    pub(crate) fn accepted_of(&self, id: SendId, accepted: &Accepted) -> usize {
        let parts = self.sends.get(&id).map_or(&[][..], |sending| &sending.parts);
        let mut start = 0;
        let delivered = parts.iter().map(|part| {
            start += part.events;
            part.delivered(start - part.events, accepted)
        });
        delivered.sum()
    }

    /// Takes the answer to a send apart. What was not tried waits again if it `may_send`. `decide` says what becomes of a refused head;
    /// it is called at most once for each aggregate.
    pub(crate) fn sent(
        &mut self,
        id: SendId,
        accepted: &Accepted,
        may_send: impl Fn(Hold) -> bool,
        mut decide: impl FnMut(RefusedHead<'_>) -> Then,
    ) {
        let Some(Sending { batch, parts }) = self.sends.remove(&id) else { return };
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
            if delivered == part.events {
                self.settle(part.aggregate, part.hold, Some(part.through), Then::Next, delivered);
                back.extend(rest);
            } else if let Some(refusal) = refusal {
                self.refused(&part, events, delivered, refusal, &mut decide);
            } else {
                if let Some(last) = delivered.checked_sub(1) {
                    self.settle(part.aggregate, part.hold, Some(events[last].sequence), Then::Next, delivered);
                }
                back.push(unsent(&part, &events[delivered..], rest));
            }
            self.leave(part.aggregate, part.hold.slot);
        }
        back.into_iter().rev().filter(|waiting| may_send(waiting.hold)).for_each(|waiting| self.wait_first(waiting));
    }

    /// A part whose event number `delivered` was refused. What waits behind it is read again when its turn comes.
    fn refused(
        &mut self,
        part: &Part,
        events: &[Delivery],
        delivered: usize,
        refusal: &Refusal,
        decide: &mut impl FnMut(RefusedHead<'_>) -> Then,
    ) {
        let head = if delivered == 0 { part.head } else { Head::default() };
        let then = decide(RefusedHead { aggregate: part.aggregate, sequence: events[delivered].sequence, head, refusal });
        let through = delivered.checked_sub(1).map(|last| events[last].sequence);
        self.settle(part.aggregate, part.hold, through, then, delivered);
    }
}

/// What of a part was not tried, with what waits behind it.
fn unsent(part: &Part, events: &[Delivery], rest: Option<Waiting>) -> Waiting {
    let through = rest.as_ref().map_or(part.through, |rest| rest.through);
    let left = events.len();
    let mut events: VecDeque<_> = events.iter().cloned().collect();
    events.extend(rest.into_iter().flat_map(|rest| rest.events));
    // Behind what was delivered there is another head, which has not been tried.
    let head = if part.events == left { part.head } else { Head::default() };
    Waiting { aggregate: part.aggregate, hold: part.hold, head, through, events }
}
