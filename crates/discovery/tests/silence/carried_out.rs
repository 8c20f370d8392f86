//! Calls that the store carries out, and what must hold when it does.

use crate::clock::MS;
use crate::network::Call;
use crate::process::{Message, OWNED, Outgoing, PERIOD, Request};
use crate::store::{ClaimOutcome, LifeId, WriteOutcome};
use crate::world::{Cut, EvictedRecord, Fate, Worker, World};

impl World {
    pub(crate) fn carry_out(&mut self, call: Call) -> Result<(), String> {
        let Call { from, link, life, outgoing: Outgoing { attempt, started, request } } = call;
        let own_now = self.workers[from].process.clock.shows(self.now);
        if own_now.since(started) > PERIOD {
            self.figures.count("calls carried out after their caller gave up", 1);
        }
        match request {
            Request::Write { registers, lists } => {
                let outcome = self.store.write(life, registers, self.now);
                if outcome == WriteOutcome::Kept {
                    let worker = &mut self.workers[from];
                    worker.carried_out = worker.carried_out.max(started);
                    self.publish(life.name, life);
                }
                let list = lists.then(|| self.store.list(self.now));
                let worker = &mut self.workers[from];
                if lists && !self.polls && worker.link == link {
                    worker.subscribed = true;
                }
                self.answer(from, link, Message::Written { attempt, outcome, list });
            }
            Request::Acquire { resource } => {
                let outcome = self.store.acquire(life, resource);
                if outcome == ClaimOutcome::Granted {
                    self.check_grant(from, resource)?;
                    self.figures.count("claims granted", 1);
                }
                self.answer(from, link, Message::Acquired { attempt, outcome });
            }
            Request::Evict { life: silent, seen, silent_since } => {
                let since = self.workers[from].process.clock.truth_of(silent_since);
                return self.evict((from, link), silent, seen, since);
            }
            Request::Leave => {
                if self.store.end(life).is_some() {
                    self.publish(life.name, life);
                }
            }
        }
        Ok(())
    }

    /// Deletes the record if it is as it was seen: never renewed since, or still absent.
    fn evict(&mut self, (from, link): (usize, u64), silent: LifeId, seen: Option<u64>, since: u64) -> Result<(), String> {
        if self.store.beat(silent) != seen {
            self.figures.count("burials refused because the record had changed", 1);
            let there = self.store.shown(silent.name, self.now);
            self.reply(from, link, there.map_or(Message::Gone(silent), Message::Seen));
            return Ok(());
        }
        if !self.store.knows(silent) {
            return Ok(());
        }
        self.check_eviction(silent, since)?;
        let renewed = self.store.end(silent);
        self.evicted.push(EvictedRecord { life: silent, at: self.now, renewed });
        self.figures.count(if renewed.is_some() { "burials" } else { "burials of absent records" }, 1);
        self.publish(silent.name, silent);
        Ok(())
    }

    /// An eviction of that life is carried out now; the store showed it unchanged in the TTL from `since` on.
    fn check_eviction(&mut self, silent: LifeId, since: u64) -> Result<(), String> {
        let is_it = |worker: &&Worker| worker.process.life == silent && worker.fate != Fate::Dead;
        let Some(worker) = self.workers.iter().find(is_it) else { return Ok(()) };
        let (own_now, deadline) = (worker.process.clock.shows(self.now), worker.carried_out.plus(OWNED));
        if own_now < deadline {
            return Err(format!(
                "{silent:?} is evicted at {} ms while its lease is valid for {:?}",
                self.now / MS,
                deadline.since(own_now)
            ));
        }
        let is_in_trouble = worker.fate == Fate::Stopped || worker.cut != Cut::Nowhere || worker.troubled >= since;
        if !is_in_trouble {
            return Err(format!("{silent:?} is evicted at {} ms although nothing kept it from renewing", self.now / MS));
        }
        self.figures.count("burials of living members", 1);
        Ok(())
    }

    /// The resource is granted to that process now.
    fn check_grant(&self, to: usize, resource: usize) -> Result<(), String> {
        match self.believers(resource).into_iter().find(|who| *who != to) {
            Some(other) => {
                let [to, other] = [to, other].map(|who| self.workers[who].process.life);
                Err(format!("resource {resource} is granted at {} ms to {to:?} while {other:?} believes that it holds it", self.now / MS))
            }
            None => Ok(()),
        }
    }

    /// The living processes that believe that they hold it.
    pub(crate) fn believers(&self, resource: usize) -> Vec<usize> {
        let believes = |who: &usize| {
            let process = &self.workers[*who].process;
            process.believes(resource, process.clock.shows(self.now))
        };
        self.living().into_iter().filter(believes).collect()
    }
}
