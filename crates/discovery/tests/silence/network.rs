//! Calls on their way to the store, and answers and messages on their way back: late, lost, cut off, or stopped by an outage.

use rand::RngExt;

use crate::clock::MS;
use crate::process::{Message, Outgoing};
use crate::store::LifeId;
use crate::world::{Cut, Event, Fate, Outage, OutageKind, World};

/// A call, or an answer, in a hundred goes wrong.
const WRONG_PER_CENT: u32 = 3;
/// Of every message in either direction.
const DELAY_MAX: u64 = 20 * MS;
/// How much later than that a late call is carried out, at most.
pub(crate) const LATE_MAX: u64 = 5_000 * MS;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) from: usize,
    pub(crate) link: u64,
    pub(crate) life: LifeId,
    pub(crate) outgoing: Outgoing,
}

impl World {
    fn delay(&mut self) -> u64 {
        self.dice.random_range(MS / 10..DELAY_MAX)
    }

    fn goes_wrong(&mut self) -> bool {
        self.faults && self.dice.random_range(0..100) < WRONG_PER_CENT
    }

    pub(crate) fn send(&mut self, from: usize, outgoing: Outgoing) {
        let worker = &self.workers[from];
        let call = Call { from, link: worker.link, life: worker.process.life, outgoing };
        if matches!(worker.cut, Cut::Requests | Cut::Both) {
            return;
        }
        let mut due = self.now + self.delay();
        if self.goes_wrong() {
            self.trouble(from);
            if self.dice.random() {
                self.figures.count("calls lost", 1);
                return;
            }
            self.figures.count("calls late", 1);
            due += self.dice.random_range(200 * MS..LATE_MAX);
        }
        self.push(due, Event::Arrives(call));
    }

    pub(crate) fn arrives(&mut self, call: Call) -> Result<(), String> {
        match self.outage {
            Some(Outage { kind: OutageKind::Stopped, ends }) => {
                let at = ends + self.delay();
                self.push(at, Event::Arrives(call));
                Ok(())
            }
            Some(Outage { kind: OutageKind::Down, .. }) if self.dice.random() => {
                self.reply(call.from, call.link, Message::Failed { attempt: call.outgoing.attempt });
                Ok(())
            }
            Some(_) => Ok(()),
            None => self.carry_out(call),
        }
    }

    /// Pushes the present record of that name, or that this life has gone.
    pub(crate) fn publish(&mut self, name: usize, life: LifeId) {
        let message = self.store.shown(name, self.now).map_or(Message::Gone(life), Message::Seen);
        for who in self.living() {
            if self.workers[who].subscribed {
                let link = self.workers[who].link;
                self.reply(who, link, message.clone());
            }
        }
    }

    /// An answer, which may be lost on its way, and the connection with it.
    pub(crate) fn answer(&mut self, to: usize, link: u64, message: Message) {
        if self.workers[to].link == link && self.goes_wrong() {
            self.figures.count("answers lost", 1);
            self.trouble(to);
            self.break_link(to);
        } else {
            self.reply(to, link, message);
        }
    }

    pub(crate) fn reply(&mut self, to: usize, link: u64, message: Message) {
        let due = self.now + self.delay();
        let worker = &mut self.workers[to];
        if worker.link == link && !matches!(worker.cut, Cut::Answers | Cut::Both) {
            worker.last_due = due.max(worker.last_due + 1);
            let due = worker.last_due;
            self.push(due, Event::Delivered { to, link, message });
        }
    }

    /// The connection breaks, and its owner notices unless it is cut off.
    pub(crate) fn break_link(&mut self, who: usize) {
        let worker = &mut self.workers[who];
        worker.link += 1;
        worker.subscribed = false;
        let link = worker.link;
        self.reply(who, link, Message::LinkLost);
    }

    pub(crate) fn delivered(&mut self, to: usize, link: u64, message: Message) {
        let worker = &mut self.workers[to];
        match worker.fate {
            Fate::Runs if worker.link == link => self.act(to, Some(message)),
            Fate::Stopped if worker.link == link => worker.mailbox.push(message),
            _ => {}
        }
    }
}
