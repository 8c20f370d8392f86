//! A ring that is kept from one view to the next, so that a join or a leave costs the points of one member and not of all.
//!
//! Its result equals that of [`SlotOwners::place`] in every slot, which the tests check. Only the method differs: points are never sorted
//! again, but inserted into and removed from small sorted buckets.

#![expect(clippy::cast_possible_truncation, reason = "each cast says beside it why the value fits")]

use crate::quota::Classes;
use crate::ring::{self, Point, PointHash};
use crate::view::MEMBERS_MAX;
use crate::walk::owners;
use crate::{InstanceId, PlacementKind, PlacementParams, SlotOwners, View, Weight, hash_bytes, slot_start};

/// The upper bits of a point's hash choose its bucket. Its entry stores the other bits, and the freed bits hold the member's number: an
/// entry is eight bytes and no bit of the hash is lost.
const NUMBER_BITS: u32 = 14;
const BUCKETS: usize = 1 << NUMBER_BITS;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const _: () = assert!(MEMBERS_MAX as usize <= BUCKETS, "every member of a view has a number");

/// A point within its bucket: the remaining bits of the hash above the number of its member. Points at one place lie in the order of
/// their members' ids, which the numbers do not give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BucketEntry(u64);

impl BucketEntry {
    const fn new(hash: u64, number: u16) -> Self {
        Self(hash << NUMBER_BITS | number as u64)
    }

    /// Its place within the bucket; comparable with that of another hash in the same bucket.
    const fn place(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    const fn number(self) -> usize {
        (self.0 & NUMBER_MASK) as usize
    }
}

/// The number of points for each member and in total, and the cost of merging the changed ones, as a number of points made from scratch.
struct PointCounts {
    points: Vec<u32>,
    total: u64,
    merged: u64,
}

const fn bucket_of(hash: u64) -> usize {
    // The upper 14 bits.
    (hash >> (u64::BITS - NUMBER_BITS)) as usize
}

/// One member: its number in the entries, which is stable while it is present, and its points on the ring.
#[derive(Debug, Clone)]
struct RingMember {
    id: InstanceId,
    number: u16,
    points: u32,
}

/// Places one view after another, each at the cost of the changes since the one before.
///
/// It takes eight bytes a point and some room to grow. Readers hold the resulting [`SlotOwners`] and never wait for it.
///
/// ```
/// use shardwise_core::{IncrementalRing, InstanceId, PlacementParams, SlotOwners, Weight};
///
/// let fleet = |size| (0..size).map(|i| (InstanceId::new(format!("worker-{i}")).unwrap(), Weight::ONE));
/// let mut ring = IncrementalRing::new(PlacementParams::default());
/// ring.place(fleet(20));
/// assert_eq!(ring.place(fleet(21)), SlotOwners::place(fleet(21), PlacementParams::default()));
/// ```
#[derive(Debug, Clone)]
pub struct IncrementalRing {
    params: PlacementParams,
    hash: PointHash,
    /// Sorted by the bytes of their ids.
    members: Vec<RingMember>,
    /// Released numbers, to be reused first; these and the used ones are all numbers below `members.len() + free.len()`.
    free: Vec<u16>,
    /// Empty, or [`BUCKETS`] many.
    buckets: Vec<Vec<BucketEntry>>,
}

impl IncrementalRing {
    /// An empty ring. `params` must be valid ([`PlacementParams::validated`]).
    pub fn new(params: PlacementParams) -> Self {
        Self::with_hash(params, hash_bytes)
    }

    pub(crate) fn with_hash(params: PlacementParams, hash: PointHash) -> Self {
        Self { params, hash, members: Vec::new(), free: Vec::new(), buckets: Vec::new() }
    }

    /// The placement of a view, equal to [`SlotOwners::of_view`].
    pub fn place_view(&mut self, view: &View) -> SlotOwners {
        self.place(SlotOwners::inputs(view))
    }

    /// The placement of the members, equal to [`SlotOwners::place`].
    pub fn place(&mut self, members: impl IntoIterator<Item = (InstanceId, Weight)>) -> SlotOwners {
        let members = ring::in_order(members);
        let owners = match self.params.kind {
            PlacementKind::Key(_) => Vec::new(),
            _ if !ring::has_points(&members, &self.params) => {
                *self = Self::with_hash(self.params, self.hash);
                Vec::new()
            }
            // More than a view can have, and more than there are numbers.
            _ if members.len() > MEMBERS_MAX as usize => owners(&members, &self.params, self.hash),
            PlacementKind::Ring | PlacementKind::Quota => {
                self.follow(&members);
                self.walk(&members)
            }
        };
        SlotOwners::from_parts(self.params, members, owners)
    }

    /// The points of `members`, which are in order, clockwise; equal to [`ring::sorted_points`].
    pub(crate) fn points_of(&mut self, members: &[(InstanceId, Weight)]) -> Vec<Point> {
        if !ring::has_points(members, &self.params) || members.len() > MEMBERS_MAX as usize {
            return ring::sorted_points(members, self.params.virtual_nodes, self.hash);
        }
        self.follow(members);
        let mut index = vec![0; self.numbers()];
        (0u32..).zip(&self.members).for_each(|(at, member)| index[usize::from(member.number)] = at);
        let mut points = Vec::with_capacity(self.buckets.iter().map(Vec::len).sum());
        for (bucket, entries) in (0u64..).zip(&self.buckets) {
            let place = |entry: &BucketEntry| bucket << (u64::BITS - NUMBER_BITS) | entry.place();
            points.extend(entries.iter().map(|entry| Point { hash: place(entry), member: index[entry.number()] }));
        }
        points
    }

    /// Updates the points to `members`, which are in order, have points, and are no more than there are numbers.
    fn follow(&mut self, members: &[(InstanceId, Weight)]) {
        let PointCounts { points: wanted, total, merged } = self.wanted(members);
        if merged > total {
            return self.fill(members, &wanted, total);
        }
        let (stay, gone) = self.compare(members);
        for old in gone {
            self.remove_points(&old, 0);
            self.free.push(old.number);
        }
        for (old, wanted) in stay.iter().zip(&wanted) {
            if let Some(old) = old {
                self.remove_points(old, *wanted);
            }
        }
        // At most as many numbers as members, see above.
        let mut next = (stay.iter().flatten().count() + self.free.len()) as u16;
        let mut number = || {
            self.free.pop().unwrap_or_else(|| {
                next += 1;
                next - 1
            })
        };
        let had: Vec<u32> = stay.iter().map(|old| old.as_ref().map_or(0, |old| old.points)).collect();
        self.members = stay
            .into_iter()
            .zip(members)
            .zip(&wanted)
            .map(|((old, (id, _)), points)| RingMember {
                id: id.clone(),
                number: old.map_or_else(&mut number, |old| old.number),
                points: *points,
            })
            .collect();
        self.add_points(&had);
    }

    /// The cost of placing `view` next, as a number of points made from scratch: all of them, or the cost of merging the changed ones.
    pub(crate) fn points_to_make(&self, view: &View) -> u64 {
        let PointCounts { total, merged, .. } = self.wanted(&ring::in_order(SlotOwners::inputs(view)));
        merged.min(total)
    }

    /// The points needed for `members`, which are in order, and the cost of getting there.
    fn wanted(&self, members: &[(InstanceId, Weight)]) -> PointCounts {
        let per_weight = ring::points_per_weight(self.params.virtual_nodes, ring::weight_sum(members));
        let points: Vec<u32> = members.iter().map(|(_, weight)| per_weight * u32::from(weight.get())).collect();
        let had = |id| self.members.binary_search_by(|member| member.id.cmp(id)).map_or(0, |at| self.members[at].points);
        let sum = |points: &[u32]| points.iter().copied().map(u64::from).sum::<u64>();
        let had: Vec<u32> = members.iter().map(|(id, _)| had(id)).collect();
        let gone = self.members.iter().map(|member| u64::from(member.points)).sum::<u64>() - sum(&had);
        let changed = gone + points.iter().zip(&had).map(|(wanted, had)| u64::from(wanted.abs_diff(*had))).sum::<u64>();
        // Inserting a point into its bucket costs about four times its share of filling all buckets from scratch.
        PointCounts { total: sum(&points), merged: 4 * changed, points }
    }

    /// For each of `members` its known entry, if any, and the members that left.
    fn compare(&mut self, members: &[(InstanceId, Weight)]) -> (Vec<Option<RingMember>>, Vec<RingMember>) {
        let mut before = std::mem::take(&mut self.members).into_iter().peekable();
        let mut gone = Vec::new();
        let stay = members.iter().map(|(id, _)| {
            gone.extend(std::iter::from_fn(|| before.next_if(|old| old.id < *id)));
            before.next_if(|old| old.id == *id)
        });
        let stay = stay.collect();
        gone.extend(before);
        (stay, gone)
    }

    /// Makes all points from scratch.
    fn fill(&mut self, members: &[(InstanceId, Weight)], wanted: &[u32], total: u64) {
        // Most buckets exceed the mean by less than twice its root; the others grow. At most POINTS_MAX points, so it fits.
        let mean = total as usize / BUCKETS;
        let room = if mean == 0 { 0 } else { mean + 2 * mean.isqrt() };
        self.free.clear();
        self.buckets = std::iter::repeat_with(|| Vec::with_capacity(room)).take(BUCKETS).collect();
        // Fewer members than numbers, see `follow`.
        let numbered = |((number, (id, _)), points): ((usize, &(InstanceId, Weight)), &u32)| RingMember {
            id: id.clone(),
            number: number as u16,
            points: *points,
        };
        self.members = members.iter().enumerate().zip(wanted).map(numbered).collect();
        for RingMember { id, number, points } in &self.members {
            ring::each_point(id, 0..*points, self.hash, |hash| {
                grow(&mut self.buckets[bucket_of(hash)]).push(BucketEntry::new(hash, *number));
            });
        }
        // Numbers are in the order of the ids here, so the order of the entries is the protocol's.
        self.buckets.iter_mut().for_each(|bucket| bucket.sort_unstable());
    }

    /// Removes a member's points from number `keep` on.
    fn remove_points(&mut self, old: &RingMember, keep: u32) {
        ring::each_point(&old.id, keep..old.points, self.hash, |hash| {
            let (bucket, entry) = (&mut self.buckets[bucket_of(hash)], BucketEntry::new(hash, old.number));
            let first = bucket.partition_point(|other| other.place() < entry.place());
            if let Some(at) = bucket[first..].iter().position(|other| *other == entry) {
                bucket.remove(first + at);
            }
        });
    }

    /// Adds every member's points beyond those that it had.
    fn add_points(&mut self, had: &[u32]) {
        let mut rank = vec![0; self.numbers()];
        (0u32..).zip(&self.members).for_each(|(at, member)| rank[usize::from(member.number)] = at);
        for (RingMember { id, number, points }, had) in self.members.iter().zip(had) {
            let mine = rank[usize::from(*number)];
            ring::each_point(id, *had..*points, self.hash, |hash| {
                let (bucket, entry) = (grow(&mut self.buckets[bucket_of(hash)]), BucketEntry::new(hash, *number));
                let place = entry.place();
                let before = |other: &BucketEntry| other.place() < place || other.place() == place && rank[other.number()] < mine;
                bucket.insert(bucket.partition_point(before), entry);
            });
        }
    }

    /// An upper bound on the numbers.
    fn numbers(&self) -> usize {
        self.members.len() + self.free.len()
    }

    /// Rules 4 and 5, and 9 of `quota`, on the buckets: the owner of every slot as an index into `members`.
    fn walk(&self, members: &[(InstanceId, Weight)]) -> Vec<u32> {
        let (mut room, mut index) = (vec![0; self.numbers()], vec![0; self.numbers()]);
        let mut capacities = ring::capacities(members, self.params.slots, self.params.load_margin);
        let mut classes = Classes::of(members, &self.params, self.hash);
        if let Some(classes) = &classes {
            classes.limit(&mut capacities);
        }
        for ((at, member), capacity) in (0u32..).zip(&self.members).zip(capacities) {
            (room[usize::from(member.number)], index[usize::from(member.number)]) = (capacity, at);
        }
        // With few points most buckets are empty; skip them once here instead of for every slot.
        let filled: Vec<(usize, &[BucketEntry])> =
            self.buckets.iter().enumerate().filter(|(_, bucket)| !bucket.is_empty()).map(|(at, bucket)| (at, &bucket[..])).collect();
        let (mut first, mut within) = (0, 0);
        let place = |slot| {
            let start = slot_start(slot, self.params.slots);
            let (bucket, place) = (bucket_of(start), BucketEntry::new(start, 0).place());
            // The first point at or after the start; the next slot's is not before it.
            while let Some((at, entries)) = filled.get(first)
                && (*at < bucket || *at == bucket && entries[within..].first().is_none_or(|entry| entry.place() < place))
            {
                (first, within) = if *at == bucket && within < entries.len() { (first, within + 1) } else { (first + 1, 0) };
            }
            let (here, clockwise) = match filled.get(first) {
                Some((_, entries)) => (&entries[within..], filled[first + 1..].iter().chain(&filled[..=first])),
                None => (&[][..], filled.iter().chain(&[])),
            };
            let free = |entry: &&BucketEntry| room[entry.number()] > 0;
            let taker = here.iter().find(free).or_else(|| clockwise.flat_map(|(_, entries)| *entries).find(free));
            // Room is left for every slot, see `ring::owners`; 0 avoids a panic.
            let number = taker.map_or(0, |entry| entry.number());
            room[number] = room[number].saturating_sub(1);
            if let Some(classes) = &mut classes {
                classes.take(index[number] as usize, |member| room[usize::from(self.members[member].number)] = 0);
            }
            index[number]
        };
        let mut owners: Vec<u32> = (0..self.params.slots).map(place).collect();
        if let Some(classes) = &mut classes {
            classes.fill(members, &self.params, self.hash, &mut owners);
        }
        owners
    }
}

/// Makes room for one more. A bucket grows by an eighth instead of doubling: there are thousands, and most never need more.
fn grow(bucket: &mut Vec<BucketEntry>) -> &mut Vec<BucketEntry> {
    if bucket.len() == bucket.capacity() {
        bucket.reserve_exact(bucket.len() / 8 + 2);
    }
    bucket
}

mod names;
#[cfg(test)]
mod tests;
