//! What callers and members do at each event.

use shardwise_core::ShardKey;
use shardwise_core::routing::{AskStep, Choice, MemberSet, NoRoute, PeerLoad, PowerOfTwo, Routes, Undelivered};

use super::{ADMITTED_MAX, AT_ONCE, Caller, Event, HANDLER, NET, RETRY_AFTER, Reply, SimAttempt, World, moment, nanos};

impl World {
    /// The caller decides.
    pub(super) fn next_step(&mut self, id: usize) {
        let (now, random, request) = (moment(self.now), self.dice.next(), &mut self.requests[id]);
        let Caller { table, hints } = &self.callers[request.caller];
        let owners = request.key.map(|key| table.owners(&self.keys[key], now, hints, &Routes::default()));
        let set: Result<&[u32], NoRoute> = match &owners {
            Some(owners) => owners.as_ref().map(MemberSet::as_slice).map_err(|no_route| *no_route),
            None => table.active(),
        };
        match request.ask.next(now, set.map(|set| Choice { table, set, pick: &PowerOfTwo, key: None, random })) {
            AskStep::Send { index, .. } => {
                request.in_flight = table.peer_load(index).map(PeerLoad::begin);
                (request.to, request.reply) = (index, None);
                self.attempts.push(SimAttempt { at: self.now, key: request.key, to: index });
                self.push(self.now + NET, Event::Reaches(id));
            }
            AskStep::Wait { until } => self.push(nanos(until), Event::Again(id)),
            AskStep::GiveUp(error) => self.failed.push(error.to_string()),
        }
    }

    fn hash(&self, key: usize) -> u64 {
        self.keys[key].key_hash()
    }

    fn is_owner(&self, key: Option<usize>, member: u32) -> bool {
        key.is_some_and(|key| self.owners[key] == member)
    }

    /// The member decides by its own view, which here is that of every caller.
    pub(super) fn reaches(&mut self, id: usize) {
        let (to, key) = (self.requests[id].to, self.requests[id].key);
        let view = self.callers[0].table.view();
        let name = |index: u32| view.members()[index as usize].instance_id.clone();
        let accepts = key.is_none_or(|key| self.callers[0].table.accepts(&self.keys[key], &name(to)));
        let member = &self.members[to as usize];
        let refusal = if member.is_dead {
            Some(Undelivered::Unsent("connection refused".into()))
        } else if member.names.is_some() || !accepts {
            Some(Undelivered::NotMine(member.names.map(name)))
        } else if member.admitted() >= ADMITTED_MAX {
            Some(Undelivered::Busy(Some(RETRY_AFTER)))
        } else {
            None
        };
        if refusal.is_some() {
            return self.reply(id, Reply { load: 0, width: None, undelivered: refusal });
        }
        if let Some(key) = key.filter(|_| self.is_owner(key, to)) {
            let hash = self.hash(key);
            self.members[to as usize].widths.begin(moment(self.now), hash);
        }
        let member = &mut self.members[to as usize];
        if member.running < AT_ONCE {
            member.running += 1;
            self.push(self.now + HANDLER, Event::Handled(id));
        } else {
            member.waiting.push_back(id);
        }
    }

    pub(super) fn handled(&mut self, id: usize) {
        let (to, key) = (self.requests[id].to, self.requests[id].key);
        let hash = key.filter(|_| self.is_owner(key, to)).map(|key| self.hash(key));
        let (now, member) = (moment(self.now), &mut self.members[to as usize]);
        let width = hash.map(|hash| u64::from(member.widths.finish(now, hash).get()));
        let next = member.waiting.pop_front();
        if next.is_none() {
            member.running -= 1;
        }
        let load = member.admitted() as u64 + member.more_load;
        let (load, width) = if member.forges { (u64::MAX, Some(u64::MAX)) } else { (load, width) };
        if let Some(next) = next {
            self.push(self.now + HANDLER, Event::Handled(next));
        }
        self.reply(id, Reply { load, width, undelivered: None });
    }

    pub(super) fn reply(&mut self, id: usize, reply: Reply) {
        self.requests[id].reply = Some(reply);
        self.push(self.now + NET, Event::Returns(id));
    }

    /// The caller learns from an answer.
    pub(super) fn returns(&mut self, id: usize) {
        let is_owner = self.is_owner(self.requests[id].key, self.requests[id].to);
        let hash = self.requests[id].key.map(|key| self.hash(key));
        let (now, request) = (moment(self.now), &mut self.requests[id]);
        let (Some(Reply { load, width, undelivered }), Some(in_flight)) = (request.reply.take(), request.in_flight.take()) else {
            return;
        };
        // As in the library: a refusal brings no load.
        match &undelivered {
            None => in_flight.peer().on_answer(now, Some(load)),
            Some(undelivered) => in_flight.peer().on_undelivered(now, undelivered),
        }
        drop(in_flight);
        let Some(undelivered) = undelivered else {
            if let Some(hash) = hash.filter(|_| is_owner) {
                self.callers[request.caller].hints.on_answer(now, hash, width, self.setup.max_width);
            }
            self.answered.push((request.begun, self.now - request.begun));
            return;
        };
        request.ask.on_undelivered(now, undelivered);
        self.next_step(id);
    }
}
