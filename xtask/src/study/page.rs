//! The study as a page and as a picture.

use std::fmt::Write as _;

use shardwise_core::LoadMargin;

use super::measure::{Case, CaseFigures, Spread};
use super::plot::{Curve, Panel, svg};
use super::quotas::QuotaComparison;
use super::weights::{EnoughSlots, OFF_MAX, SlotFlow, WeightedFleets, off};
use super::{CaseRow, FEW_SIZES, FEWER_FLEETS, FLEETS, SIZES, Study};

const HEAD: &str = "# Placement study

Written by `cargo xtask placement-study`; it takes minutes and has no chance in it, so that a changed figure is a
changed placement. What the constants mean stands in [placement.md](../reference/placement.md).

**Peak** and **least** are the slots of the busiest and of the least loaded member over the mean. **Moved** is how many
slots have another owner after one member has joined, over the newcomer's exact share, 1/(N + 1) of all. Each is the
mean over the fleets, and behind it the worst fleet.

![Movement and balance over the size of the fleet](placement-study.svg)
";

/// Something that has to be reached, and whether it is.
pub(super) struct StudyTarget {
    pub(super) what: String,
    pub(super) measured: String,
    pub(super) reached: bool,
}

fn margin(margin: LoadMargin) -> String {
    match margin {
        LoadMargin::None => "none".into(),
        LoadMargin::Thousandths(m) => format!("{} %", f64::from(m) / 10.0),
    }
}

fn constants(case: &Case) -> String {
    format!("{} slots, {} points, {}", case.params.slots, case.params.virtual_nodes, margin(case.params.load_margin))
}

/// For who waits.
pub(super) fn in_a_line(case: &Case, measured: &CaseFigures) -> String {
    let CaseFigures { peak, least, moved } = measured;
    format!("{} members, {}: peak {:.3}, least {:.3}, moved {:.3}", case.members, constants(case), peak.mean, least.mean, moved.mean)
}

fn of_size(rows: &[CaseRow], members: u32) -> Option<&CaseFigures> {
    rows.iter().find(|(case, _)| case.members == members).map(|(_, measured)| measured)
}

/// What the project has promised, against what was measured.
pub(super) fn targets(study: &Study) -> Vec<StudyTarget> {
    // How far the busiest member is above 1.05 times the mean, in slots.
    let above = |(case, measured): &CaseRow| {
        let mean = f64::from(case.params.slots) / f64::from(case.members);
        (measured.peak.worst - 1.05) * mean
    };
    let above = study.defaults.iter().filter(|(case, _)| case.members <= 300).map(above).fold(f64::MIN, f64::max);
    let moved = |rows, members, what: &str, mean, worst| {
        let moved = of_size(rows, members).map(|measured| measured.moved);
        let reached = moved.is_some_and(|moved| moved.mean <= mean && moved.worst <= worst);
        StudyTarget {
            what: what.into(),
            measured: moved.map_or_else(String::new, |m| format!("{:.3}, worst {:.3}", m.mean, m.worst)),
            reached,
        }
    };
    // Each stands twice: as promised, over 20 fleets, and over more.
    let weights = |at: usize, what: &str| {
        let off = study.weights.get(2 * at).map(|(_, weights)| off(weights));
        StudyTarget {
            what: what.into(),
            measured: off.map_or_else(String::new, |off| format!("off by at most {:.2} %", off * 100.0)),
            reached: off.is_some_and(|off| off <= OFF_MAX),
        }
    };
    let mut targets = vec![
        StudyTarget {
            what: "the peak is at most 1.05 times the mean and one slot, every fleet up to 300 members".into(),
            measured: format!("at most {above:.2} slots above 1.05"),
            reached: above <= 1.0,
        },
        moved(&study.defaults, 50, "50 members, 16,384 slots: moved at most 1.10, worst 1.25", 1.10, 1.25),
        moved(&study.defaults, 100, "100 members, 16,384 slots: moved at most 1.25", 1.25, f64::INFINITY),
        moved(&study.fine, 200, "200 members, 65,536 slots: moved at most 1.25", 1.25, f64::INFINITY),
        weights(0, "`ring`, weights 1 to 4: the mean share of a weight is within 2 % of it"),
        weights(1, "`ring`, weights 1, 10 and 100, 16,384 slots: the mean share of a weight is within 2 % of it"),
        weights(2, "`ring`, weights 1, 10 and 100, 65,536 slots: the mean share of a weight is within 2 % of it"),
    ];
    targets.extend(study.quotas.iter().map(of_quota));
    targets
}

/// The same promise under `quota`.
fn of_quota(QuotaComparison { of, off: [_, off], .. }: &QuotaComparison) -> StudyTarget {
    let (members, slots) = (of.case.members, of.case.params.slots);
    StudyTarget {
        what: format!("`quota`, weights {}, {members} members, {slots} slots: the mean share of a weight is within 2 % of it", of.name),
        measured: format!("off by at most {:.2} %", off * 100.0),
        reached: *off <= OFF_MAX,
    }
}

/// `docs/internals/placement-study.md`. Writing to a String cannot fail, so what `writeln!` answers is let go.
pub(super) fn markdown(study: &Study) -> String {
    let mut text = format!("{HEAD}\n## What has to be reached\n\n| | measured | |\n|---|---|---|\n");
    for StudyTarget { what, measured, reached } in targets(study) {
        let _ = writeln!(text, "| {what} | {measured} | {} |", if reached { "reached" } else { "**missed**" });
    }
    text += MISSED;
    let _ = writeln!(
        text,
        "\n## Protocol 1 with its default constants\n\n{FLEETS} fleets of each size up to 300 members, {FEWER_FLEETS} above.\n"
    );
    rows(&mut text, &study.defaults);
    let _ = writeln!(text, "\nWith 65,536 slots:\n");
    rows(&mut text, &study.fine);
    let _ = writeln!(text, "\n## One constant changed\n\n{FEWER_FLEETS} fleets of each size.\n");
    rows(&mut text, &study.others);
    quotas(&mut text, &study.quotas);
    weights(&mut text, study);
    text
}

const MISSED: &str = "
Where `ring` misses a weight, take `quota`. Where `quota` misses one, no placement can do better with so few slots: the one member of weight 1 among all weights from 1 to 100 is entitled to 3.24 of 16,384
slots and has three or four, so the mean of 20 fleets is off by chance.
";

const QUOTA: &str = "
## Quota

Placement `quota`, protocol 5, beside `ring`, protocol 1, where weights differ; where they are equal both are the same to the last slot. **Off** is how far the mean share of any weight over
20 fleets is from the weight. **Single** are the least and the most that a single member had of what it is entitled to. **Moved** is as above, for one more member of the weight that is next, over what that one is entitled to. **Lightest** is how many slots the lightest member is
entitled to: of a weight with one member, entitled to three slots and a quarter, 20 fleets are off by chance, because slots are whole.

| weights in the fleet | members | slots | lightest | off: `ring` | off: `quota` | single: `ring` | single: `quota` | moved: `ring` | moved: `quota` |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

fn quotas(text: &mut String, all: &[QuotaComparison]) {
    *text += QUOTA;
    for QuotaComparison { of, off: [ring, quota], single, moved: [by_ring, by_quota] } in all {
        let (members, slots) = (of.case.members, of.case.params.slots);
        let off = |off: &f64| format!("{:.2} %", off * 100.0);
        let moved = |moved: &Spread| format!("{:.3}, {:.3}", moved.mean, moved.worst);
        let (ring, quota, by_ring, by_quota) = (off(ring), off(quota), moved(by_ring), moved(by_quota));
        let [one_of_ring, one_of_quota] = single.map(|(least, most)| format!("{least:.3} to {most:.3}"));
        let told = format!("{ring} | {quota} | {one_of_ring} | {one_of_quota} | {by_ring} | {by_quota}");
        let _ = writeln!(text, "| {} | {members} | {slots} | {:.1} | {told} |", of.name, of.lightest());
    }
}

const WEIGHTS: &str = "
## Weights

Slots over what the weight entitles to, by weight. **Lightest** is how many slots the lightest member is entitled to.

### From how many slots on it holds

Wanted is that the mean share of each weight over 20 fleets is within 2 % of the weight. **Enough** is the smallest number of slots tried with which it is, there and with every larger number
tried; the next smaller one stands behind.

| weights in the fleet | members | margin | enough | lightest | off | too few | lightest | off |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
";

const FLOWS: &str = "
So with a margin of 5 % the lightest needs 67 to 164 slots: less than its share it has with every number, and over 20 fleets chance comes on top. **Take as many slots as 165 times the sum of all
weights over the lightest one**: 16,384 where the weights add up to 99 times the lightest, 65,536 up to 397 times. Where every weight from 1 to 100 is in one fleet, no number is enough, and
without a margin neither: 13 slots, drawn 20 times, are off by 6 % by chance alone.

### Why not sooner

It is neither the rounding nor the walk, but the margin, which cuts on one side. For how many slots a member's points are the first is as good as drawn: about the root of its
share more or less, 24 ± 5 slots for weight 1 beside weights that add up to 677. A member is **turned away** from what is above its limit, here 24.2 × 1.05 rounded up to 26, and nothing makes
up for what is below, because heavy members, who differ by 2 %, are seldom full and pass nothing on. So

- it is not the capacity's formula: its rounding up gives the light more, 7 % above their share instead of 5 %;
- without a margin the mean is as it should be. With 16,384 slots a margin of 20 % is enough (off by 0.9 %), one of 15 % is not (2.3 %). The margin is a setting and needs no other protocol,
  but it is also what the busiest member may have above the mean;
- it goes away with the number of slots, a setting too. 65,536 are the most that protocol 1 has;
- points do not mend it: 256, 1,024 and 4,096 for each unit of weight are off by 5.3, 5.0 and 6.5 %.

**First** is what its points alone would give a weight, **has** what comes out: first, less turned away, and what others were too full to take.

| weights in the fleet | slots | fleets | weight | first | turned away | from others | has |
|---|---:|---:|---:|---:|---:|---:|---:|
";

const BY_WEIGHT: &str = "
### Every weight

Behind the mean its standard error, which 20 fleets leave large for a light member.

| weights in the fleet | members | slots | margin | fleets | lightest | weight | mean | least | most | half deviate by less than |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

fn weights(text: &mut String, study: &Study) {
    *text += WEIGHTS;
    for EnoughSlots { with, below } in &study.enough {
        let Some((of, _)) = with.as_ref().or(below.as_ref()) else { continue };
        let cells = |at: &Option<(WeightedFleets, f64)>, none: &str| {
            let told =
                |(of, off): &(WeightedFleets, f64)| format!("{} | {:.0} | {:.2} %", of.case.params.slots, of.lightest(), off * 100.0);
            at.as_ref().map_or_else(|| format!("{none} | | "), told)
        };
        let Case { members, params, .. } = of.case;
        let (with, below) = (cells(with, "none"), cells(below, "none tried"));
        let _ = writeln!(text, "| {} | {members} | {} | {with} | {below} |", of.name, margin(params.load_margin));
    }
    *text += FLOWS;
    for (of, flows) in &study.flows {
        let Case { params, fleets, .. } = of.case;
        for SlotFlow { weight, first, refused, passed_on } in flows {
            let has = first - refused + passed_on;
            let _ = writeln!(
                text,
                "| {} | {} | {fleets} | {weight} | {first:.3} | {refused:.3} | {passed_on:.3} | {has:.3} |",
                of.name, params.slots
            );
        }
    }
    *text += BY_WEIGHT;
    for (of, weights) in &study.weights {
        let Case { members, params, fleets } = of.case;
        for by in weights {
            let _ = writeln!(
                text,
                "| {} | {members} | {} | {} | {fleets} | {:.0} | {} | {:.3} ± {:.3} | {:.3} | {:.3} | {:.1} % |",
                of.name,
                params.slots,
                margin(params.load_margin),
                of.lightest(),
                by.weight,
                by.mean,
                by.error,
                by.least,
                by.most,
                by.median_deviation * 100.0
            );
        }
    }
}

fn rows(text: &mut String, rows: &[CaseRow]) {
    *text += "| members | slots | points | margin | peak | least | moved |\n|---:|---:|---:|---:|---:|---:|---:|\n";
    for (case, CaseFigures { peak, least, moved }) in rows {
        let (slots, points, margin) = (case.params.slots, case.params.virtual_nodes, margin(case.params.load_margin));
        let _ = writeln!(
            text,
            "| {} | {slots} | {points} | {margin} | {:.3}, {:.3} | {:.3}, {:.3} | {:.3}, {:.3} |",
            case.members, peak.mean, peak.worst, least.mean, least.worst, moved.mean, moved.worst
        );
    }
}

/// `docs/internals/placement-study.svg`.
pub(super) fn picture(study: &Study) -> String {
    let curve = |name: String, rows: &[CaseRow], value: fn(&CaseFigures) -> f64| Curve {
        name,
        points: rows.iter().map(|(case, measured)| (f64::from(case.members), value(measured))).collect(),
    };
    let curves = |value: fn(&CaseFigures) -> f64| {
        let name = |rows: &[CaseRow]| rows.first().map(|(case, _)| constants(case)).unwrap_or_default();
        let groups = [&study.defaults[..], &study.fine].into_iter().chain(study.others.chunks(FEW_SIZES.len()));
        // As many as can be told apart.
        let shown = groups.filter(|rows| rows.first().is_some_and(|(case, _)| worth_showing(case)));
        shown.map(|rows| curve(name(rows), rows, value)).collect::<Vec<_>>()
    };
    let panel = |title: &str, y, step, value| Panel { title: title.into(), y, step, curves: curves(value) };
    let panels = [
        panel("Moved when one joins, over the newcomer's share", (1.0, 3.0), 0.25, |m| m.moved.mean),
        panel("Busiest member over the mean", (1.0, 1.4), 0.05, |m| m.peak.mean),
        panel("Least loaded member over the mean", (0.5, 1.0), 0.1, |m| m.least.mean),
    ];
    svg(&panels, &SIZES, "members")
}

fn worth_showing(case: &Case) -> bool {
    let params = case.params;
    let margins = [LoadMargin::DEFAULT, LoadMargin::Thousandths(80), LoadMargin::Thousandths(250), LoadMargin::None];
    params.slots >= 4_096 && [160, 1_024].contains(&params.virtual_nodes) && margins.contains(&params.load_margin)
}
