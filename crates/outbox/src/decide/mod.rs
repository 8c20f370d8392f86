//! Every decision of a publisher: a state machine without a clock, randomness or I/O. The runner feeds it inputs ([`EngineInput`]), asks
//! for actions ([`Engine::next`]) and carries them out.
//!
//! Parts: this file (inputs), `act` (actions), `slots` (what to take and release), `flow` (the path of events), `destination` (failures),
//! `destinations` (one circuit breaker each), `slow` (destinations that accept little), `reports` (what the log says of failures), `poll`
//! (when to read), `retention` (when to delete), `pause` (a failing store). At most one call of each kind is under way; touches, takes and
//! releases count as one kind.

mod act;
mod destination;
mod destinations;
mod flow;
mod io;
mod pause;
mod poll;
mod reports;
mod retention;
#[cfg(test)]
mod simulation;
mod slots;
mod slow;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use shardwise::{Moment, Timing};

use self::destination::{Destination, Jitter};
use self::destinations::{DestinationKey, DestinationResolver, Destinations};
use self::flow::{Flow, RefusedHead};
pub(crate) use self::io::{EngineAction, EngineInput, SendId, StoreCall};
pub use self::io::{PublisherSnapshot, Trouble};
use self::pause::Pause;
use self::poll::PollSchedule;
pub(crate) use self::reports::Report;
use self::reports::Reports;
use self::retention::Retention;
use self::slots::PublisherSlots;
use self::slow::SlowDestinations;
use crate::sink::{Acceptance, SinkLimits};
use crate::store::{FetchResult, HeadUpdate, Hold, Outcome, TouchReply};
use crate::{AggregateId, PublisherOptions};

/// The most aggregates whose hashes are written in one call.
const PLACE_MAX: usize = 1_000;
#[derive(Default)]
struct DestinationRefusal {
    aggregates: Vec<AggregateId>,
    /// Whether it refused something permanently, which shows that it is up.
    for_good: bool,
    said: String,
}

pub(crate) struct Engine {
    options: PublisherOptions,
    limits: SinkLimits,
    address: DestinationResolver,
    timing: Timing,
    registered: bool,
    stop_by: Option<Moment>,
    gone: bool,
    slots: PublisherSlots,
    /// The state of the slots when the waiting events were last checked.
    looked_through: (u64, bool, bool),
    flow: Flow,
    destinations: Destinations,
    slow: SlowDestinations,
    reports: Reports,
    poller: PollSchedule,
    touch_at: Moment,
    /// The next reading begins behind this hash.
    cursor: Option<u64>,
    /// The most events that the next reading fetches.
    reading: usize,
    /// How much of the hash circle consecutive readings have covered without finding anything.
    barren: u64,
    /// When heads to retry later must be recorded.
    retries_by: Option<Moment>,
    /// Until then those heads may wait for other outcomes.
    busy_until: Moment,
    retention: Retention,
    under_way: BTreeSet<StoreCall>,
    fence_pause: Pause,
    read_pause: Pause,
    record_pause: Pause,
    jitter: Jitter,
    cancelled: Vec<SendId>,
    counters: PublisherSnapshot,
}

impl Engine {
    /// An engine for an outbox of `slots` slots and a sink whose destinations `address` distinguishes; `seed` is a random number.
    pub(crate) fn new(
        options: PublisherOptions,
        limits: SinkLimits,
        timing: Timing,
        slots: u32,
        seed: u64,
        address: DestinationResolver,
    ) -> Self {
        Self {
            poller: PollSchedule::new(options.poll),
            reading: options.batch.min(PublisherOptions::POLL_EVENTS),
            options,
            limits,
            address,
            timing,
            registered: false,
            stop_by: None,
            gone: false,
            slots: PublisherSlots::new(slots),
            looked_through: (0, false, false),
            flow: Flow::default(),
            destinations: Destinations::default(),
            slow: SlowDestinations::default(),
            reports: Reports::default(),
            touch_at: Moment::ZERO,
            cursor: None,
            barren: 0,
            retries_by: None,
            busy_until: Moment::ZERO,
            retention: Retention::default(),
            under_way: BTreeSet::new(),
            fence_pause: Pause::default(),
            read_pause: Pause::default(),
            record_pause: Pause::default(),
            jitter: Jitter::new(seed),
            cancelled: Vec::new(),
            counters: PublisherSnapshot::default(),
        }
    }

    pub(crate) fn on(&mut self, input: EngineInput, now: Moment) {
        match input {
            EngineInput::Wanted { slots, until } if self.stop_by.is_none() => self.slots.want(slots, until),
            EngineInput::Wanted { .. } => {}
            EngineInput::Registered { started } => {
                self.registered = true;
                self.seen(started);
            }
            EngineInput::Touched { started, touch } => self.touched(started, touch),
            EngineInput::Taken(holds) => {
                self.fence_answered();
                self.slots.took(&holds, now);
                if !holds.is_empty() {
                    self.poller.more();
                }
            }
            EngineInput::Released => {
                self.fence_answered();
                self.slots.released();
            }
            EngineInput::Gone => {
                self.fence_answered();
                self.gone = true;
            }
            EngineInput::Looked(mark) => {
                self.read_answered(StoreCall::Look);
                self.poller.looked(mark, now);
            }
            EngineInput::Placed(found) => {
                self.read_answered(StoreCall::Place);
                self.poller.placed(found, PLACE_MAX);
            }
            EngineInput::Fetched(fetched) => self.fetched(fetched, now),
            EngineInput::Sent { id, accepted, unknown_end } => self.sent(id, &accepted, unknown_end, now),
            EngineInput::Recorded { fenced } => self.recorded(&fenced, now),
            EngineInput::Swept(swept) => {
                self.under_way.remove(&StoreCall::Sweep);
                self.retention.swept(swept, self.options.retention, now);
            }
            EngineInput::Cleaned { more } => {
                self.under_way.remove(&StoreCall::Clean);
                self.retention.cleaned(more, now);
            }
            EngineInput::Failed(call) => self.failed(call, now),
            EngineInput::Nudged => self.poller.nudged(),
            EngineInput::Woken => self.poller.woken(now),
            EngineInput::Deaf => self.poller.deaf(now),
            EngineInput::FellAsleep(ticket) => {
                self.under_way.remove(&StoreCall::Sleep);
                self.poller.fell_asleep(ticket, now);
            }
            EngineInput::Ended(all) => {
                self.under_way.remove(&StoreCall::Sleep);
                self.poller.ended(all);
            }
            EngineInput::Withdrawn => {
                self.under_way.remove(&StoreCall::Sleep);
            }
            EngineInput::Stop { by } => {
                self.stop_by = Some(self.stop_by.map_or(by, |earlier| earlier.min(by)));
                self.slots.want(shardwise::SlotSet::empty(1), None);
            }
        }
    }

    fn seen(&mut self, started: Moment) {
        self.fence_answered();
        self.slots.alive_until(started.plus(self.timing.owned_for(self.timing.ttl)));
        self.touch_at = started.plus(self.timing.ttl / 3);
    }

    fn touched(&mut self, started: Moment, touch: TouchReply) {
        match touch {
            TouchReply::Seen(in_store) => {
                self.seen(started);
                let lost = self.slots.reconcile(&in_store);
                self.lose(&lost);
            }
            TouchReply::Unknown => {
                self.fence_answered();
                self.registered = false;
                self.lapse();
            }
        }
    }

    fn fence_answered(&mut self) {
        self.under_way.remove(&StoreCall::Fence);
        self.fence_pause.succeeded();
    }

    fn read_answered(&mut self, call: StoreCall) {
        self.under_way.remove(&call);
        self.read_pause.succeeded();
    }

    fn fetched(&mut self, fetched: FetchResult, now: Moment) {
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
    /// gone around the whole circle, nothing is pending, and the next reading waits for its time.
    fn goes_on(&mut self, found: bool, resume: Option<u64>) -> bool {
        let Some(stopped) = resume else {
            self.barren = 0;
            if found {
                self.cursor = None;
            }
            return false;
        };
        // 0 means the whole circle, or nothing.
        let step = stopped.wrapping_sub(self.cursor.unwrap_or(u64::MAX));
        self.cursor = Some(stopped);
        let so_far = self.barren.checked_add(step).filter(|_| step > 0 && !found);
        self.barren = so_far.unwrap_or(0);
        found || so_far.is_some()
    }

    fn sent(&mut self, id: SendId, accepted: &Acceptance, unknown_end: bool, now: Moment) {
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

    fn recorded(&mut self, fenced: &[Hold], now: Moment) {
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

    /// Another publisher holds these slots: drops them, their waiting events, and sends that contain nothing else. They are taken again as
    /// usual.
    fn lose(&mut self, holds: &[Hold]) {
        if holds.is_empty() {
            return;
        }
        self.slots.drop_holds(holds);
        self.counters.fenced += holds.len() as u64;
        self.cancel(|hold| holds.contains(&hold));
    }

    /// This publisher's fence has expired: others may have taken every slot.
    fn lapse(&mut self) {
        if self.slots.held_count() == 0 {
            return;
        }
        self.counters.lapsed += 1;
        self.slots.drop_all();
        self.cancel(|_| true);
    }

    fn cancel(&mut self, lost: impl Fn(Hold) -> bool) {
        for (id, events) in self.flow.cancel(lost) {
            self.cancelled.push(id);
            self.counters.repeated += events as u64;
        }
    }

    fn failed(&mut self, call: StoreCall, now: Moment) {
        self.under_way.remove(&call);
        match call {
            // The call may have taken effect: the next touch reads the state of the store.
            StoreCall::Fence => {
                self.touch_at = now;
                self.fence_pause.failed(now);
            }
            StoreCall::Look => self.read_pause.failed(now),
            StoreCall::Place | StoreCall::Fetch => {
                self.poller.nudged();
                self.read_pause.failed(now);
            }
            StoreCall::Record => {
                self.flow.record_again();
                self.record_pause.failed(now);
            }
            StoreCall::Sweep => self.retention.sweep_failed(now),
            StoreCall::Clean => self.retention.cleaned(false, now),
            StoreCall::Sleep => self.poller.sleep_failed(now),
        }
    }

    /// What the log should say now.
    pub(crate) fn reports(&mut self, now: Moment) -> Vec<Report> {
        let mut due = self.reports.due(self.destinations.news(), now);
        due.extend(self.slow.news());
        due
    }

    /// What the log should say when the run ends.
    pub(crate) fn last_report(&mut self) -> Option<Report> {
        self.reports.rest()
    }

    pub(crate) fn counters(&self, now: Moment) -> PublisherSnapshot {
        PublisherSnapshot {
            held_slots: self.slots.held_count(),
            wanted_slots: self.slots.wanted_count(now),
            in_memory: self.flow.waiting_events + self.flow.events_under_way(),
            destinations_down: self.destinations.refusing(),
            destinations_slow: self.slow.count(),
            ..self.counters.clone()
        }
    }
}
