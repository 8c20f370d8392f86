//! Every decision of a publisher: a state machine without a clock, randomness or I/O. It is told what happened ([`Input`]) and asked what
//! to do ([`Engine::next`]), and the runner does it.
//!
//! Parts: `slots` (what to take and give back), `flow` (the way of events), `destination` (failures), `poll` (when to read), `pause`
//! (a failing store). At most one call of each kind is under way; touches, takes and releases count as one kind.

mod destination;
mod flow;
mod io;
mod pause;
mod poll;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::Duration;

use shardwise::{Moment, Timing};

use self::destination::{Destination, Gate, Jitter};
use self::flow::{Flow, RefusedHead};
pub(crate) use self::io::{Action, Call, Counters, Input, SendId};
use self::pause::Pause;
use self::poll::Poller;
use self::slots::Slots;
use crate::PublisherOptions;
use crate::sink::{Accepted, SinkLimits};
use crate::store::{FetchRequest, Fetched, Hold, Outcome, Then, Touch};

/// The most bytes of one reading.
const FETCH_BYTES_MAX: usize = 16 << 20;
/// The most aggregates that get their hash in one go.
const PLACE_MAX: usize = 1_000;
/// Rows the retention looks at in one go, and the times between two of them while there is more and when there is not.
const SWEEP_ROWS: usize = 1_000;
const SWEEP_PAUSE: Duration = Duration::from_millis(50);
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Retention is the business of whoever holds this slot, so that one publisher does it.
const SWEEP_SLOT: u32 = 0;

/// A publisher's mind.
#[derive(Debug)]
pub(crate) struct Engine {
    options: PublisherOptions,
    limits: SinkLimits,
    timing: Timing,
    registered: bool,
    stop_by: Option<Moment>,
    gone: bool,
    slots: Slots,
    /// The slots' state when what waits was last looked through.
    looked_through: (u64, bool, bool),
    flow: Flow,
    destination: Destination,
    poller: Poller,
    touch_at: Moment,
    /// Behind this hash the next reading begins.
    cursor: Option<u64>,
    sweep_at: Moment,
    sweep_position: i64,
    under_way: HashSet<Call>,
    fence_pause: Pause,
    read_pause: Pause,
    record_pause: Pause,
    jitter: Jitter,
    cancelled: Vec<SendId>,
    counters: Counters,
}

impl Engine {
    /// A publisher of `slots` slots; `seed` is a random number.
    pub(crate) fn new(options: PublisherOptions, limits: SinkLimits, timing: Timing, slots: u32, seed: u64) -> Self {
        Self {
            poller: Poller::new(options.poll),
            options,
            limits,
            timing,
            registered: false,
            stop_by: None,
            gone: false,
            slots: Slots::new(slots),
            looked_through: (0, false, false),
            flow: Flow::default(),
            destination: Destination::default(),
            touch_at: Moment::ZERO,
            cursor: None,
            sweep_at: Moment::ZERO,
            sweep_position: 0,
            under_way: HashSet::new(),
            fence_pause: Pause::default(),
            read_pause: Pause::default(),
            record_pause: Pause::default(),
            jitter: Jitter::new(seed),
            cancelled: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Takes note of something that happened.
    pub(crate) fn on(&mut self, input: Input, now: Moment) {
        match input {
            Input::Wanted { slots, until } if self.stop_by.is_none() => self.slots.want(slots, until),
            Input::Wanted { .. } => {}
            Input::Registered { started } => {
                self.registered = true;
                self.seen(started);
            }
            Input::Touched { started, touch } => self.touched(started, touch),
            Input::Taken(holds) => {
                self.fence_answered();
                self.slots.took(&holds, now);
                if !holds.is_empty() {
                    self.poller.more();
                }
            }
            Input::Released => self.fence_answered(),
            Input::Gone => {
                self.fence_answered();
                self.gone = true;
            }
            Input::Looked(mark) => {
                self.read_answered(Call::Look);
                self.poller.looked(mark, now);
            }
            Input::Placed(found) => {
                self.read_answered(Call::Place);
                self.poller.placed(found, PLACE_MAX);
            }
            Input::Fetched(fetched) => self.fetched(fetched, now),
            Input::Sent { id, accepted, unknown_end } => self.sent(id, &accepted, unknown_end, now),
            Input::Recorded { fenced } => self.recorded(&fenced, now),
            Input::Swept(resume) => self.swept(resume, now),
            Input::Failed(call) => self.failed(call, now),
            Input::Nudged => self.poller.nudged(),
            Input::Stop { by } => {
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

    fn touched(&mut self, started: Moment, touch: Touch) {
        match touch {
            Touch::Seen(in_store) => {
                self.seen(started);
                let lost = self.slots.reconcile(&in_store);
                self.lose(&lost);
            }
            Touch::Unknown => {
                self.fence_answered();
                self.registered = false;
                self.lapse();
            }
        }
    }

    fn fence_answered(&mut self) {
        self.under_way.remove(&Call::Fence);
        self.fence_pause.succeeded();
    }

    fn read_answered(&mut self, call: Call) {
        self.under_way.remove(&call);
        self.read_pause.succeeded();
    }

    fn fetched(&mut self, fetched: Fetched, now: Moment) {
        self.read_answered(Call::Fetch);
        let (found, cut) = (!fetched.runs.is_empty(), fetched.resume.is_some());
        if found {
            self.cursor = fetched.resume;
        }
        let more = cut || fetched.runs.iter().any(|run| run.through < run.last);
        self.poller.read(found, more);
        for run in fetched.runs {
            // What was read under another epoch than ours, or for a slot given up meanwhile, is not ours to send.
            if self.slots.may_send(run.hold, now) {
                self.flow.add(run, now);
            }
        }
    }

    fn sent(&mut self, id: SendId, accepted: &Accepted, unknown_end: bool, now: Moment) {
        let before = self.flow.events_under_way();
        if accepted.events > 0 {
            self.destination.accepted(now);
        }
        let Self { flow, destination, options, jitter, .. } = self;
        flow.sent(id, accepted, |RefusedHead { aggregate, sequence, head, refusal }| {
            if refusal.permanent {
                destination.answered();
            } else {
                destination.refused(aggregate, options.backoff, now);
            }
            destination.verdict(refusal, head, sequence, options, now, jitter.next())
        });
        if unknown_end {
            self.counters.repeated += (before - self.flow.events_under_way()).saturating_sub(accepted.events) as u64;
        }
    }

    fn recorded(&mut self, fenced: &[Hold], now: Moment) {
        self.under_way.remove(&Call::Record);
        self.record_pause.succeeded();
        for (outcome, delivered) in self.flow.recorded(fenced) {
            self.counters.delivered += delivered;
            self.count(&outcome, now);
        }
        self.poller.more();
        self.lose(fenced);
    }

    fn count(&mut self, outcome: &Outcome, now: Moment) {
        match outcome.then {
            Then::Next => {}
            Then::Retry { retry_in, .. } => {
                self.counters.retried += 1;
                self.poller.retry_at(now.plus(retry_in));
            }
            Then::Block { .. } => self.counters.blocked += 1,
            Then::Park { .. } => self.counters.parked += 1,
        }
    }

    /// These holds are another's: the slots, what waits of them, and sends of nothing else go; they are taken again by the usual rule.
    fn lose(&mut self, holds: &[Hold]) {
        if holds.is_empty() {
            return;
        }
        self.slots.drop_holds(holds);
        self.counters.fenced += holds.len() as u64;
        self.cancel(|hold| holds.contains(&hold));
    }

    /// The own fence has run out: others may have taken everything.
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

    fn swept(&mut self, resume: Option<i64>, now: Moment) {
        self.under_way.remove(&Call::Sweep);
        self.sweep_at = now.plus(if resume.is_some() { SWEEP_PAUSE } else { SWEEP_EVERY });
        self.sweep_position = resume.unwrap_or(0);
    }

    fn failed(&mut self, call: Call, now: Moment) {
        self.under_way.remove(&call);
        match call {
            // It may have happened all the same: the touch reads what the store has.
            Call::Fence => {
                self.touch_at = now;
                self.fence_pause.failed(now);
            }
            Call::Look => self.read_pause.failed(now),
            Call::Place | Call::Fetch => {
                self.poller.nudged();
                self.read_pause.failed(now);
            }
            Call::Record => {
                self.flow.record_again();
                self.record_pause.failed(now);
            }
            Call::Sweep => self.sweep_at = now.plus(SWEEP_EVERY),
        }
    }

    /// What is to be done now. To be asked after every input and whenever [`Engine::wake_at`] has come.
    pub(crate) fn next(&mut self, now: Moment) -> Vec<Action> {
        if !self.slots.fence_is_live(now) {
            self.lapse();
        }
        let state = self.slots.state(now);
        if state != self.looked_through {
            self.looked_through = state;
            self.flow.drop_waiting(|hold| self.slots.may_send(hold, now));
        }
        let mut actions: Vec<Action> = self.cancelled.drain(..).map(Action::Cancel).collect();
        actions.extend(self.record(now));
        actions.extend(self.fence(now));
        self.send(now, &mut actions);
        self.read(now, &mut actions);
        actions
    }

    fn record(&mut self, now: Moment) -> Option<Action> {
        if !self.registered || !self.record_pause.over(now) || self.flow.is_recording() {
            return None;
        }
        let outcomes = self.flow.record_next();
        (!outcomes.is_empty() && self.under_way.insert(Call::Record)).then_some(Action::Record(outcomes))
    }

    /// One step for the fence: being alive comes first, then giving back, then taking.
    fn fence(&mut self, now: Moment) -> Option<Action> {
        if self.gone || self.must_finish(now) {
            return Some(Action::Finish);
        }
        if self.under_way.contains(&Call::Fence) || !self.fence_pause.over(now) {
            return None;
        }
        let action = self.fence_step(now)?;
        self.under_way.insert(Call::Fence);
        Some(action)
    }

    fn fence_step(&mut self, now: Moment) -> Option<Action> {
        if !self.registered {
            return self.stop_by.is_none().then_some(Action::Register);
        }
        if now >= self.touch_at {
            return Some(Action::Touch);
        }
        let release = self.slots.to_release(self.flow.slots_in_use(), now);
        if !release.is_empty() {
            // Gone as soon as it is asked for: should it be wanted again before the answer, it is taken again, under a new epoch.
            self.slots.drop_holds(&release);
            return Some(Action::Release(release));
        }
        if self.stop_by.is_some() {
            let idle = self.slots.held_count() == 0 && self.flow.sends_under_way() == 0 && self.flow.unrecorded() == 0;
            return idle.then_some(Action::Leave);
        }
        self.slots.to_take(now).map(Action::Take)
    }

    /// Stopping, and either nothing was ever begun or the time is up.
    fn must_finish(&self, now: Moment) -> bool {
        let never_began = !self.registered && !self.under_way.contains(&Call::Fence);
        self.stop_by.is_some_and(|by| never_began || now >= by)
    }

    fn send(&mut self, now: Moment, actions: &mut Vec<Action>) {
        // While outcomes cannot be recorded, no more than they cover is sent.
        while self.flow.unrecorded() < 2 * self.options.batch && self.flow.sends_under_way() < self.limits.concurrency.max(1) {
            let events_max = match self.destination.gate(self.flow.sends_under_way(), now) {
                Gate::Open => self.options.batch,
                Gate::Probe => 1,
                Gate::Shut { .. } => return,
            };
            let Some((id, batch)) = self.flow.send_next(&self.limits, events_max) else { return };
            actions.push(Action::Send { id, batch });
        }
    }

    fn read(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.stop_by.is_some() || !self.registered || !self.read_pause.over(now) {
            return;
        }
        let wants_more = self.poller.should_read(now);
        if self.poller.should_place() && self.under_way.insert(Call::Place) {
            self.poller.placing();
            actions.push(Action::Place { limit: PLACE_MAX });
        }
        if wants_more && self.has_room() && self.slots.has_work(now) && self.under_way.insert(Call::Fetch) {
            self.poller.reading(now);
            actions.push(Action::Fetch(self.fetch_request(now)));
        }
        if self.poller.should_look(now) && self.under_way.insert(Call::Look) {
            actions.push(Action::Look);
        }
        let sweeps = !self.options.retention.is_zero() && self.slots.holds_slot(SWEEP_SLOT) && now >= self.sweep_at;
        if sweeps && self.under_way.insert(Call::Sweep) {
            actions.push(Action::Sweep { retention: self.options.retention, position: self.sweep_position, limit: SWEEP_ROWS });
        }
    }

    /// Whether a reading fits into memory: one batch ahead of the one on its way.
    fn has_room(&self) -> bool {
        self.flow.waiting_events() < self.options.batch && self.flow.waiting_bytes() < FETCH_BYTES_MAX
    }

    fn fetch_request(&self, now: Moment) -> FetchRequest {
        FetchRequest {
            after: self.cursor,
            events_max: self.options.batch,
            bytes_max: FETCH_BYTES_MAX,
            except_slots: self.slots.unwanted(now).map(|hold| hold.slot).collect(),
            except_aggregates: self.flow.aggregates_in_use(),
        }
    }

    /// When to ask again although nothing has happened.
    pub(crate) fn wake_at(&self, now: Moment) -> Moment {
        let gate = match self.destination.gate(self.flow.sends_under_way(), now) {
            Gate::Shut { until } if self.flow.sends_under_way() == 0 => Some(until),
            _ => None,
        };
        let fence = self.registered.then_some(self.touch_at);
        let pauses = [self.fence_pause, self.read_pause, self.record_pause].map(|pause| pause.until(now));
        let sweep = self.slots.holds_slot(SWEEP_SLOT).then_some(self.sweep_at);
        let other = [gate, fence, sweep, self.stop_by].into_iter().chain(pauses).flatten();
        // What is due and waits for an answer, or for room, comes up with that answer.
        let wakes = other.chain(self.slots.wake_at(now)).chain(self.poller.wake_at()).filter(|at| *at > now);
        wakes.min().unwrap_or_else(|| now.plus(self.options.poll))
    }

    /// Sums and gauges.
    pub(crate) fn counters(&self, now: Moment) -> Counters {
        Counters {
            held: self.slots.held_count(),
            wanted: self.slots.wanted_count(now),
            in_memory: self.flow.waiting_events() + self.flow.events_under_way(),
            destination_down: self.destination.is_down(),
            ..self.counters
        }
    }
}
