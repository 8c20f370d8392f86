//! Places names on the ring of the slots, so that a change of the group does not recompute it for them.

use std::collections::{BTreeMap, BTreeSet};

use super::{BucketEntry, IncrementalRing, bucket_of};
use crate::view::MEMBERS_MAX;
use crate::{ClaimName, InstanceId, NameOwners, SlotOwners, View, hash_bytes, ring};

impl IncrementalRing {
    /// The owner of each name in a view, equal to [`NameOwners::of_view`]; empty without members.
    pub(crate) fn place_names(&mut self, view: &View, names: &BTreeSet<ClaimName>) -> BTreeMap<ClaimName, InstanceId> {
        let members = ring::in_order(SlotOwners::inputs(view));
        if members.is_empty() || names.is_empty() {
            return BTreeMap::new();
        }
        // More than a view can have, and more than there are numbers.
        if members.len() > MEMBERS_MAX as usize {
            let anew = NameOwners::of_view(view, self.params, names);
            return names.iter().filter_map(|name| Some((name.clone(), anew.owner(name)?.clone()))).collect();
        }
        self.follow(&members);
        let (mut room, mut who) = (vec![0; self.numbers()], vec![None; self.numbers()]);
        let capacities = ring::capacities(&members, NameOwners::count(names), self.params.load_margin);
        for (member, capacity) in self.members.iter().zip(capacities) {
            (room[usize::from(member.number)], who[usize::from(member.number)]) = (capacity, Some(&member.id));
        }
        let place = |name: &ClaimName| {
            // Capacities add up to at least the number of names, so there is one.
            let number = self.clockwise(hash_bytes(name.as_str().as_bytes())).find(|number| room[*number] > 0)?;
            room[number] -= 1;
            Some((name.clone(), who[number]?.clone()))
        };
        names.iter().filter_map(place).collect()
    }

    /// The numbers of the points clockwise from `hash`, one turn. The ring must have points.
    fn clockwise(&self, hash: u64) -> impl Iterator<Item = usize> {
        let (at, place) = (bucket_of(hash), BucketEntry::new(hash, 0).place());
        let (before, bucket, after) = (&self.buckets[..at], &self.buckets[at], &self.buckets[at + 1..]);
        let first = bucket.partition_point(|entry| entry.place() < place);
        let others = after.iter().chain(before).flatten();
        bucket[first..].iter().chain(others).chain(&bucket[..first]).map(|entry| entry.number())
    }
}
