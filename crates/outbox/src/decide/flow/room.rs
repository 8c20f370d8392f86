//! What slow destinations keep of the memory, so that events for other destinations can be read.

use std::collections::{BTreeMap, BTreeSet};

use shardwise::Moment;

use super::super::destination::HeadState;
use super::super::destinations::DestinationKey;
use super::{Flow, WaitingEvents};
use crate::AggregateId;
use crate::store::HeadUpdate;

/// An amount of events that were read and wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReadAhead {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

impl ReadAhead {
    const fn divided(self, by: usize) -> Self {
        Self { events: self.events / by, bytes: self.bytes / by }
    }

    const fn without(self, used: Self) -> Self {
        Self { events: self.events.saturating_sub(used.events), bytes: self.bytes.saturating_sub(used.bytes) }
    }

    const fn and(self, more: Self) -> Self {
        Self { events: self.events + more.events, bytes: self.bytes + more.bytes }
    }
}

impl WaitingEvents {
    /// Keeps the first events, as many as fit into `most` but not fewer than `least`, and returns their amount. The others are read again
    /// after these were delivered.
    fn cut_to(&mut self, most: ReadAhead, least: usize) -> ReadAhead {
        let mut kept = ReadAhead::default();
        for event in &self.events {
            let with = kept.and(ReadAhead { events: 1, bytes: event.bytes() });
            if kept.events >= least && (with.events > most.events || with.bytes > most.bytes) {
                break;
            }
            kept = with;
        }
        if kept.events < self.events.len() {
            self.events.truncate(kept.events);
            self.through = self.events.back().map_or(self.through, |last| last.sequence);
        }
        kept
    }
}

impl Flow {
    /// Of several destinations, those with an aggregate that has waited for a send since `before`, or for longer.
    pub(crate) fn overdue(&self, before: Moment) -> BTreeSet<DestinationKey> {
        let waits = |waiting: &&WaitingEvents| waiting.to.is_some() && waiting.ready_at <= before;
        self.ready.iter().filter(waits).map(|waiting| waiting.to.clone()).collect()
    }

    /// Of several destinations, those with events that were read at `before` or earlier and wait behind events that are being sent.
    pub(crate) fn long_behind(&self, before: Moment) -> BTreeSet<DestinationKey> {
        let waits = |waiting: &&WaitingEvents| waiting.to.is_some() && waiting.read_at <= before;
        self.rests.values().filter(waits).map(|waiting| waiting.to.clone()).collect()
    }

    /// Since when events of several destinations wait, as [`Self::overdue`] and [`Self::long_behind`] count it.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Moment> + '_ {
        let ready = self.ready.iter().map(|waiting| (waiting, waiting.ready_at));
        let behind = self.rests.values().map(|waiting| (waiting, waiting.read_at));
        ready.chain(behind).filter(|(waiting, _)| waiting.to.is_some()).map(|(_, since)| since)
    }

    /// Reduces what waits for each of these destinations to `share`. Up to half of it is for events behind others that are being sent;
    /// further ones are dropped, and read again once those before them are delivered, so nothing is written for them. What is left of a
    /// `slow` destination's share is for its ready aggregates that were read first. Up to `most` others return to the store; `then` gives
    /// the update for their heads.
    pub(crate) fn keep_share(
        &mut self,
        slow: &BTreeSet<DestinationKey>,
        behind: &BTreeSet<DestinationKey>,
        share: ReadAhead,
        most: usize,
        mut then: impl FnMut(&DestinationKey, HeadState, u64) -> HeadUpdate,
    ) {
        let kept = self.cut_rests(|to| slow.contains(to) || behind.contains(to), share.divided(2));
        let mut left: BTreeMap<&DestinationKey, ReadAhead> =
            slow.iter().map(|to| (to, share.without(kept.get(to).copied().unwrap_or_default()))).collect();
        // A destination keeps at least one event, however large, or that one would never be sent.
        let mut first = if share.events > 0 { slow.clone() } else { BTreeSet::new() };
        let mut gone = 0;
        for mut waiting in std::mem::take(&mut self.ready) {
            let Some(left) = left.get_mut(&waiting.to).filter(|_| gone < most) else {
                self.ready.push_back(waiting);
                continue;
            };
            self.count_out(&waiting);
            let Some(sequence) = waiting.events.front().map(|head| head.sequence) else { continue };
            let kept = waiting.cut_to(*left, usize::from(first.remove(&waiting.to)));
            if kept.events > 0 {
                *left = left.without(kept);
                self.count_in(&waiting);
                self.ready.push_back(waiting);
            } else {
                // Keeps nothing that was read later, or small events would overtake a large one forever.
                *left = ReadAhead::default();
                gone += 1;
                let then = then(&waiting.to, waiting.head, sequence);
                self.settle(waiting.outcome(None, then), 0);
            }
        }
    }

    /// Divides `share` among the aggregates of a destination of which events are being sent: of what waits behind these, each keeps its
    /// part. Returns what is kept of each destination.
    fn cut_rests(&mut self, is_cut: impl Fn(&DestinationKey) -> bool, share: ReadAhead) -> BTreeMap<DestinationKey, ReadAhead> {
        let cut: Vec<AggregateId> = self.rests.iter().filter(|(_, rest)| is_cut(&rest.to)).map(|(aggregate, _)| *aggregate).collect();
        let mut aggregates: BTreeMap<DestinationKey, usize> = BTreeMap::new();
        for rest in cut.iter().filter_map(|aggregate| self.rests.get(aggregate)) {
            *aggregates.entry(rest.to.clone()).or_default() += 1;
        }
        let mut kept: BTreeMap<DestinationKey, ReadAhead> = BTreeMap::new();
        for aggregate in cut {
            let Some(mut rest) = self.rests.remove(&aggregate) else { continue };
            self.count_out(&rest);
            let part = share.divided(aggregates.get(&rest.to).copied().unwrap_or(1));
            let of_destination = kept.entry(rest.to.clone()).or_default();
            *of_destination = of_destination.and(rest.cut_to(part, 0));
            if !rest.events.is_empty() {
                self.count_in(&rest);
                self.rests.insert(aggregate, rest);
            }
        }
        kept
    }
}
