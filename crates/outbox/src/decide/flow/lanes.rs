//! For each destination: how much is waiting, how much is being sent, and how many sends it may have at a time.

use std::collections::BTreeMap;

use super::super::destinations::DestinationKey;
use crate::sink::SinkLimits;

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The number of aggregates with waiting events.
    pub(super) waiting: usize,
    pub(super) sends: usize,
}

/// Destinations with at least one event in memory.
#[derive(Debug, Default)]
pub(super) struct Lanes(BTreeMap<DestinationKey, Lane>);

impl Lanes {
    pub(super) fn sends(&self, to: &DestinationKey) -> usize {
        self.0.get(to).map_or(0, |lane| lane.sends)
    }

    pub(super) fn change(&mut self, to: &DestinationKey, change: impl FnOnce(&mut Lane)) {
        let lane = self.0.entry(to.clone()).or_default();
        change(lane);
        if lane.waiting == 0 && lane.sends == 0 {
            self.0.remove(to);
        }
    }

    /// Whether a destination may have one more send. If each send carries one aggregate and may hang until its timeout, no destination may
    /// use more than its share of the sends; with several destinations, each can always have one.
    pub(super) fn has_room(&self, to: &DestinationKey, limits: &SinkLimits) -> bool {
        let most = limits.concurrency.max(1);
        let share = match self.0.len() {
            _ if limits.mixed || to.is_none() => most,
            0 | 1 => most - most / 4,
            several => (most / several).max(1),
        };
        self.sends(to) < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_has_its_share_and_leaves_room_for_another() {
        let limits = SinkLimits { concurrency: 8, mixed: false, ..SinkLimits::default() };
        let (mut lanes, a, b) = (Lanes::default(), Some("a".into()), Some("b".into()));
        for _ in 0..6 {
            assert!(lanes.has_room(&a, &limits));
            lanes.change(&a, |lane| lane.sends += 1);
        }
        assert!(!lanes.has_room(&a, &limits) && lanes.has_room(&b, &limits));
        lanes.change(&b, |lane| lane.waiting += 1);
        lanes.change(&a, |lane| lane.sends -= 2);
        assert!(!lanes.has_room(&a, &limits), "half of it is the other's now");
        lanes.change(&a, |lane| lane.sends -= 1);
        assert!(lanes.has_room(&a, &limits));
        lanes.change(&b, |lane| lane.waiting -= 1);
        lanes.change(&a, |lane| lane.sends -= 3);
        assert!(lanes.0.is_empty(), "what is not in hand is forgotten: {lanes:?}");
        let mixed = SinkLimits { mixed: true, ..limits };
        lanes.change(&a, |lane| lane.sends += 7);
        assert!(lanes.has_room(&a, &mixed), "a batch of several has no share");
    }
}
