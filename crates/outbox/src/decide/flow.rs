//! The way of events through the publisher: read, waiting, on their way, answered, recorded.
//!
//! An aggregate is in use as long as anything of it is anywhere on that way, and is not read again before. Within it, events are sent only
//! after those before them were accepted, or in one batch with them. A slot is in use while an aggregate of it is.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shardwise::Moment;

use super::destination::Head;
use super::io::SendId;
use crate::sink::{Accepted, Refusal, SinkLimits};
use crate::store::{Hold, Outcome, Run, Then};
use crate::{AggregateId, Delivery};

/// Events of one aggregate that wait to be sent.
#[derive(Debug)]
struct Waiting {
    aggregate: AggregateId,
    hold: Hold,
    head: Head,
    /// Delivered up to here once the last event is.
    through: u64,
    events: VecDeque<Delivery>,
}

/// Events of one aggregate within a send.
#[derive(Debug)]
struct Part {
    aggregate: AggregateId,
    hold: Hold,
    head: Head,
    events: usize,
    through: u64,
}

#[derive(Debug)]
struct Sending {
    batch: Arc<[Delivery]>,
    parts: Vec<Part>,
}

/// An outcome that is not in the store yet, and how many delivered events it stands for.
#[derive(Debug)]
struct Unrecorded {
    outcome: Outcome,
    delivered: u64,
}

/// A refused head, for the decision what becomes of it.
#[derive(Debug)]
pub(crate) struct RefusedHead<'a> {
    pub(crate) aggregate: AggregateId,
    pub(crate) sequence: u64,
    pub(crate) head: Head,
    pub(crate) refusal: &'a Refusal,
}

/// All events this publisher has in its hands.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    ready: VecDeque<Waiting>,
    /// What waits behind a part that is on its way.
    rests: BTreeMap<AggregateId, Waiting>,
    sends: BTreeMap<SendId, Sending>,
    next_send: SendId,
    outcomes: BTreeMap<AggregateId, Unrecorded>,
    recording: Vec<Unrecorded>,
    uses: BTreeMap<AggregateId, usize>,
    slot_uses: BTreeMap<u32, usize>,
    waiting_events: usize,
    waiting_bytes: usize,
}

impl Flow {
    pub(crate) fn waiting_events(&self) -> usize {
        self.waiting_events
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    pub(crate) fn sends_under_way(&self) -> usize {
        self.sends.len()
    }

    pub(crate) fn events_under_way(&self) -> usize {
        self.sends.values().map(|sending| sending.batch.len()).sum()
    }

    /// Aggregates whose outcome is not recorded.
    pub(crate) fn unrecorded(&self) -> usize {
        self.outcomes.len() + self.recording.len()
    }

    pub(crate) fn is_recording(&self) -> bool {
        !self.recording.is_empty()
    }

    pub(crate) fn slots_in_use(&self) -> &BTreeMap<u32, usize> {
        &self.slot_uses
    }

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

    /// Takes in what was read of one aggregate.
    pub(crate) fn add(&mut self, run: Run, now: Moment) {
        if self.uses.contains_key(&run.aggregate) {
            return;
        }
        let waiting = Waiting {
            aggregate: run.aggregate,
            hold: run.hold,
            head: Head::read(run.trouble, now),
            through: run.through,
            events: run.events.into(),
        };
        if waiting.events.is_empty() {
            // Deleted by hand, all of it: there is nothing to send, and nothing to wait for.
            self.settle(waiting.aggregate, waiting.hold, Some(waiting.through), Then::Next, 0);
        } else {
            self.wait_last(waiting);
        }
    }

    fn count_in(&mut self, waiting: &Waiting) {
        self.enter(waiting.aggregate, waiting.hold.slot);
        self.waiting_events += waiting.events.len();
        self.waiting_bytes += waiting.events.iter().map(Delivery::bytes).sum::<usize>();
    }

    fn count_out(&mut self, waiting: &Waiting) {
        self.leave(waiting.aggregate, waiting.hold.slot);
        self.waiting_events -= waiting.events.len();
        self.waiting_bytes -= waiting.events.iter().map(Delivery::bytes).sum::<usize>();
    }

    fn wait_last(&mut self, waiting: Waiting) {
        self.count_in(&waiting);
        self.ready.push_back(waiting);
    }

    fn wait_first(&mut self, waiting: Waiting) {
        if !waiting.events.is_empty() {
            self.count_in(&waiting);
            self.ready.push_front(waiting);
        }
    }

    /// Drops what waits and may not be sent.
    pub(crate) fn drop_waiting(&mut self, may_send: impl Fn(Hold) -> bool) {
        let (keep, gone): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.ready).into_iter().partition(|waiting| may_send(waiting.hold));
        self.ready = keep;
        let rests: Vec<_> = self.rests.extract_if(.., |_, waiting| !may_send(waiting.hold)).map(|(_, waiting)| waiting).collect();
        gone.iter().chain(&rests).for_each(|waiting| self.count_out(waiting));
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

    /// Takes the answer to a send apart. What was not tried waits again if it `may_send`. `decide` says what becomes of a refused head;
    /// it is called at most once, last.
    pub(crate) fn sent(
        &mut self,
        id: SendId,
        accepted: &Accepted,
        may_send: impl Fn(Hold) -> bool,
        mut decide: impl FnMut(RefusedHead<'_>) -> Then,
    ) {
        let Some(Sending { batch, parts }) = self.sends.remove(&id) else { return };
        let taken = accepted.events.min(batch.len());
        let (mut start, mut refusal, mut back) = (0, accepted.refusal.as_ref(), Vec::new());
        for part in parts {
            let (events, delivered) = (&batch[start..start + part.events], taken.saturating_sub(start).min(part.events));
            start += part.events;
            let rest = self.rests.remove(&part.aggregate);
            if let Some(rest) = &rest {
                self.count_out(rest);
            }
            if delivered == part.events {
                self.settle(part.aggregate, part.hold, Some(part.through), Then::Next, delivered);
                back.extend(rest);
            } else if let Some(refusal) = refusal.take() {
                self.refused(&part, events, delivered, refusal, &mut decide);
            } else {
                back.push(unsent(&part, events, rest));
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

    /// Notes an outcome; one that is not recorded yet grows. Only a `Next` is ever followed by another one before it is recorded, since
    /// nothing of an aggregate is kept behind a refused event.
    fn settle(&mut self, aggregate: AggregateId, hold: Hold, through: Option<u64>, then: Then, delivered: usize) {
        let delivered = delivered as u64;
        if let Some(earlier) = self.outcomes.get_mut(&aggregate) {
            earlier.outcome = Outcome { aggregate, hold, through: through.or(earlier.outcome.through), then };
            earlier.delivered += delivered;
            return;
        }
        self.enter(aggregate, hold.slot);
        self.outcomes.insert(aggregate, Unrecorded { outcome: Outcome { aggregate, hold, through, then }, delivered });
    }

    /// Begins to record what has come together; empty while a recording is under way or there is nothing.
    pub(crate) fn record_next(&mut self) -> Vec<Outcome> {
        if self.recording.is_empty() {
            self.recording = std::mem::take(&mut self.outcomes).into_values().collect();
            return self.recording.iter().map(|unrecorded| unrecorded.outcome.clone()).collect();
        }
        Vec::new()
    }

    /// What was being recorded is in the store, but for fenced holds. Returns the outcomes that are, each with its delivered events.
    pub(crate) fn recorded(&mut self, fenced: &[Hold]) -> Vec<(Outcome, u64)> {
        let recorded = std::mem::take(&mut self.recording);
        for Unrecorded { outcome, .. } in &recorded {
            self.leave(outcome.aggregate, outcome.hold.slot);
        }
        let written = recorded.into_iter().filter(|unrecorded| !fenced.contains(&unrecorded.outcome.hold));
        written.map(|unrecorded| (unrecorded.outcome, unrecorded.delivered)).collect()
    }

    /// The recording failed: the same again later, together with what has come since.
    pub(crate) fn record_again(&mut self) {
        for Unrecorded { outcome, delivered } in std::mem::take(&mut self.recording) {
            self.leave(outcome.aggregate, outcome.hold.slot);
            let events = usize::try_from(delivered).unwrap_or(usize::MAX);
            match self.outcomes.get_mut(&outcome.aggregate) {
                // What came since is about later events.
                Some(later) => {
                    later.delivered += delivered;
                    later.outcome.through = later.outcome.through.or(outcome.through);
                }
                None => self.settle(outcome.aggregate, outcome.hold, outcome.through, outcome.then, events),
            }
        }
    }
}

/// What of a part was not tried, with what waits behind it.
fn unsent(part: &Part, events: &[Delivery], rest: Option<Waiting>) -> Waiting {
    let through = rest.as_ref().map_or(part.through, |rest| rest.through);
    let mut events: VecDeque<_> = events.iter().cloned().collect();
    events.extend(rest.into_iter().flat_map(|rest| rest.events));
    Waiting { aggregate: part.aggregate, hold: part.hold, head: part.head, through, events }
}

fn decrease<K: Ord>(uses: &mut BTreeMap<K, usize>, key: K) {
    if let Entry::Occupied(mut entry) = uses.entry(key) {
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}
