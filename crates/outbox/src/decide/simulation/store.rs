//! The model of the store: it executes each call immediately, under a fence like that of the real stores.

use std::time::Duration;

use super::super::tests::{at, run};
use super::super::{EngineAction, EngineInput};
use super::traffic::RETRIED;
use super::{APART, Aggregate, EngineMistake, World, slot};
use crate::AggregateId;
use crate::store::{EventRun, FetchRequest, FetchResult, HeadTrouble, HeadUpdate, Hold, Outcome, SweepResult, TouchReply};

impl World {
    pub(super) fn answer(&mut self, me: u64, action: EngineAction) -> EngineInput {
        match action {
            EngineAction::Register => {
                self.seen.insert(me, self.now);
                EngineInput::Registered { started: at(self.now) }
            }
            EngineAction::Touch => {
                self.seen.insert(me, self.now);
                let held = self.slots.iter().filter(|(_, (_, holder))| *holder == Some(me));
                let held = held.map(|(slot, (epoch, _))| Hold { slot: *slot, epoch: *epoch }).collect();
                EngineInput::Touched { started: at(self.now), touch: TouchReply::Seen(held) }
            }
            EngineAction::Take(slots) => EngineInput::Taken(slots.iter().filter_map(|slot| self.take(me, slot)).collect()),
            EngineAction::Release(holds) => {
                for hold in holds {
                    if self.holds(me, hold) {
                        self.slots.insert(hold.slot, (hold.epoch, None));
                    }
                }
                EngineInput::Released
            }
            EngineAction::ReadMark => EngineInput::MarkRead(Some(self.now / 30)),
            EngineAction::Place { .. } => EngineInput::Placed(0),
            EngineAction::Sweep { .. } => EngineInput::Swept(SweepResult::default()),
            EngineAction::Clean { .. } => EngineInput::Cleaned { more: false },
            EngineAction::Fetch(request) => EngineInput::Fetched(self.fetch(me, &request)),
            EngineAction::Record(outcomes) => self.record(me, &outcomes),
            other => unreachable!("{other:?}"),
        }
    }

    fn take(&mut self, me: u64, slot: u32) -> Option<Hold> {
        let (epoch, holder) = self.slots[&slot];
        let free = self.mistake == Some(EngineMistake::NoFence) || holder.is_none_or(|holder| holder == me || !self.is_alive(holder));
        (free && self.is_alive(me)).then(|| {
            self.slots.insert(slot, (epoch + 1, Some(me)));
            self.takers.insert((slot, epoch + 1), me);
            Hold { slot, epoch: epoch + 1 }
        })
    }

    fn fetch(&self, me: u64, request: &FetchRequest) -> FetchResult {
        let (mut runs, mut left): (Vec<EventRun>, _) = (Vec::new(), request.events_max as u64);
        let mine = |(id, aggregate): &(&AggregateId, &Aggregate)| {
            let slot = slot(**id);
            self.slots[&slot].1 == Some(me)
                && !request.except_slots.contains(&slot)
                && !request.except_aggregates.contains(id)
                && aggregate.done < aggregate.last
                && aggregate.retry_at <= self.now
        };
        let behind = |id: AggregateId| request.after.is_some_and(|after| id.unsigned_abs() <= after);
        let (first, second): (Vec<_>, Vec<_>) = self.aggregates.iter().filter(mine).partition(|(id, _)| !behind(**id));
        for (id, aggregate) in first.into_iter().chain(second) {
            let hold = Hold { slot: slot(*id), epoch: self.slots[&slot(*id)].0 };
            let through = aggregate.last.min(aggregate.done + left);
            let mut read = EventRun { trouble: aggregate.trouble, ..run(*id, hold, aggregate.done + 1..=through, aggregate.last) };
            read.through *= APART;
            read.events.iter_mut().for_each(|event| event.sequence *= APART);
            runs.push(read);
            left -= through - aggregate.done;
            if left == 0 {
                return FetchResult { runs, resume: Some(id.unsigned_abs()), more: false };
            }
        }
        FetchResult { runs, resume: None, more: false }
    }

    fn record(&mut self, me: u64, outcomes: &[Outcome]) -> EngineInput {
        let mut fenced = Vec::new();
        for outcome in outcomes {
            if !self.holds(me, outcome.hold) {
                fenced.push(outcome.hold);
                continue;
            }
            if matches!(outcome.then, HeadUpdate::Retry { .. }) {
                self.count(RETRIED, 1);
            }
            let now = self.now;
            let aggregate = self.aggregates.get_mut(&outcome.aggregate).unwrap();
            if let Some(through) = outcome.through {
                assert_eq!(through % APART, 0, "no event has this sequence");
                let through = through / APART;
                assert!(through <= aggregate.arrived, "marked before it arrived");
                if through > aggregate.done {
                    (aggregate.done, aggregate.trouble, aggregate.retry_at) = (through, HeadTrouble::default(), 0);
                }
            }
            if let HeadUpdate::Retry { sequence, attempts, failures, retry_in, .. } = outcome.then
                && aggregate.done < sequence / APART
                && aggregate.trouble.failures <= failures
            {
                aggregate.trouble =
                    HeadTrouble { attempts, failures, failing_for: (failures > 0).then_some(Duration::ZERO), attempted_ago: None };
                aggregate.retry_at = now + u64::try_from(retry_in.as_millis()).unwrap();
            }
        }
        fenced.sort_unstable();
        fenced.dedup();
        EngineInput::Recorded { fenced }
    }
}
