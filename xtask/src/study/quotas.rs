//! Placement `quota` beside `ring`, over fleets whose weights differ.

use shardwise_core::{Circle, NameError, PlacementKind, PlacementParams, Weight};

use super::measure::{Case, Spread, constants, member, moves, spread};
use super::weights::{FLEETS_PROMISED, WeightFigures, WeightedFleets, by_weight, off};

/// What both gave for one kind of fleet: first `ring`, then `quota`.
#[derive(Debug, Clone)]
pub(super) struct QuotaComparison {
    pub(super) of: WeightedFleets,
    /// How far the mean share of any weight is off.
    pub(super) off: [f64; 2],
    /// The slots of the worst single members over what they are entitled to: the least and the most of all fleets.
    pub(super) single: [(f64, f64); 2],
    /// Slots that move when one member joins, over the newcomer's exact share.
    pub(super) moved: [Spread; 2],
}

/// A fleet's weights with their name, its members and its slots.
type QuotaFleet = (&'static str, &'static [u64], u32, u32);
/// All of these have to be reached.
const FLEETS: [QuotaFleet; 8] = [
    ("1 to 4", &[1, 2, 3, 4], 20, 16_384),
    ("1 to 4", &[1, 2, 3, 4], 50, 16_384),
    ("1 to 10", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 50, 16_384),
    ("1 and 10", &[1, 10], 50, 16_384),
    ("1, 10 and 100", &[1, 10, 100], 20, 16_384),
    ("1, 10 and 100", &[1, 10, 100], 20, 65_536),
    ("each of 1 to 100", &[], 100, 16_384),
    ("each of 1 to 100", &[], 100, 65_536),
];

/// Measures all of them.
pub(super) fn beside() -> Result<Vec<QuotaComparison>, NameError> {
    FLEETS.iter().map(one).collect()
}

fn one((name, weights, members, slots): &QuotaFleet) -> Result<QuotaComparison, NameError> {
    let default = PlacementParams::default();
    let all: Vec<u64> = if weights.is_empty() { (1..=100).collect() } else { weights.to_vec() };
    let weights: Vec<_> = all.into_iter().filter_map(Weight::new).collect();
    let of = |kind| {
        let params = PlacementParams { kind, ..constants(*slots, default.virtual_nodes, default.load_margin) };
        WeightedFleets { name, weights: weights.clone(), case: Case { members: *members, params, fleets: FLEETS_PROMISED } }
    };
    let (ring, quota) = (of(PlacementKind::Ring), of(PlacementKind::Quota));
    let [by_ring, by_quota] = [by_weight(&ring)?, by_weight(&quota)?];
    let off = [off(&by_ring), off(&by_quota)];
    let single = [single(&by_ring), single(&by_quota)];
    let moved = [moved(&ring)?, moved(&quota)?];
    Ok(QuotaComparison { of: quota, off, single, moved })
}

fn single(weights: &[WeightFigures]) -> (f64, f64) {
    let least = weights.iter().map(|of| of.least).fold(f64::INFINITY, f64::min);
    (least, weights.iter().map(|of| of.most).fold(0.0, f64::max))
}

/// What one more member, of the weight that is next, moves over what it is entitled to.
fn moved(of: &WeightedFleets) -> Result<Spread, NameError> {
    let Case { members, params, fleets } = of.case;
    let ratio = |fleet| {
        let weights = of.weights.iter().cycle();
        let all = (0..=members).zip(weights).map(|(number, weight)| member(fleet, number, *weight)).collect::<Result<Vec<_>, _>>()?;
        let sum: f64 = all.iter().map(|(_, weight)| f64::from(weight.get())).sum();
        let newcomer = all.last().map_or(f64::NAN, |(_, weight)| f64::from(weight.get()));
        let mut circle = Circle::new(params);
        let before = circle.place(all.iter().take(members as usize).cloned());
        let after = circle.place(all);
        Ok(f64::from(moves(&before, &after)) * sum / (f64::from(params.slots) * newcomer))
    };
    Ok(spread(&(0..fleets).map(ratio).collect::<Result<Vec<_>, _>>()?, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_and_the_quota_are_measured_on_the_same_fleets() {
        let QuotaComparison { of, off: [ring, quota], single, moved } = one(&("1 and 10", &[1, 10], 4, 512)).unwrap();
        assert_eq!((of.case.fleets, of.case.params.kind), (FLEETS_PROMISED, PlacementKind::Quota));
        assert!(quota < 0.03 && ring > quota, "off by {ring} and {quota}");
        assert!(single.iter().all(|(least, most)| *least < 1.0 && *most > 1.0), "{single:?}");
        assert!(moved.iter().all(|moved| (0.5..2.0).contains(&moved.mean) && moved.worst >= moved.mean), "{moved:?}");
    }
}
