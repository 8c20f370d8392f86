//! What waits for destinations that have all their sends under way and answer slowly: it must not take all the room that there is for what is read ahead, or
//! nothing of the others would be read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::destination::Head;
use super::super::destinations::Place;
use super::{Flow, Waiting};
use crate::sink::SinkLimits;
use crate::store::Then;
use crate::{AggregateId, Delivery};

/// How much may be kept of what waits for slow destinations: a little for each, so that none of them is idle.
struct Keep {
    /// What an event counts at least, in bytes.
    event: usize,
    /// All of them together.
    most: usize,
    /// One of them, beyond its first aggregate.
    share: usize,
    kept: usize,
    by_place: BTreeMap<Place, usize>,
}

impl Keep {
    /// So many events, and so many bytes.
    fn at_most(events: usize, bytes: usize, destinations: usize) -> Self {
        let event = bytes / events.max(1);
        let most = event * events;
        Self { event, most, share: most / destinations.max(1) / 2, kept: 0, by_place: BTreeMap::new() }
    }

    fn size(&self, waiting: &Waiting) -> usize {
        waiting.events.iter().map(|event| event.bytes().max(self.event)).sum()
    }

    fn may_stay_behind(&mut self, waiting: &Waiting) -> bool {
        let size = self.size(waiting);
        let stays = self.kept + size <= self.most;
        self.kept += if stays { size } else { 0 };
        stays
    }

    fn may_stay(&mut self, waiting: &Waiting) -> bool {
        let of_place = self.by_place.get(&waiting.to).copied().unwrap_or(0);
        let stays = (of_place == 0 || of_place + self.size(waiting) <= self.share) && self.may_stay_behind(waiting);
        if stays {
            self.by_place.insert(waiting.to.clone(), of_place + self.size(waiting));
        }
        stays
    }
}

const fn is_one_of_several(waiting: &Waiting, limits: &SinkLimits) -> bool {
    !limits.mixed && waiting.to.is_some()
}

impl Flow {
    /// Whether this is one of several destinations and has all the sends that it may have.
    pub(crate) fn is_full(&self, to: &Place, limits: &SinkLimits) -> bool {
        self.lanes.is_full(to, limits)
    }

    /// Events and bytes that wait for answers of one of several destinations: because it is full, or because they are behind a part that is on its way.
    pub(crate) fn waiting_for_answers(&self, limits: &SinkLimits) -> (usize, usize) {
        let size = |waiting: &Waiting| (waiting.events.len(), waiting.events.iter().map(Delivery::bytes).sum::<usize>());
        let full = self.ready.iter().filter(|waiting| self.lanes.is_full(&waiting.to, limits));
        full.chain(self.rests.values().filter(|waiting| is_one_of_several(waiting, limits)))
            .map(size)
            .fold((0, 0), |(events, bytes), (more, size)| (events + more, bytes + size))
    }

    /// Destinations that are full and have something waiting.
    pub(crate) fn full(&self, limits: &SinkLimits) -> Vec<Place> {
        let waiting: BTreeSet<_> = self.ready.iter().map(|waiting| &waiting.to).collect();
        waiting.into_iter().filter(|to| self.lanes.is_full(to, limits)).cloned().collect()
    }

    /// Keeps at most so many events and bytes (`most`) of what waits for answers of one of several destinations. What waits for one that is full goes back to the store, and `then` says
    /// what becomes of the heads; what waits behind a part that is on its way is read again after the answer. Answers with how many heads went back.
    pub(crate) fn make_room(
        &mut self,
        limits: &SinkLimits,
        most: (usize, usize),
        mut then: impl FnMut(&Place, Head, u64) -> Then,
    ) -> usize {
        let full = self.full(limits);
        let mut keep = Keep::at_most(most.0, most.1, full.len());
        let stays = |waiting: &Waiting| full.binary_search(&waiting.to).is_err() || keep.may_stay(waiting);
        let (stay, gone): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.ready).into_iter().partition(stays);
        self.ready = stay;
        for waiting in &gone {
            self.count_out(waiting);
            if let Some(head) = waiting.events.front() {
                let then = then(&waiting.to, waiting.head, head.sequence);
                self.settle(waiting.aggregate, waiting.hold, None, then, 0);
            }
        }
        let goes = |_: &AggregateId, waiting: &mut Waiting| is_one_of_several(waiting, limits) && !keep.may_stay_behind(waiting);
        let behind: Vec<_> = self.rests.extract_if(.., goes).map(|(_, waiting)| waiting).collect();
        for waiting in &behind {
            self.count_out(waiting);
        }
        gone.len()
    }
}
