//! `cargo xtask placement-study`: how even the placement is and how much moves, over fleets and constants, as a table and a plot in `docs/internals/`.

mod measure;
mod page;
mod plot;
mod quotas;
mod weights;

use shardwise_core::{LoadMargin, NameError, PlacementParams, Weight};

use crate::context::TaskContext;
use crate::report::say;
use crate::run::TaskFailure;
use measure::{Case, CaseFigures, constants};
use quotas::QuotaComparison;
use weights::{EnoughSlots, FLEETS_PROMISED, SlotFlow, WeightFigures, WeightedFleets};

/// Sizes of the fleets with the default constants.
const SIZES: [u32; 11] = [2, 3, 5, 10, 20, 50, 100, 200, 300, 500, 1_000];
/// Sizes with other constants.
const FEW_SIZES: [u32; 5] = [3, 10, 50, 200, 1_000];
/// Fleets for what must be reached, and up to 300 members.
const FLEETS: u32 = 200;
/// Larger ones, and with other constants.
const FEWER_FLEETS: u32 = 30;

/// A case and what it gave.
type CaseRow = (Case, CaseFigures);

/// What a study measured.
struct Study {
    /// Protocol 1 with its default constants, in the order of the sizes.
    defaults: Vec<CaseRow>,
    /// 65,536 slots, in the order of the sizes.
    fine: Vec<CaseRow>,
    /// One constant changed at a time.
    others: Vec<CaseRow>,
    /// Members of different weights; first those of [`WEIGHTS`] that something is promised for.
    weights: Vec<(WeightedFleets, Vec<WeightFigures>)>,
    /// How many slots are enough for fleets of different weights.
    enough: Vec<EnoughSlots>,
    /// What the margin takes and gives.
    flows: Vec<(WeightedFleets, Vec<SlotFlow>)>,
    /// Placement `quota` beside `ring`.
    quotas: Vec<QuotaComparison>,
}

/// Measures, and writes `docs/internals/placement-study.md` and `docs/internals/placement-study.svg`.
pub(crate) fn run(context: &TaskContext) -> Result<(), TaskFailure> {
    let study = study()?;
    let folder = context.root().join("docs/internals");
    for (name, text) in [("placement-study.md", page::markdown(&study)), ("placement-study.svg", page::picture(&study))] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|e| TaskFailure::new(format!("{}: {e}", path.display())))?;
        say(&format!("docs/internals/{name} is written"));
    }
    for missed in page::targets(&study).iter().filter(|target| !target.reached) {
        say(&format!("missed: {}: {}", missed.what, missed.measured));
    }
    Ok(())
}

fn study() -> Result<Study, TaskFailure> {
    let params = PlacementParams::default();
    let fine = PlacementParams { slots: 65_536, ..params };
    let of_size = |members: u32, params| Case { members, params, fleets: if members <= 300 { FLEETS } else { FEWER_FLEETS } };
    let defaults: Vec<Case> = SIZES.map(|members| of_size(members, params)).into();
    let fine: Vec<Case> = SIZES.into_iter().filter(|members| *members >= 50).map(|members| of_size(members, fine)).collect();
    let others: Vec<Case> =
        other_constants().into_iter().flat_map(|params| FEW_SIZES.map(|members| Case { members, params, fleets: FEWER_FLEETS })).collect();

    let cases = [&defaults[..], &fine, &others].concat();
    let measured = measure::measure_all(&cases, |case, measured| say(&page::in_a_line(case, measured)))
        .map_err(|e| TaskFailure::new(e.to_string()))?;
    let mut rows = cases.into_iter().zip(measured);
    let mut take = |count: usize| rows.by_ref().take(count).collect::<Vec<_>>();
    Ok(Study {
        defaults: take(defaults.len()),
        fine: take(fine.len()),
        others: take(others.len()),
        weights: weights()?,
        enough: all_enough()?,
        flows: flows()?,
        quotas: quotas::beside().map_err(|e| failed(&e))?,
    })
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

/// A fleet's weights with their name, its members, its slots, and its margin in thousandths if it has one.
type StudyFleet = (&'static str, &'static [u64], u32, u32, Option<u32>);
/// The first three are what has to be reached.
const WEIGHTS: [StudyFleet; 10] = [
    ("1 to 4", &[1, 2, 3, 4], 20, 16_384, Some(50)),
    ("1, 10 and 100", &[1, 10, 100], 20, 16_384, Some(50)),
    ("1, 10 and 100", &[1, 10, 100], 20, 65_536, Some(50)),
    ("1, 10 and 100", &[1, 10, 100], 20, 65_536, Some(100)),
    ("1, 10 and 100", &[1, 10, 100], 20, 16_384, Some(100)),
    ("1, 10 and 100", &[1, 10, 100], 20, 16_384, Some(250)),
    ("1, 10 and 100", &[1, 10, 100], 20, 16_384, None),
    ("1 and 10", &[1, 10], 20, 16_384, Some(50)),
    ("1 and 10", &[1, 10], 50, 16_384, Some(50)),
    ("1 and 100", &[1, 100], 20, 65_536, Some(50)),
];
/// Fleets of weights: those that the promise names, and so many that chance says little.
const WEIGHTED_FLEETS: [u32; 2] = [FLEETS_PROMISED, 200];

fn weighted((name, of, members, slots, margin): &StudyFleet, fleets: u32) -> WeightedFleets {
    let params = constants(*slots, PlacementParams::default().virtual_nodes, margin.map_or(LoadMargin::None, LoadMargin::Thousandths));
    WeightedFleets { name, weights: of.iter().copied().filter_map(Weight::new).collect(), case: Case { members: *members, params, fleets } }
}

fn failed(e: &NameError) -> TaskFailure {
    TaskFailure::new(e.to_string())
}

fn weights() -> Result<Vec<(WeightedFleets, Vec<WeightFigures>)>, TaskFailure> {
    let all = WEIGHTS.iter().flat_map(|fleet| WEIGHTED_FLEETS.map(|fleets| weighted(fleet, fleets)));
    all.map(|of| weights::by_weight(&of).map(|told| (of, told)).map_err(|e| failed(&e))).collect()
}

/// For which weights, members and margins the smallest number of slots is looked for.
fn all_enough() -> Result<Vec<EnoughSlots>, TaskFailure> {
    let to = |last: u64| (1..=last).collect::<Vec<_>>();
    let (few, ten, far) = (to(4), to(10), vec![1, 10, 100]);
    let mixes = [
        ("1 to 4", few.clone(), 20, LoadMargin::DEFAULT),
        ("1 to 4", few, 50, LoadMargin::DEFAULT),
        ("1 to 10", ten.clone(), 20, LoadMargin::DEFAULT),
        ("1 to 10", ten, 50, LoadMargin::DEFAULT),
        ("1 and 10", vec![1, 10], 20, LoadMargin::DEFAULT),
        ("1, 10 and 100", far.clone(), 20, LoadMargin::DEFAULT),
        ("1, 10 and 100", far.clone(), 20, LoadMargin::Thousandths(100)),
        ("1, 10 and 100", far.clone(), 20, LoadMargin::Thousandths(250)),
        ("1, 10 and 100", far, 20, LoadMargin::None),
        ("each of 1 to 100", to(100), 100, LoadMargin::DEFAULT),
        ("each of 1 to 100", to(100), 100, LoadMargin::None),
    ];
    let enough = |(name, weights, members, margin): (_, Vec<u64>, _, _)| {
        let weights: Vec<_> = weights.into_iter().filter_map(Weight::new).collect();
        weights::enough(name, &weights, members, margin).map_err(|e| failed(&e))
    };
    mixes.into_iter().map(enough).collect()
}

fn flows() -> Result<Vec<(WeightedFleets, Vec<SlotFlow>)>, TaskFailure> {
    let fleets = WEIGHTS.iter().take(3).map(|fleet| weighted(fleet, WEIGHTED_FLEETS[1]));
    fleets.map(|of| weights::flows(&of).map(|told| (of, told)).map_err(|e| failed(&e))).collect()
}
