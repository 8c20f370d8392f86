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
pub(super) struct CaseFigures {
    /// The busiest member over the mean.
    pub(super) peak: Spread,
    /// The least loaded member over the mean.
    pub(super) least: Spread,
    /// Slots that move when one member joins, over the newcomer's exact share.
    pub(super) moved: Spread,
}

pub(super) fn spread(values: &[f64], worst: fn(f64, f64) -> f64) -> Spread {
    Spread { mean: values.iter().sum::<f64>() / values.len() as f64, worst: values.iter().copied().reduce(worst).unwrap_or(f64::NAN) }
}

pub(super) fn member(fleet: u32, number: u32, weight: Weight) -> Result<(InstanceId, Weight), NameError> {
    Ok((InstanceId::new(format!("worker-{fleet}-{number}"))?, weight))
}

/// Measures one case.
pub(super) fn measure(case: &Case) -> Result<CaseFigures, NameError> {
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
    Ok(CaseFigures { peak: spread(&peak, f64::max), least: spread(&least, f64::min), moved: spread(&moved, f64::max) })
}

pub(super) fn moves(before: &SlotOwners, after: &SlotOwners) -> u32 {
    (0..before.params().slots).map(|slot| u32::from(before.owner_of_slot(slot) != after.owner_of_slot(slot))).sum()
}

/// Every case's figures, on all cores.
pub(super) fn measure_all(cases: &[Case], tell: impl Fn(&Case, &CaseFigures) + Sync) -> Result<Vec<CaseFigures>, NameError> {
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
}
