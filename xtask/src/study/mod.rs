//! `cargo xtask placement-study`: how even the placement is and how much moves, over fleets and constants, as a table and a plot in `docs/`.

mod measure;
mod page;
mod plot;

use shardwise_core::{LoadMargin, PlacementParams, Weight};

use crate::context::Context;
use crate::report::say;
use crate::run::Failure;
use measure::{ByWeight, Case, Measured, constants};

/// Sizes of the fleets with the default constants.
const SIZES: [u32; 11] = [2, 3, 5, 10, 20, 50, 100, 200, 300, 500, 1_000];
/// Sizes with other constants.
const FEW_SIZES: [u32; 5] = [3, 10, 50, 200, 1_000];
/// Fleets for what must be reached, and up to 300 members.
const FLEETS: u32 = 200;
/// Larger ones, and with other constants.
const FEWER_FLEETS: u32 = 30;

/// A case and what it gave.
type Row = (Case, Measured);

/// What a study measured.
struct Study {
    /// Protocol 1 with its default constants, in the order of the sizes.
    defaults: Vec<Row>,
    /// 65,536 slots, in the order of the sizes.
    fine: Vec<Row>,
    /// One constant changed at a time.
    others: Vec<Row>,
    /// Members of weights 1 to 4, and of 1, 10 and 100.
    weights: Vec<(&'static str, Vec<ByWeight>)>,
}

/// Measures, and writes `docs/placement-study.md` and `docs/placement-study.svg`.
pub(crate) fn run(context: &Context) -> Result<(), Failure> {
    let study = study()?;
    let docs = context.root().join("docs");
    for (name, text) in [("placement-study.md", page::markdown(&study)), ("placement-study.svg", page::picture(&study))] {
        let path = docs.join(name);
        std::fs::write(&path, text).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        say(&format!("docs/{name} is written"));
    }
    for missed in page::targets(&study).iter().filter(|target| !target.reached) {
        say(&format!("missed: {}: {}", missed.what, missed.measured));
    }
    Ok(())
}

fn study() -> Result<Study, Failure> {
    let params = PlacementParams::default();
    let fine = PlacementParams { slots: 65_536, ..params };
    let of_size = |members: u32, params| Case { members, params, fleets: if members <= 300 { FLEETS } else { FEWER_FLEETS } };
    let defaults: Vec<Case> = SIZES.map(|members| of_size(members, params)).into();
    let fine: Vec<Case> = SIZES.into_iter().filter(|members| *members >= 50).map(|members| of_size(members, fine)).collect();
    let others: Vec<Case> =
        other_constants().into_iter().flat_map(|params| FEW_SIZES.map(|members| Case { members, params, fleets: FEWER_FLEETS })).collect();

    let cases = [&defaults[..], &fine, &others].concat();
    let measured =
        measure::measure_all(&cases, |case, measured| say(&page::in_a_line(case, measured))).map_err(|e| Failure::new(e.to_string()))?;
    let mut rows = cases.into_iter().zip(measured);
    let mut take = |count: usize| rows.by_ref().take(count).collect::<Vec<_>>();
    Ok(Study { defaults: take(defaults.len()), fine: take(fine.len()), others: take(others.len()), weights: weights(params)? })
}

/// Protocol 1's constants with one of them changed.
fn other_constants() -> Vec<PlacementParams> {
    let (slots, points, margin) = (16_384, 1_024, LoadMargin::DEFAULT);
    let by_slots = [1_024, 4_096].map(|slots| constants(slots, points, margin));
    let by_points = [160, 512, 4_096].map(|points| constants(slots, points, margin));
    let margins = [
        LoadMargin::Thousandths(20),
        LoadMargin::Thousandths(80),
        LoadMargin::Thousandths(100),
        LoadMargin::Thousandths(250),
        LoadMargin::None,
    ];
    let by_margin = margins.map(|margin| constants(slots, points, margin));
    [&by_slots[..], &by_points, &by_margin].concat()
}

fn weights(params: PlacementParams) -> Result<Vec<(&'static str, Vec<ByWeight>)>, Failure> {
    let fleet = |name, weights: &[u64]| -> Result<_, Failure> {
        let weights: Vec<_> = weights.iter().filter_map(|weight| Weight::new(*weight)).collect();
        Ok((name, measure::by_weight(&weights, 20, 20, params).map_err(|e| Failure::new(e.to_string()))?))
    };
    Ok(vec![fleet("1 to 4", &[1, 2, 3, 4])?, fleet("1, 10 and 100", &[1, 10, 100])?])
}
