//! Members of different weights: how near the share of each weight comes to what it is entitled to, why not nearer, and from how many slots on
//! it is near enough.

use shardwise_core::{InstanceId, LoadMargin, NameError, PlacementParams, SlotOwners, Weight};

use super::measure::{Case, constants, member, spread};

/// How far the mean share of a weight may be off.
pub(super) const OFF_MAX: f64 = 0.02;
/// The fleets over which it is promised.
pub(super) const FLEETS_PROMISED: u32 = 20;
/// Numbers of slots that are tried, the largest first.
const SLOTS: [u32; 11] = [65_536, 49_152, 32_768, 24_576, 16_384, 12_288, 8_192, 6_144, 4_096, 3_072, 2_048];

/// How members of one weight did, over all fleets: their slots over what the weight entitles them to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WeightFigures {
    pub(super) weight: u8,
    pub(super) mean: f64,
    /// The standard error of that mean.
    pub(super) error: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    /// Half of the members deviate by less.
    pub(super) median_deviation: f64,
}

/// Fleets whose weights are taken from a list in turn.
#[derive(Debug, Clone)]
pub(super) struct WeightedFleets {
    /// The weights as the page calls them.
    pub(super) name: &'static str,
    pub(super) weights: Vec<Weight>,
    pub(super) case: Case,
}

impl WeightedFleets {
    /// A fleet's members.
    fn members(&self, fleet: u32) -> Result<Vec<(InstanceId, Weight)>, NameError> {
        (0..self.case.members).zip(self.weights.iter().cycle()).map(|(number, weight)| member(fleet, number, *weight)).collect()
    }

    /// The slots that the lightest member is entitled to.
    pub(super) fn lightest(&self) -> f64 {
        let members = self.weights.iter().cycle().take(self.case.members as usize).map(|weight| f64::from(weight.get()));
        let lightest = members.clone().fold(f64::INFINITY, f64::min);
        f64::from(self.case.params.slots) * lightest / members.sum::<f64>()
    }
}

/// How the members of each weight did, in the order of the weights.
pub(super) fn by_weight(of: &WeightedFleets) -> Result<Vec<WeightFigures>, NameError> {
    let Case { params, fleets, .. } = of.case;
    let mut ratios: Vec<(u8, f64)> = Vec::new();
    for fleet in 0..fleets {
        let placed = SlotOwners::place(of.members(fleet)?, params);
        let sum: f64 = placed.members().iter().map(|(_, weight)| f64::from(weight.get())).sum();
        let ratio = |(id, weight): &(InstanceId, Weight)| {
            let fair = f64::from(params.slots) * f64::from(weight.get()) / sum;
            (weight.get(), f64::from(placed.slots_of(id).len()) / fair)
        };
        ratios.extend(placed.members().iter().map(ratio));
    }
    let mut known: Vec<u8> = ratios.iter().map(|(weight, _)| *weight).collect();
    known.sort_unstable();
    known.dedup();
    let of = |weight: u8| {
        let ratios: Vec<f64> = ratios.iter().filter(|(w, _)| *w == weight).map(|(_, ratio)| *ratio).collect();
        let (most, least) = (spread(&ratios, f64::max), spread(&ratios, f64::min));
        let mut deviations: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect();
        deviations.sort_by(f64::total_cmp);
        let median_deviation = deviations.get(deviations.len() / 2).copied().unwrap_or(f64::NAN);
        let variance = ratios.iter().map(|ratio| (ratio - most.mean).powi(2)).sum::<f64>() / (ratios.len() as f64 - 1.0);
        let error = (variance / ratios.len() as f64).sqrt();
        WeightFigures { weight, mean: most.mean, error, least: least.worst, most: most.worst, median_deviation }
    };
    Ok(known.into_iter().map(of).collect())
}

/// How far the mean share of any weight is off.
pub(super) fn off(weights: &[WeightFigures]) -> f64 {
    weights.iter().map(|of| (of.mean - 1.0).abs()).fold(0.0, f64::max)
}

/// From how many slots on the mean share of every weight is near enough, and where it is not any more.
#[derive(Debug, Clone)]
pub(super) struct EnoughSlots {
    /// With as many slots as are enough; `None` if no number that was tried is.
    pub(super) with: Option<(WeightedFleets, f64)>,
    /// With the next number below, or the largest of all.
    pub(super) below: Option<(WeightedFleets, f64)>,
}

/// The smallest number of slots that was tried from which on the promise holds with every larger one too.
pub(super) fn enough(name: &'static str, weights: &[Weight], members: u32, margin: LoadMargin) -> Result<EnoughSlots, NameError> {
    let mut enough = EnoughSlots { with: None, below: None };
    for slots in SLOTS {
        let params = constants(slots, PlacementParams::default().virtual_nodes, margin);
        let of = WeightedFleets { name, weights: weights.into(), case: Case { members, params, fleets: FLEETS_PROMISED } };
        let off = off(&by_weight(&of)?);
        if off > OFF_MAX {
            enough.below = Some((of, off));
            break;
        }
        enough.with = Some((of, off));
    }
    Ok(enough)
}

/// Where the slots of a weight's members come from, each over what the weight entitles to, in the mean of all fleets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SlotFlow {
    pub(super) weight: u8,
    /// Those for which a member's point is the first: what it would have without a margin.
    pub(super) first: f64,
    /// Of these, those that the member was too full to take.
    pub(super) refused: f64,
    /// Those that others were too full to take.
    pub(super) passed_on: f64,
}

/// What the margin takes from the members of each weight and what it gives them, in the order of the weights.
pub(super) fn flows(of: &WeightedFleets) -> Result<Vec<SlotFlow>, NameError> {
    let mut sums: Vec<(SlotFlow, f64)> = Vec::new();
    for fleet in 0..of.case.fleets {
        let members = of.members(fleet)?;
        let bounded = SlotOwners::place(members.clone(), of.case.params);
        let classic = SlotOwners::place(members, PlacementParams { load_margin: LoadMargin::None, ..of.case.params });
        let sum: f64 = classic.members().iter().map(|(_, weight)| f64::from(weight.get())).sum();
        for (id, weight) in classic.members() {
            let share = |slots: u32| f64::from(slots) * sum / f64::from(of.case.params.slots) / f64::from(weight.get());
            let (first, has) = (classic.slots_of(id), bounded.slots_of(id));
            let (refused, passed_on) = (share(first.minus(&has).len()), share(has.minus(&first).len()));
            let at = sums.iter().position(|(flow, _)| flow.weight == weight.get()).unwrap_or_else(|| {
                sums.push((SlotFlow { weight: weight.get(), first: 0.0, refused: 0.0, passed_on: 0.0 }, 0.0));
                sums.len() - 1
            });
            let (flow, count) = &mut sums[at];
            *flow = SlotFlow {
                weight: flow.weight,
                first: flow.first + share(first.len()),
                refused: flow.refused + refused,
                passed_on: flow.passed_on + passed_on,
            };
            *count += 1.0;
        }
    }
    sums.sort_by_key(|(flow, _)| flow.weight);
    let mean = |(flow, count): (SlotFlow, f64)| SlotFlow {
        weight: flow.weight,
        first: flow.first / count,
        refused: flow.refused / count,
        passed_on: flow.passed_on / count,
    };
    Ok(sums.into_iter().map(mean).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_apart_by_weight() {
        let case = Case { members: 4, params: constants(10_000, 256, LoadMargin::DEFAULT), fleets: 5 };
        let of = WeightedFleets { name: "1 and 3", weights: vec![Weight::ONE, Weight::new(3).unwrap()], case };
        assert!((of.lightest() - 1_250.0).abs() < 1e-9);
        let told = by_weight(&of).unwrap();
        assert_eq!(told.iter().map(|of| of.weight).collect::<Vec<_>>(), [1, 3]);
        for of in told {
            assert!(of.least <= of.mean && of.mean <= of.most && of.most <= 1.051 && of.error < 0.1 && of.median_deviation < 0.2, "{of:?}");
        }
    }

    #[test]
    fn what_comes_and_goes_is_what_is_there() {
        let case = Case { members: 6, params: constants(2_000, 64, LoadMargin::DEFAULT), fleets: 4 };
        let of = WeightedFleets { name: "1 and 9", weights: vec![Weight::ONE, Weight::new(9).unwrap()], case };
        let (told, flows) = (by_weight(&of).unwrap(), flows(&of).unwrap());
        for (by, flow) in told.iter().zip(&flows) {
            assert!(by.weight == flow.weight && (flow.first - flow.refused + flow.passed_on - by.mean).abs() < 1e-9, "{by:?} {flow:?}");
        }
        assert!(flows.len() == 2 && flows.iter().any(|flow| flow.refused > 0.0 && flow.first > 0.0), "{flows:?}");
    }

    #[test]
    fn enough_slots_are_found_between_those_that_are_and_those_that_are_not() {
        let equal = enough("1", &[Weight::ONE], 4, LoadMargin::DEFAULT).unwrap();
        assert!(equal.below.is_none() && equal.with.is_some_and(|(of, off)| of.case.params.slots == 2_048 && off < 1e-9));
        let weights: Vec<_> = [1, 10].into_iter().filter_map(Weight::new).collect();
        let EnoughSlots { with: Some((with, off)), below: Some((below, too_far)) } =
            enough("1 and 10", &weights, 10, LoadMargin::DEFAULT).unwrap()
        else {
            unreachable!("65,536 slots are enough, and 2,048 are not")
        };
        assert!(with.case.params.slots > below.case.params.slots && off <= OFF_MAX && too_far > OFF_MAX, "{off} and {too_far}");
    }
}
