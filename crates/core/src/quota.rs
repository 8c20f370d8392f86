//! Placement `quota`, protocol 5: the ring of protocol 1, on which the members of each weight together get what their weight entitles
//! them to (rule 9 of `docs/reference/placement.md`, ADR 0022).
//!
//! The limit of protocol 1 cuts off what a light member gets by chance above its share and returns nothing below it. Here the members of
//! one weight together stay within 1 % of their share: above it their points are skipped, and below it they take the missing slots. Among
//! members of one weight protocol 1 applies unchanged, and where all weights are equal the whole placement does.

#![expect(clippy::cast_possible_truncation, reason = "each cast says beside it why the value fits")]

use crate::ring::{self, PointHash};
use crate::{InstanceId, PlacementKind, PlacementParams, Weight, slot_of};

/// How far the members of one weight together may deviate from their share, in thousandths of it.
const BAND: u64 = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    weight: Weight,
    /// The least and the most slots that they may have together.
    least: u32,
    most: u32,
    taken: u32,
}

/// The members grouped by weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Classes {
    /// In ascending weight, which is at most 100.
    classes: Vec<Class>,
    of: Vec<u8>,
}

/// The slots of all members of one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightClassLoad {
    /// The slots that they had when this one was placed.
    pub slots: u32,
    /// The most slots that they may have.
    pub most: u32,
}

/// A slot taken from its first owner so that a class reaches its least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TransferredSlot {
    pub(crate) slot: u32,
    pub(crate) to: u32,
    /// The number of the point that took it, and its place.
    pub(crate) point: u32,
    pub(crate) place: u64,
    /// How many slots the member had before.
    pub(crate) had: u32,
}

impl Classes {
    /// The classes of `members`, which are in order; `None` where classes change nothing: under other placements and with equal weights.
    pub(crate) fn of(members: &[(InstanceId, Weight)], params: &PlacementParams, hash: PointHash) -> Option<Self> {
        let mut weights: Vec<_> = members.iter().map(|(_, weight)| *weight).collect();
        weights.sort_unstable();
        weights.dedup();
        if params.kind != PlacementKind::Quota || weights.len() < 2 {
            return None;
        }
        // Weights are at most 100, and every one of them is found.
        let of: Vec<u8> = members.iter().map(|(_, weight)| weights.partition_point(|other| other < weight) as u8).collect();
        let (slots, sum) = (u64::from(params.slots), ring::weight_sum(members));
        let totals: Vec<u64> = (0..weights.len())
            .map(|class| of.iter().filter(|of| usize::from(**of) == class).count() as u64 * u64::from(weights[class].get()))
            .collect();
        let quotas = quotas(&totals, slots, sum, |class| {
            // Each class has a member, and the first is the one with the smallest id.
            let first = of.iter().position(|of| usize::from(*of) == class).unwrap_or(0);
            hash(members[first].0.as_str().as_bytes())
        });
        let class = |((weight, total), quota): ((Weight, u64), u64)| Class {
            weight,
            // A class's least is at most its quota and its most at least that, and quotas add up to `slots`: all of it is at most 65,536.
            least: (slots * total * (1_000 - BAND)).div_ceil(1_000 * sum).min(quota) as u32,
            most: (slots * total * (1_000 + BAND) / (1_000 * sum)).max(quota).min(slots) as u32,
            taken: 0,
        };
        Some(Self { classes: weights.into_iter().zip(totals).zip(quotas).map(class).collect(), of })
    }

    pub(crate) fn limit(&self, room: &mut [u32]) {
        for (room, class) in room.iter_mut().zip(&self.of) {
            *room = (*room).min(self.classes[usize::from(*class)].most);
        }
    }

    /// Counts one more slot for this member. If its class then has its most, calls `full` for each of its members.
    pub(crate) fn take(&mut self, member: usize, full: impl FnMut(usize)) {
        let of = self.of[member];
        let class = &mut self.classes[usize::from(of)];
        class.taken += 1;
        if class.taken >= class.most {
            (0..self.of.len()).filter(|other| self.of[*other] == of).for_each(full);
        }
    }

    /// How many slots the members of this one's weight have together, including `more`, and their most.
    pub(crate) fn together(&self, member: usize, more: u32) -> WeightClassLoad {
        let class = &self.classes[usize::from(self.of[member])];
        WeightClassLoad { slots: class.taken + more, most: class.most }
    }

    /// Whether both have the same weight.
    pub(crate) fn is_same(&self, one: usize, other: usize) -> bool {
        self.of[one] == self.of[other]
    }

    /// Brings every class to its least, after the walk has assigned all slots.
    ///
    /// Classes take in ascending weight. The members of a class take in turn, the smaller id first, each by its point 0, then each by its
    /// point 1 and so on: the slot that contains the point, if the member is not full and the owner is in another class that has more
    /// than its least. If that is not enough, they repeat this with the slot before that one, and so on.
    pub(crate) fn fill(
        &mut self,
        members: &[(InstanceId, Weight)],
        params: &PlacementParams,
        hash: PointHash,
        owners: &mut [u32],
    ) -> Vec<TransferredSlot> {
        let mut room = ring::capacities(members, params.slots, params.load_margin);
        let capacities = room.clone();
        for owner in owners.iter() {
            room[*owner as usize] = room[*owner as usize].saturating_sub(1);
        }
        let per_weight = ring::points_per_weight(params.virtual_nodes, ring::weight_sum(members));
        let mut given = Vec::new();
        for class in 0..self.classes.len() {
            // There are at most MEMBERS_MAX members in a view and 65,536 slots.
            let mine: Vec<u32> = (0..self.of.len() as u32).filter(|member| usize::from(self.of[*member as usize]) == class).collect();
            let points = per_weight * u32::from(self.classes[class].weight.get());
            let tries = (0..params.slots).flat_map(|back| (0..points).map(move |point| (back, point)));
            let mut tries = tries.flat_map(|(back, point)| mine.iter().map(move |member| (back, point, *member)));
            while self.classes[class].taken < self.classes[class].least
                // Another class has more than its quota in some slot, and a member of this class is below its limit.
                && let Some((back, point, member)) = tries.next()
            {
                let to = member as usize;
                if room[to] == 0 {
                    continue;
                }
                let mut place = 0;
                ring::each_point(&members[to].0, point..point + 1, hash, |hash| place = hash);
                let slot = (slot_of(place, params.slots) + params.slots - back) % params.slots;
                let from = owners[slot as usize] as usize;
                let giver = usize::from(self.of[from]);
                if giver == class || self.classes[giver].taken <= self.classes[giver].least {
                    continue;
                }
                given.push(TransferredSlot { slot, to: member, point, place, had: capacities[to] - room[to] });
                owners[slot as usize] = member;
                room[from] += 1;
                room[to] -= 1;
                self.classes[giver].taken -= 1;
                self.classes[class].taken += 1;
            }
        }
        given
    }
}

/// The quota of each class in whole slots, adding up to `slots`: rounded down, plus one for as many classes as needed. Classes with a
/// larger remainder tend to come first: they are ordered by draw over remainder, where the draw is the upper half of `hash`.
fn quotas(totals: &[u64], slots: u64, sum: u64, hash: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut quotas: Vec<u64> = totals.iter().map(|total| slots * total / sum).collect();
    let more = slots - quotas.iter().sum::<u64>();
    let mut drawn: Vec<_> = (0..totals.len()).map(|class| (hash(class) >> 32, slots * totals[class] % sum, class)).collect();
    drawn.retain(|(_, cut, _)| *cut > 0);
    // Draws have 32 bits, and remainders are below the sum of the weights, so the products fit.
    drawn.sort_by(|one, other| (one.0 * other.1).cmp(&(other.0 * one.1)).then(one.2.cmp(&other.2)));
    for (_, _, class) in drawn.into_iter().take(more as usize) {
        quotas[class] += 1;
    }
    quotas
}

#[cfg(test)]
mod tests;
