//! Every decision of a publisher: a state machine without a clock, randomness or I/O. The runner feeds it inputs ([`EngineInput`]), asks
//! for actions ([`Engine::next`]) and carries them out.
//!
//! Parts: this file (inputs), `answered` (what was read, sent and recorded), `act` (actions), `slots` (what to take and release), `flow`
//! (the path of events), `destination` (failures), `destinations` (one circuit breaker each), `slow` (destinations that accept little),
//! `reports` (what the log says of failures), `poll` (when to read), `retention` (when to delete), `pause` (a failing store). At most one
//! call of each kind is under way; touches, takes and releases count as one kind.

mod act;
mod answered;
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

use std::collections::BTreeSet;

use shardwise::{Moment, Timing};

use self::destination::Jitter;
use self::destinations::{DestinationResolver, Destinations};
use self::flow::Flow;
pub(crate) use self::io::{EngineAction, EngineInput, SendId, StoreCall};
pub use self::io::{PublisherSnapshot, Trouble};
use self::pause::Pause;
use self::poll::PollSchedule;
pub(crate) use self::reports::Report;
use self::reports::Reports;
use self::retention::Retention;
use self::slots::{CheckedSlots, PublisherSlots};
use self::slow::SlowDestinations;
use crate::PublisherOptions;
use crate::sink::SinkLimits;
use crate::store::{Hold, TouchReply};

/// The most aggregates whose hashes are written in one call.
const PLACE_MAX: usize = 1_000;

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
    checked_slots: CheckedSlots,
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
    /// How much of the hash ring consecutive readings have covered without finding anything.
    empty_span: u64,
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
            checked_slots: CheckedSlots::default(),
            flow: Flow::default(),
            destinations: Destinations::default(),
            slow: SlowDestinations::default(),
            reports: Reports::default(),
            touch_at: Moment::ZERO,
            cursor: None,
            empty_span: 0,
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
            EngineInput::MarkRead(mark) => {
                self.read_answered(StoreCall::ReadMark);
                self.poller.mark_read(mark, now);
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
            EngineInput::ReadSoon => self.poller.read_soon(),
            EngineInput::Woken => self.poller.woken(now),
            EngineInput::NotificationsLost => self.poller.notifications_lost(now),
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
            StoreCall::ReadMark => self.read_pause.failed(now),
            StoreCall::Place | StoreCall::Fetch => {
                self.poller.read_soon();
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
        let mut due = self.reports.due(self.destinations.take_changes(), now);
        due.extend(self.slow.take_reports());
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
