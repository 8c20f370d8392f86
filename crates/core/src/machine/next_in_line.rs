//! Slots that nobody claims: their owner is in the view and does not come, because it is refused, has no right to claim, or runs something
//! else under the group's name. The next in line takes them.
//!
//! It keeps them until the placement changes, which it does when the owner is restarted or leaves.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{InstanceId, Moment, PlacementParams, REPLICAS_MAX, Replicas, SlotSet, View};

/// How often unclaimed slots are looked for within one TTL.
const LOOKS_PER_TTL: u32 = 4;

/// Since when slots have had no holder.
#[derive(Debug, Default)]
pub(super) struct Unclaimed {
    since: BTreeMap<u32, Moment>,
    looked: Option<Moment>,
    /// Who comes after whom in the present group, once that was needed.
    line: Option<Replicas>,
}

impl Unclaimed {
    /// Forgets what it has seen: owners have their time to come again.
    pub(super) fn start_over(&mut self) {
        self.since.clear();
        self.line = None;
    }

    pub(super) const fn line(&mut self) -> &mut Option<Replicas> {
        &mut self.line
    }

    pub(super) fn next_look(&self, ttl: Duration) -> Moment {
        self.looked.map_or(Moment::ZERO, |looked| looked.plus(ttl / LOOKS_PER_TTL))
    }

    /// Looks, if it is time, at which slots are free; gives those that have been for a TTL, and for how many whole ones.
    pub(super) fn look(&mut self, now: Moment, ttl: Duration, free: impl FnOnce() -> SlotSet) -> Vec<(u32, usize)> {
        if now < self.next_look(ttl) {
            return Vec::new();
        }
        self.looked = Some(now);
        let free = free();
        self.since.retain(|slot, _| free.contains(*slot));
        for slot in free.iter() {
            self.since.entry(slot).or_insert(now);
        }
        let waited = |since: Moment| usize::try_from(now.since(since).as_nanos() / ttl.as_nanos().max(1)).unwrap_or(usize::MAX);
        self.since.iter().map(|(slot, since)| (*slot, waited(*since))).filter(|(_, ttls)| *ttls > 0).collect()
    }
}

/// Those of the slots for which `me` is next in line after as many TTLs as they have been free: the first after the owner when it is one, and
/// so on.
pub(super) fn mine(
    waiting: &[(u32, usize)],
    line: &mut Option<Replicas>,
    view: &View,
    params: PlacementParams,
    me: &InstanceId,
) -> Vec<u32> {
    if waiting.is_empty() {
        return Vec::new();
    }
    let replicas = line.get_or_insert_with(|| Replicas::of_view(view, params, REPLICAS_MAX));
    let is_next =
        |(slot, ttls): &&(u32, usize)| replicas.owners_of_slot(*slot, REPLICAS_MAX).take(ttls.saturating_add(1)).any(|id| id == me);
    waiting.iter().filter(is_next).map(|(slot, _)| *slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Member;

    const TTL: Duration = Duration::from_secs(4);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_slot_counts_from_when_it_was_first_seen_free_and_not_while_it_is_held() {
        let mut unclaimed = Unclaimed::default();
        let free = |slots: &[u32]| SlotSet::from_slots(8, slots.iter().copied());
        assert_eq!(unclaimed.look(at(0), TTL, || free(&[1, 2])), []);
        assert_eq!(unclaimed.look(at(999), TTL, || panic!("too soon")), []);
        assert_eq!(unclaimed.look(at(3_999), TTL, || free(&[1, 2, 3])), []);
        assert_eq!(unclaimed.look(at(5_000), TTL, || free(&[1, 3])), [(1, 1)]);
        assert_eq!(unclaimed.look(at(8_000), TTL, || free(&[1, 2, 3])), [(1, 2), (3, 1)]);
        unclaimed.start_over();
        assert_eq!(unclaimed.look(at(9_000), TTL, || free(&[1])), []);
    }

    #[test]
    fn one_more_in_line_takes_it_with_each_ttl() {
        let members = ["a", "b", "c"].map(|id| Member::named(InstanceId::new(id).unwrap()));
        let (view, params) = (View::new(1, members.to_vec()), PlacementParams { slots: 16, ..PlacementParams::default() });
        let replicas = Replicas::of_view(&view, params, 3);
        for slot in 0..16 {
            let line: Vec<_> = replicas.owners_of_slot(slot, 3).collect();
            for (place, id) in line.into_iter().enumerate() {
                for ttls in 1..4 {
                    assert_eq!(
                        !mine(&[(slot, ttls)], &mut None, &view, params, id).is_empty(),
                        place <= ttls,
                        "{id} is at {place} after {ttls}"
                    );
                }
            }
        }
    }
}
