//! Fleets by the hundred, placed and changed, and how even they are and how much moved. No randomness: a fleet's number is in its members'
//! names, and the same run gives the same figures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use shardwise_core::{Balance, Circle, InstanceId, LoadMargin, NameError, PlacementParams, SlotOwners, Weight};

/// One combination of a fleet's size and constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) members: u32,
    pub(super) params: PlacementParams,
    /// How many fleets are measured.
    pub(super) fleets: u32,
}

/// Mean and worst over the fleets of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) worst: f64,
}

/// What a case gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    /// The busiest member over the mean.
    pub(super) peak: Spread,
    /// The least loaded member over the mean.
    pub(super) least: Spread,
    /// Slots that move when one member joins, over the newcomer's exact share.
    pub(super) moved: Spread,
}

fn spread(values: &[f64], worst: fn(f64, f64) -> f64) -> Spread {
    Spread { mean: values.iter().sum::<f64>() / values.len() as f64, worst: values.iter().copied().reduce(worst).unwrap_or(f64::NAN) }
}

fn member(fleet: u32, number: u32, weight: Weight) -> Result<(InstanceId, Weight), NameError> {
    Ok((InstanceId::new(format!("worker-{fleet}-{number}"))?, weight))
}

/// Measures one case.
pub(super) fn measure(case: &Case) -> Result<Measured, NameError> {
    let (mut peak, mut least, mut moved) = (Vec::new(), Vec::new(), Vec::new());
    for fleet in 0..case.fleets {
        let members = (0..=case.members).map(|number| member(fleet, number, Weight::ONE)).collect::<Result<Vec<_>, _>>()?;
        let mut circle = Circle::new(case.params);
        let before = circle.place(members.iter().take(case.members as usize).cloned());
        let after = circle.place(members);
        let balance = Balance::of(&before);
        peak.push(balance.peak);
        least.push(balance.least);
        moved.push(f64::from(moves(&before, &after)) * f64::from(case.members + 1) / f64::from(case.params.slots));
    }
    Ok(Measured { peak: spread(&peak, f64::max), least: spread(&least, f64::min), moved: spread(&moved, f64::max) })
}

fn moves(before: &SlotOwners, after: &SlotOwners) -> u32 {
    (0..before.params().slots).map(|slot| u32::from(before.owner_of_slot(slot) != after.owner_of_slot(slot))).sum()
}

/// How members of one weight did, over all fleets: their slots over what the weight entitles them to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ByWeight {
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
pub(super) struct Weighted {
    /// The weights as the page calls them.
    pub(super) name: &'static str,
    pub(super) weights: Vec<Weight>,
    pub(super) case: Case,
}

impl Weighted {
    /// The slots that the lightest member is entitled to.
    pub(super) fn lightest(&self) -> f64 {
        let members = self.weights.iter().cycle().take(self.case.members as usize).map(|weight| f64::from(weight.get()));
        let lightest = members.clone().fold(f64::INFINITY, f64::min);
        f64::from(self.case.params.slots) * lightest / members.sum::<f64>()
    }
}

/// How the members of each weight did, in the order of the weights.
pub(super) fn by_weight(of: &Weighted) -> Result<Vec<ByWeight>, NameError> {
    let Weighted { weights, case: Case { members, params, fleets }, .. } = of;
    let mut ratios: Vec<(u8, f64)> = Vec::new();
    for fleet in 0..*fleets {
        let members = (0..*members).zip(weights.iter().cycle()).map(|(number, weight)| member(fleet, number, *weight));
        let placed = SlotOwners::place(members.collect::<Result<Vec<_>, _>>()?, *params);
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
        ByWeight { weight, mean: most.mean, error, least: least.worst, most: most.worst, median_deviation }
    };
    Ok(known.into_iter().map(of).collect())
}

/// Every case's figures, on all cores.
pub(super) fn measure_all(cases: &[Case], tell: impl Fn(&Case, &Measured) + Sync) -> Result<Vec<Measured>, NameError> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, case)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, cases.get(at)?))) {
                    let measured = measure(case);
                    if let Ok(measured) = &measured {
                        tell(case, measured);
                    }
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, measured));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, measured)| measured).collect()
}

/// Constants that differ from protocol 1's defaults in what is given.
pub(super) fn constants(slots: u32, virtual_nodes: u32, load_margin: LoadMargin) -> PlacementParams {
    PlacementParams { slots, virtual_nodes, load_margin, ..PlacementParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_member_more_beside_one_takes_about_half() {
        let params = constants(1_000, 64, LoadMargin::None);
        let case = Case { members: 1, params, fleets: 3 };
        let measured = measure(&case).unwrap();
        assert!((measured.peak.worst - 1.0).abs() < 1e-9 && (measured.least.worst - 1.0).abs() < 1e-9, "alone it has all: {measured:?}");
        assert!((0.5..1.5).contains(&measured.moved.mean), "{measured:?}");
        assert_eq!(measure_all(&[case, case], |_, _| ()).unwrap(), [measured, measured]);
    }

    #[test]
    fn members_are_told_apart_by_weight() {
        let case = Case { members: 4, params: constants(10_000, 256, LoadMargin::DEFAULT), fleets: 5 };
        let of = Weighted { name: "1 and 3", weights: vec![Weight::ONE, Weight::new(3).unwrap()], case };
        assert!((of.lightest() - 1_250.0).abs() < 1e-9);
        let told = by_weight(&of).unwrap();
        assert_eq!(told.iter().map(|of| of.weight).collect::<Vec<_>>(), [1, 3]);
        for of in told {
            assert!(of.least <= of.mean && of.mean <= of.most && of.most <= 1.051 && of.error < 0.1 && of.median_deviation < 0.2, "{of:?}");
        }
    }
}
