//! The model of the store: it does at once what it is asked, under a fence like the real one's.

use std::time::Duration;

use super::super::tests::{at, run};
use super::super::{Action, Input};
use super::{Aggregate, Mistake, World, slot};
use crate::AggregateId;
use crate::store::{FetchRequest, Fetched, HeadTrouble, Hold, Outcome, Run, Swept, Then, Touch};

impl World {
    pub(super) fn answer(&mut self, me: u64, action: Action) -> Input {
        match action {
            Action::Register => {
                self.seen.insert(me, self.now);
                Input::Registered { started: at(self.now) }
            }
            Action::Touch => {
                self.seen.insert(me, self.now);
                let held = self.slots.iter().filter(|(_, (_, holder))| *holder == Some(me));
                let held = held.map(|(slot, (epoch, _))| Hold { slot: *slot, epoch: *epoch }).collect();
                Input::Touched { started: at(self.now), touch: Touch::Seen(held) }
            }
            Action::Take(slots) => Input::Taken(slots.iter().filter_map(|slot| self.take(me, slot)).collect()),
            Action::Release(holds) => {
                for hold in holds {
                    if self.holds(me, hold) {
                        self.slots.insert(hold.slot, (hold.epoch, None));
                    }
                }
                Input::Released
            }
            Action::Look => Input::Looked(Some(self.now / 30)),
            Action::Place { .. } => Input::Placed(0),
            Action::Sweep { .. } => Input::Swept(Swept::default()),
            Action::Clean { .. } => Input::Cleaned { more: false },
            Action::Fetch(request) => Input::Fetched(self.fetch(me, &request)),
            Action::Record(outcomes) => self.record(me, &outcomes),
            other => unreachable!("{other:?}"),
        }
    }

    fn take(&mut self, me: u64, slot: u32) -> Option<Hold> {
        let (epoch, holder) = self.slots[&slot];
        let free = self.mistake == Some(Mistake::NoFence) || holder.is_none_or(|holder| holder == me || !self.is_alive(holder));
        (free && self.is_alive(me)).then(|| {
            self.slots.insert(slot, (epoch + 1, Some(me)));
            self.takers.insert((slot, epoch + 1), me);
            Hold { slot, epoch: epoch + 1 }
        })
    }

    fn fetch(&self, me: u64, request: &FetchRequest) -> Fetched {
        let (mut runs, mut left): (Vec<Run>, _) = (Vec::new(), request.events_max as u64);
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
            runs.push(Run { trouble: aggregate.trouble, ..run(*id, hold, aggregate.done + 1..=through, aggregate.last) });
            left -= through - aggregate.done;
            if left == 0 {
                return Fetched { runs, resume: Some(id.unsigned_abs()) };
            }
        }
        Fetched { runs, resume: None }
    }

    fn record(&mut self, me: u64, outcomes: &[Outcome]) -> Input {
        let mut fenced = Vec::new();
        for outcome in outcomes {
            if !self.holds(me, outcome.hold) {
                fenced.push(outcome.hold);
                continue;
            }
            let now = self.now;
            let aggregate = self.aggregates.get_mut(&outcome.aggregate).unwrap();
            if let Some(through) = outcome.through {
                assert!(through <= aggregate.arrived, "marked before it arrived");
                if through > aggregate.done {
                    (aggregate.done, aggregate.trouble, aggregate.retry_at) = (through, HeadTrouble::default(), 0);
                }
            }
            if let Then::Retry { sequence, attempts, failures, retry_in, .. } = outcome.then
                && aggregate.done < sequence
                && aggregate.trouble.failures <= failures
            {
                aggregate.trouble =
                    HeadTrouble { attempts, failures, failing_for: (failures > 0).then_some(Duration::ZERO), attempted_ago: None };
                aggregate.retry_at = now + u64::try_from(retry_in.as_millis()).unwrap();
            }
        }
        fenced.sort_unstable();
        fenced.dedup();
        Input::Recorded { fenced }
    }
}
