//! What follows from what was read, sent and recorded.

use std::collections::BTreeMap;

use shardwise::Moment;

use super::Engine;
use super::destination::Destination;
use super::destinations::DestinationKey;
use super::flow::RefusedHead;
use super::io::{SendId, StoreCall};
use crate::sink::Acceptance;
use crate::store::{FetchResult, HeadUpdate, Hold, Outcome};
use crate::{AggregateId, PublisherOptions};

/// What one answer of a destination refused.
#[derive(Default)]
struct DestinationRefusal {
    aggregates: Vec<AggregateId>,
    /// Whether it refused something permanently, which shows that it is up.
    for_good: bool,
    said: String,
}

impl Engine {
    pub(super) fn fetched(&mut self, fetched: FetchResult, now: Moment) {
        self.read_answered(StoreCall::Fetch);
        let found = !fetched.runs.is_empty();
        let more = self.goes_on(found, fetched.resume) || fetched.more || fetched.runs.iter().any(|run| run.more);
        self.poller.read(found, more, now);
        // The reading was cut short, perhaps by aggregates that have nothing to send: those count as well.
        let is_full = fetched.resume.is_some();
        self.reading = if is_full { self.reading * 2 } else { PublisherOptions::POLL_EVENTS }.min(self.options.batch);
        for run in fetched.runs {
            // Events that were read under another epoch, or for a slot released meanwhile, are not ours to send.
            if self.slots.may_send(run.hold, now) {
                let to = run.events.first().and_then(&self.address);
                self.flow.add(run, to, now);
            }
        }
    }

    /// Moves the cursor to where the reading stopped, and returns whether to continue reading immediately. A store may have to visit
    /// aggregates that turn out to have nothing to send, so even a reading without events may have been cut short. Once such readings have
    /// gone around the whole ring, nothing is pending, and the next reading waits for its time.
    fn goes_on(&mut self, found: bool, resume: Option<u64>) -> bool {
        let Some(stopped) = resume else {
            self.empty_span = 0;
            if found {
                self.cursor = None;
            }
            return false;
        };
        // 0 means the whole ring, or nothing.
        let step = stopped.wrapping_sub(self.cursor.unwrap_or(u64::MAX));
        self.cursor = Some(stopped);
        let so_far = self.empty_span.checked_add(step).filter(|_| step > 0 && !found);
        self.empty_span = so_far.unwrap_or(0);
        found || so_far.is_some()
    }

    pub(super) fn sent(&mut self, id: SendId, accepted: &Acceptance, unknown_end: bool, now: Moment) {
        let before = self.flow.events_under_way();
        let taken = self.flow.accepted_of(id, accepted);
        for to in taken.keys() {
            self.destinations.accepted(to, now);
        }
        let Self { flow, slots, destinations, reports, options, jitter, .. } = self;
        let mut refused: BTreeMap<DestinationKey, DestinationRefusal> = BTreeMap::new();
        let may_send = |hold| slots.may_send(hold, now);
        flow.sent(id, accepted, now, may_send, |RefusedHead { event, head, to, refusal }| {
            let refused = refused.entry(to.clone()).or_default();
            if refusal.permanent {
                refused.for_good = true;
            } else if !refusal.blameless {
                refused.aggregates.push(event.aggregate);
                refused.said.clone_from(&refusal.message);
            }
            let then =
                destinations.judge(to, |destination| destination.verdict(refusal, head, event.sequence, options, now, jitter.next()));
            reports.judged(event, head, &then);
            then
        });
        // Each destination is judged once for one answer, whatever the order of its parts.
        for (to, DestinationRefusal { aggregates, for_good, said }) in refused {
            if for_good {
                destinations.update(&to, Destination::answered);
            } else if !taken.contains_key(&to) {
                destinations.update(&to, |destination| destination.refused(id, &aggregates, &said, options.backoff, now));
            }
        }
        let events: usize = taken.values().sum();
        if unknown_end {
            self.counters.repeated += (before - self.flow.events_under_way()).saturating_sub(events) as u64;
        }
    }

    pub(super) fn recorded(&mut self, fenced: &[Hold], now: Moment) {
        self.under_way.remove(&StoreCall::Record);
        self.record_pause.succeeded();
        for (outcome, delivered) in self.flow.recorded(fenced) {
            self.counters.delivered += delivered as u64;
            self.count(&outcome, now);
        }
        self.poller.more();
        self.lose(fenced);
    }

    fn count(&mut self, outcome: &Outcome, now: Moment) {
        match outcome.then {
            HeadUpdate::Next => {}
            HeadUpdate::Retry { retry_in, .. } => {
                self.counters.retried += 1;
                self.poller.retry_at(now.plus(retry_in));
            }
            HeadUpdate::Block { .. } => self.counters.blocked += 1,
            HeadUpdate::Park { .. } => self.counters.parked += 1,
            HeadUpdate::Discard { .. } => self.counters.discarded += 1,
        }
    }
}
