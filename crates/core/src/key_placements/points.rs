//! Points of members on a ring, in order.

use crate::{InstanceId, Weight};

/// A place on another fleet's ring.
pub(super) trait RingPosition: Copy + Ord {
    /// Passes the places of points 0 to `points - 1` of the member `id` to `put`.
    fn each_point(id: &str, points: u32, put: impl FnMut(Self));

    /// The point that owns a key at `key`; `None` without points. `points` are sorted.
    fn find(points: &[(Self, u32)], key: Self) -> Option<(Self, u32)>;
}

/// Every point of every member: its place, and its member's position among the members in order. Sorted by both.
#[derive(Debug)]
pub(super) struct Points<C>(Vec<(C, u32)>);

impl<C: RingPosition> Points<C> {
    /// `per_weight` points per unit of weight for each of `members`, which are in order.
    pub(super) fn new(members: &[(InstanceId, Weight)], per_weight: u32) -> Self {
        Self(sorted(members.iter().zip(0..), per_weight))
    }

    /// Equal to [`Points::new`] for `members`, reusing these points, which were made for `had`: only those of newcomers are computed. It
    /// takes one pass over the points and the memory of the result.
    pub(super) fn follow(&self, had: &[(InstanceId, Weight)], members: &[(InstanceId, Weight)], per_weight: u32) -> Self {
        let position = |member| members.binary_search(member).ok().and_then(|at| u32::try_from(at).ok());
        let positions: Vec<Option<u32>> = had.iter().map(position).collect();
        let mut stay = self.0.iter().filter_map(|(place, member)| Some((*place, positions[*member as usize]?))).peekable();
        let mut points = Vec::with_capacity(count(members.iter(), per_weight));
        let newcomers = members.iter().zip(0..).filter(|(member, _)| had.binary_search(member).is_err());
        for point in sorted(newcomers, per_weight) {
            while let Some(before) = stay.next_if(|old| *old < point) {
                points.push(before);
            }
            points.push(point);
        }
        points.extend(stay);
        Self(points)
    }

    /// The point that owns a key at `key`, and its member; `None` without points.
    pub(super) fn find(&self, key: C) -> Option<(C, u32)> {
        C::find(&self.0, key)
    }
}

fn count<'a>(members: impl Iterator<Item = &'a (InstanceId, Weight)>, per_weight: u32) -> usize {
    members.map(|(_, weight)| per_weight as usize * usize::from(weight.get())).sum()
}

fn sorted<'a, C: RingPosition>(members: impl Iterator<Item = (&'a (InstanceId, Weight), u32)> + Clone, per_weight: u32) -> Vec<(C, u32)> {
    let mut points = Vec::with_capacity(count(members.clone().map(|(member, _)| member), per_weight));
    for ((id, weight), member) in members {
        C::each_point(id.as_str(), per_weight * u32::from(weight.get()), |place| points.push((place, member)));
    }
    points.sort_unstable();
    points
}
