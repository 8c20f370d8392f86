//! The output side of the engine: which actions follow from its state.

use std::time::Duration;

use shardwise::Moment;

use super::destination::{HeadState, SendGate};
use super::destinations::DestinationKey;
use super::flow::SendBatch;
use super::poll::{PublisherActivity, SleepStep};
use super::retention::ROWS;
use super::{Engine, EngineAction, PLACE_MAX, StoreCall};
use crate::store::FetchRequest;

/// The most bytes that one reading fetches.
pub(super) const FETCH_BYTES_MAX: usize = 16 << 20;
/// A recording with at least this many outcomes does not wait for heads that are retried later.
const MANY: usize = 32;
/// The longest time for which recording a retry is deferred.
const RETRIES_WITHIN: Duration = Duration::from_millis(100);
/// The publisher that holds this slot runs retention, so that only one publisher does.
const SWEEP_SLOT: u32 = 0;

impl Engine {
    /// The actions to carry out now. Call it after every input and whenever [`Engine::wake_at`] has come.
    pub(crate) fn next(&mut self, now: Moment) -> Vec<EngineAction> {
        if !self.slots.fence_is_live(now) {
            self.lapse();
        }
        self.destinations.end_reports(|to| self.flow.sends_to(to), now);
        let state = self.slots.state(now);
        if state != self.checked_slots {
            self.checked_slots = state;
            self.flow.drop_waiting(|hold| self.slots.may_send(hold, now));
        }
        let mut actions: Vec<EngineAction> = self.cancelled.drain(..).map(EngineAction::Cancel).collect();
        self.send(now, &mut actions);
        // Behind the sends, so that heads that are put back go with what was accepted.
        actions.extend(self.record(now));
        actions.extend(self.fence(now));
        self.read(now, &mut actions);
        actions.extend(self.sleep(now));
        self.read_mark_and_sweep(now, &mut actions);
        actions
    }

    fn record(&mut self, now: Moment) -> Option<EngineAction> {
        if !self.registered || !self.record_pause.over(now) || self.flow.is_recording() {
            return None;
        }
        let retries_too = self.retries_go_too(now);
        let outcomes = self.flow.record_next(retries_too);
        (!outcomes.is_empty() && self.under_way.insert(StoreCall::Record)).then_some(EngineAction::Record(outcomes))
    }

    /// Whether the next recording includes heads that are retried later. They need extra statements, so while large recordings follow each
    /// other they are deferred: a poison head in each batch then costs the other events almost nothing. Losing such an outcome is
    /// harmless: its head is only retried sooner.
    fn retries_go_too(&mut self, now: Moment) -> bool {
        let (retries, others) = self.flow.retries_and_others();
        if others >= MANY {
            self.busy_until = now.plus(RETRIES_WITHIN);
        }
        let by = (retries > 0).then(|| self.retries_by.unwrap_or(now.plus(RETRIES_WITHIN)));
        let go = self.stop_by.is_some() || now >= self.busy_until || retries >= MANY || by.is_some_and(|by| now >= by);
        self.retries_by = by.filter(|_| !go);
        go
    }

    /// The next step for the fence: registering and touching first, then releasing, then taking.
    fn fence(&mut self, now: Moment) -> Option<EngineAction> {
        // A stopping publisher is done at once if it has never begun to register, or if its time is up.
        let never_began = !self.registered && !self.under_way.contains(&StoreCall::Fence);
        if self.gone || self.stop_by.is_some_and(|by| never_began || now >= by) {
            return Some(EngineAction::Finish);
        }
        if self.under_way.contains(&StoreCall::Fence) || !self.fence_pause.over(now) {
            return None;
        }
        let action = self.fence_step(now)?;
        self.under_way.insert(StoreCall::Fence);
        Some(action)
    }

    fn fence_step(&mut self, now: Moment) -> Option<EngineAction> {
        if !self.registered {
            return self.stop_by.is_none().then_some(EngineAction::Register);
        }
        if now >= self.touch_at {
            return Some(EngineAction::Touch);
        }
        let release = self.slots.to_release(&self.flow.slot_uses, now);
        if !release.is_empty() {
            self.slots.release(&release);
            return Some(EngineAction::Release(release));
        }
        if self.stop_by.is_some() {
            let is_withdrawn = self.poller.is_withdrawn() && !self.under_way.contains(&StoreCall::Sleep);
            let idle = self.slots.held_count() == 0 && self.flow.sends_under_way() == 0 && self.flow.unrecorded() == 0 && is_withdrawn;
            return idle.then_some(EngineAction::Leave);
        }
        self.slots.to_take(now).map(EngineAction::Take)
    }

    fn send(&mut self, now: Moment, actions: &mut Vec<EngineAction>) {
        // While outcomes cannot be recorded, sends are limited, so that the number of unrecorded events stays bounded.
        self.slow.held_up(self.flow.unrecorded() >= 2 * self.options.batch, now);
        while self.flow.unrecorded() < 2 * self.options.batch && self.flow.sends_under_way() < self.limits.concurrency.max(1) {
            let gate = |to: &DestinationKey, under_way| self.destinations.gate(to, under_way, now);
            let Some(SendBatch { id, batch, probes }) = self.flow.send_next(&self.limits, self.options.batch, &self.address, gate) else {
                break;
            };
            if let Some(to) = probes {
                self.destinations.update(&to, |destination| destination.probing(id));
            }
            actions.push(EngineAction::Send { id, batch });
        }
        self.put_off(now);
        self.make_room(now);
    }

    /// Returns events for destinations that are down to the store, to make room for other events. A sink that is a single destination needs
    /// room only for those that have not failed yet: among events that always fail, it may be down only because of them.
    fn put_off(&mut self, now: Moment) {
        if self.flow.unrecorded() >= 2 * self.options.batch || !self.destinations.may_put_off(now) {
            return;
        }
        let is_full = !self.has_room();
        let Self { destinations, flow, jitter, options, .. } = self;
        let must_go = |to: &DestinationKey, under_way: usize, head: HeadState| {
            (to.is_some() || is_full && head.failures > 0) && matches!(destinations.gate(to, under_way, now), SendGate::Shut { .. })
        };
        let gone = flow.put_off(must_go, |to, head, sequence| {
            destinations.judge(to, |destination| destination.put_off(head, sequence, options.backoff, now, jitter.next()))
        });
        if gone > 0 {
            destinations.put_off(now);
        }
    }

    /// Whether a reading fits into memory: one batch ahead of the batch that is being sent.
    pub(super) fn has_room(&self) -> bool {
        self.flow.waiting_events < self.options.batch && self.flow.waiting_bytes < FETCH_BYTES_MAX
    }

    fn read(&mut self, now: Moment, actions: &mut Vec<EngineAction>) {
        if self.stop_by.is_some() || !self.registered || !self.read_pause.over(now) {
            return;
        }
        let wants_more = self.poller.should_read(now);
        if self.poller.should_place() && self.under_way.insert(StoreCall::Place) {
            self.poller.placing();
            actions.push(EngineAction::Place { limit: PLACE_MAX });
        }
        if wants_more && self.has_room() && self.slots.has_work(now) && self.under_way.insert(StoreCall::Fetch) {
            self.poller.reading(now);
            actions.push(EngineAction::Fetch(FetchRequest {
                after: self.cursor,
                events_max: self.reading,
                bytes_max: FETCH_BYTES_MAX,
                except_slots: self.slots.unwanted(now).map(|hold| hold.slot).collect(),
                except_aggregates: self.flow.aggregates_in_use(),
            }));
        }
    }

    /// The next step on the way to sleep; when the publisher stops, the end of its sleep.
    fn sleep(&mut self, now: Moment) -> Option<EngineAction> {
        if !self.registered || self.under_way.contains(&StoreCall::Sleep) {
            return None;
        }
        let activity = PublisherActivity {
            reading: [StoreCall::Place, StoreCall::Fetch].iter().any(|call| self.under_way.contains(call)),
            sending: self.flow.sends_under_way() > 0 || self.flow.unrecorded() > 0,
            has_work: self.slots.has_work(now),
        };
        let step = match self.stop_by {
            Some(_) => self.poller.withdraw()?,
            None if self.read_pause.over(now) => self.poller.sleep_step(activity, now)?,
            None => return None,
        };
        self.under_way.insert(StoreCall::Sleep);
        Some(match step {
            SleepStep::Announce => EngineAction::FallAsleep,
            SleepStep::Ask(ticket) => EngineAction::AskEnded(ticket),
            SleepStep::Withdraw(ticket) => EngineAction::Withdraw(ticket),
        })
    }

    fn read_mark_and_sweep(&mut self, now: Moment, actions: &mut Vec<EngineAction>) {
        if self.stop_by.is_some() || !self.registered || !self.read_pause.over(now) {
            return;
        }
        if self.poller.should_read_mark(now) && self.under_way.insert(StoreCall::ReadMark) {
            actions.push(EngineAction::ReadMark);
        }
        // Also with a retention of zero: rows may have been delivered under another retention.
        let keeps = self.slots.holds_slot(SWEEP_SLOT);
        if keeps && self.retention.should_sweep(now) && self.under_way.insert(StoreCall::Sweep) {
            let (position, limit) = self.retention.sweeping(now);
            actions.push(EngineAction::Sweep { retention: self.options.retention, position, limit });
        }
        if keeps && self.retention.should_clean(now) && self.under_way.insert(StoreCall::Clean) {
            actions.push(EngineAction::Clean { parked_retention: self.options.parked_retention, limit: ROWS });
        }
    }

    /// When to call [`Engine::next`] again if no input arrives.
    pub(crate) fn wake_at(&self, now: Moment) -> Moment {
        let gates = self.destinations.wake_at(|to| self.flow.sends_to(to), now);
        let fence = self.registered.then_some(self.touch_at);
        let pauses = [self.fence_pause, self.read_pause, self.record_pause].map(|pause| pause.until(now));
        let sweep = self.slots.holds_slot(SWEEP_SLOT).then_some(self.retention.wake_at());
        let other = [fence, sweep, self.stop_by, self.retries_by, self.room_at(now)].into_iter().chain(pauses).chain(gates).flatten();
        // Work that is due but waits for an answer or for room is checked again when that answer arrives.
        let wakes = other.chain(self.slots.wake_at(now)).chain(self.poller.wake_at()).filter(|at| *at > now);
        wakes.min().unwrap_or_else(|| now.plus(self.options.poll))
    }
}
