//! `cargo xtask placement-study`: prints how even the placement is and how much moves, over fleets and constants. No randomness: a fleet's
//! number is in its members' names, and the same run gives the same figures.

use std::collections::BTreeMap;

use shardwise_core::{Balance, Circle, InstanceId, LoadMargin, NameError, PlacementKind, PlacementParams, SlotOwners, Weight};

use crate::report::say;
use crate::run::TaskFailure;

/// Sizes of the fleets with the default constants.
const SIZES: [u32; 11] = [2, 3, 5, 10, 20, 50, 100, 200, 300, 500, 1_000];
/// Sizes with other constants.
const FEW_SIZES: [u32; 5] = [3, 10, 50, 200, 1_000];
/// Fleets of each size up to 300 members with the default constants, and of all others.
const FLEETS: u32 = 200;
const FEWER_FLEETS: u32 = 30;
/// Fleets of different weights.
const WEIGHTED_FLEETS: u32 = 20;
/// The weights that members have in turn, the members and the slots of fleets of different weights.
const WEIGHTED: [(&[u64], u32, u32); 6] = [
    (&[1, 2, 3, 4], 20, 16_384),
    (&[1, 2, 3, 4], 50, 16_384),
    (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 50, 16_384),
    (&[1, 10], 50, 16_384),
    (&[1, 10, 100], 20, 16_384),
    (&[1, 10, 100], 20, 65_536),
];

/// Equal fleets of one size under the same constants.
struct Case {
    members: u32,
    params: PlacementParams,
    fleets: u32,
}

/// Mean and worst over the fleets of a case.
#[derive(Debug, PartialEq)]
struct Spread {
    mean: f64,
    worst: f64,
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}, {:.3}", self.mean, self.worst)
    }
}

/// Measures and prints the tables of `docs/internals/placement-study.md`.
pub(crate) fn run() -> Result<(), TaskFailure> {
    let failed = |error: NameError| TaskFailure::new(error.to_string());
    say("| members | slots | points | margin | peak | least | moved |\n|---:|---:|---:|---:|---:|---:|---:|");
    for case in cases() {
        say(&row(&case).map_err(failed)?);
    }
    say("\n| weights | members | slots | off: `ring` | off: `quota` | moved: `ring` | moved: `quota` \
         |\n|---|---:|---:|---:|---:|---:|---:|");
    for (weights, members, slots) in WEIGHTED {
        let under = |kind| weighted(weights, members, PlacementParams { slots, kind, ..PlacementParams::default() });
        let (ring, quota) = (under(PlacementKind::Ring).map_err(failed)?, under(PlacementKind::Quota).map_err(failed)?);
        let off = [&ring, &quota].map(|(off, _)| off * 100.0);
        say(&format!("| {weights:?} | {members} | {slots} | {:.2} % | {:.2} % | {} | {} |", off[0], off[1], ring.1, quota.1));
    }
    Ok(())
}

/// The default constants, 65,536 slots, and one constant changed at a time.
fn cases() -> Vec<Case> {
    let default = PlacementParams::default();
    let of_size = |members, params| Case { members, params, fleets: if members <= 300 { FLEETS } else { FEWER_FLEETS } };
    let mut cases: Vec<Case> = SIZES.map(|members| of_size(members, default)).into();
    let fine = PlacementParams { slots: 65_536, ..default };
    cases.extend(SIZES.into_iter().filter(|members| *members >= 50).map(|members| of_size(members, fine)));
    let slots = [1_024, 4_096].map(|slots| PlacementParams { slots, ..default });
    let points = [160, 512, 4_096].map(|virtual_nodes| PlacementParams { virtual_nodes, ..default });
    let margins = [20, 80, 100, 250].map(LoadMargin::Thousandths).into_iter().chain([LoadMargin::None]);
    let margins = margins.map(|load_margin| PlacementParams { load_margin, ..default });
    let others = slots.into_iter().chain(points).chain(margins);
    cases.extend(others.flat_map(|params| FEW_SIZES.map(|members| Case { members, params, fleets: FEWER_FLEETS })));
    cases
}

fn row(case: &Case) -> Result<String, NameError> {
    let [peak, least, moved] = measure(case)?;
    let PlacementParams { slots, virtual_nodes, load_margin, .. } = case.params;
    let margin = match load_margin {
        LoadMargin::None => "none".into(),
        LoadMargin::Thousandths(margin) => format!("{} %", f64::from(margin) / 10.0),
    };
    Ok(format!("| {} | {slots} | {virtual_nodes} | {margin} | {peak} | {least} | {moved} |", case.members))
}

/// The busiest and the least loaded member over the mean, and the slots that move when one joins over the newcomer's exact share.
fn measure(case: &Case) -> Result<[Spread; 3], NameError> {
    let (mut peak, mut least, mut moved) = (Vec::new(), Vec::new(), Vec::new());
    for fleet in 0..case.fleets {
        let (before, _, ratio) = one_more_joins(fleet, &[Weight::ONE], case.members, case.params)?;
        let balance = Balance::of(&before);
        peak.push(balance.peak);
        least.push(balance.least);
        moved.push(ratio);
    }
    Ok([spread(&peak, f64::max), spread(&least, f64::min), spread(&moved, f64::max)])
}

/// How far the mean share of any weight is from the weight, and what one more member moves over what it is entitled to.
fn weighted(weights: &[u64], members: u32, params: PlacementParams) -> Result<(f64, Spread), NameError> {
    let weights: Vec<_> = weights.iter().copied().filter_map(Weight::new).collect();
    let (mut shares, mut moved) = (BTreeMap::<u8, Vec<f64>>::new(), Vec::new());
    for fleet in 0..WEIGHTED_FLEETS {
        let (before, sum, ratio) = one_more_joins(fleet, &weights, members, params)?;
        moved.push(ratio);
        for (id, weight) in before.members() {
            let fair = f64::from(params.slots) * f64::from(weight.get()) / sum;
            shares.entry(weight.get()).or_default().push(f64::from(before.slots_of(id).len()) / fair);
        }
    }
    let off = shares.values().map(|shares| (spread(shares, f64::max).mean - 1.0).abs()).fold(0.0, f64::max);
    Ok((off, spread(&moved, f64::max)))
}

/// The placement of a fleet whose members have these weights in turn, the sum of its weights, and the slots that move when one more joins
/// over what that one is entitled to.
fn one_more_joins(fleet: u32, weights: &[Weight], members: u32, params: PlacementParams) -> Result<(SlotOwners, f64, f64), NameError> {
    let member = |(number, weight): (u32, &Weight)| Ok((InstanceId::new(format!("worker-{fleet}-{number}"))?, *weight));
    let all = (0..=members).zip(weights.iter().cycle()).map(member).collect::<Result<Vec<_>, NameError>>()?;
    let sum: f64 = all.iter().map(|(_, weight)| f64::from(weight.get())).sum();
    let newcomer = all.last().map_or(f64::NAN, |(_, weight)| f64::from(weight.get()));
    let mut circle = Circle::new(params);
    let before = circle.place(all.iter().take(members as usize).cloned());
    let after = circle.place(all);
    let moves: u32 = (0..params.slots).map(|slot| u32::from(before.owner_of_slot(slot) != after.owner_of_slot(slot))).sum();
    Ok((before, sum - newcomer, f64::from(moves) * sum / (f64::from(params.slots) * newcomer)))
}

fn spread(values: &[f64], worst: fn(f64, f64) -> f64) -> Spread {
    Spread { mean: values.iter().sum::<f64>() / values.len() as f64, worst: values.iter().copied().reduce(worst).unwrap_or(f64::NAN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_member_more_beside_one_takes_about_half() {
        let params = PlacementParams { slots: 1_000, virtual_nodes: 64, load_margin: LoadMargin::None, ..PlacementParams::default() };
        let [peak, least, moved] = measure(&Case { members: 1, params, fleets: 3 }).unwrap();
        assert!((peak.worst - 1.0).abs() < 1e-9 && (least.worst - 1.0).abs() < 1e-9, "alone it has all: {peak} {least}");
        assert!((0.5..1.5).contains(&moved.mean), "{moved}");
    }

    #[test]
    fn the_default_constants_are_as_the_page_says() {
        let measured = row(&Case { members: 2, params: PlacementParams::default(), fleets: FLEETS }).unwrap();
        assert_eq!(measured, "| 2 | 16384 | 1024 | 5 % | 1.017, 1.050 | 0.983, 0.950 | 1.002, 1.050 |");
    }

    #[test]
    fn the_quota_is_nearer_to_the_weights_than_the_ring() {
        let under = |kind| weighted(&[1, 10], 4, PlacementParams { kind, slots: 512, ..PlacementParams::default() }).unwrap();
        let ((ring, _), (quota, moved)) = (under(PlacementKind::Ring), under(PlacementKind::Quota));
        assert!(quota < 0.03 && ring > quota, "off by {ring} and {quota}");
        assert!((0.5..2.0).contains(&moved.mean) && moved.worst >= moved.mean, "{moved}");
    }
}
