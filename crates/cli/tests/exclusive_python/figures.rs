//! The figures of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use shardwise_testkit::overlap_judge::{At, Findings, Line};

use crate::{Fault, Whom};

/// A kill to which nothing else came: when, of what, and the slots that the dead one held.
pub(crate) struct Kill {
    pub(crate) at: At,
    pub(crate) whom: Whom,
    pub(crate) held: Vec<u32>,
}

impl Kill {
    /// How long it took until work had begun in all its slots.
    fn takeover_ms(&self, found: &Findings) -> Option<u64> {
        // In a slot that another worker had begun in before, whose line was not read yet, none begins after the kill. That each slot is
        // held in the end is checked elsewhere.
        let took = self.held.iter().filter_map(|slot| found.taken_after(*slot, self.at));
        took.max().map(|nanos| nanos / 1_000_000)
    }
}

/// What was done, and what came of it.
pub(crate) fn figures(backend: &str, counts: &BTreeMap<Fault, u32>, kills: &[Kill], found: &Findings) -> Value {
    let by_name: BTreeMap<_, _> = counts.iter().map(|(fault, count)| (fault.name(), count)).collect();
    let (of_workers, others): (Vec<&Kill>, Vec<&Kill>) = kills.iter().partition(|kill| kill.whom == Whom::Worker);
    let slowest = |kills: &[&Kill]| kills.iter().filter_map(|kill| kill.takeover_ms(found)).max();
    json!({
        "scene": "faults",
        "backend": backend,
        "faults": counts.values().sum::<u32>(),
        "counts": by_name,
        "stays": found.stays.len(),
        "overlaps": found.overlaps.len(),
        "writes": found.writes,
        "late": found.late,
        "late_refused": found.late_refused,
        "late_first": found.late_first,
        "ghosts": found.stale_writes.len(),
        "kills_alone": of_workers.len(),
        "takeover_ms": slowest(&of_workers),
        "kills_of_sidecars": others.len(),
        "takeover_of_sidecars_ms": slowest(&others),
    })
}

/// The figures of planned handovers, sorted.
pub(crate) fn hands(backend: &str, took: &[Duration]) -> Value {
    let ms = |percent: usize| {
        let rank = (took.len() * percent).div_ceil(100).max(1);
        took.get(rank - 1).map(|took| took.as_secs_f64() * 1e3)
    };
    json!({ "scene": "hands", "backend": backend, "slots": took.len(), "median_ms": ms(50), "p99_ms": ms(99), "worst_ms": ms(100) })
}

/// From each end of work in good order after that moment until another worker began in that slot; the shortest first.
pub(crate) fn handovers(workers: &[Vec<Line>], after: At) -> Vec<Duration> {
    let (mut began, mut ended) = (Vec::new(), Vec::new());
    for (worker, lines) in workers.iter().enumerate() {
        for line in lines {
            match *line {
                Line::Enter { slot, at, .. } if at > after => began.push((slot, at, worker)),
                Line::Leave { slot, at, .. } if at > after => ended.push((slot, at, worker)),
                _ => {}
            }
        }
    }
    began.sort_unstable();
    let next = |slot: u32, from: At| began.iter().find(|(begun, at, _)| *begun == slot && *at >= from);
    let took = ended.into_iter().filter_map(|(slot, at, worker)| {
        // One that begins again itself has kept the slot.
        let (_, begun, by) = next(slot, at)?;
        (*by != worker).then(|| Duration::from_nanos(begun - at))
    });
    let mut took: Vec<_> = took.collect();
    took.sort_unstable();
    took
}

#[test]
fn a_handover_lasts_from_one_workers_end_to_the_next_ones_beginning() {
    let enter = |slot, at| Line::Enter { slot, epoch: at, at, until: at + 100 };
    let leave = |slot, at| Line::Leave { slot, epoch: 1, at };
    let one = vec![enter(1, 5), leave(1, 9), enter(1, 20), leave(1, 30), leave(2, 40), enter(2, 42), leave(3, 50)];
    let other = vec![enter(1, 12), leave(1, 18), enter(1, 37), enter(2, 60)];
    let took: Vec<_> = handovers(&[one, other], 10).iter().map(Duration::as_nanos).collect();
    assert_eq!(took, [2, 7], "what came before that moment does not count, nor a slot that was kept, nor one that no one has");
    let figures = hands("local", &[1, 2, 3].map(Duration::from_millis));
    assert_eq!((&figures["slots"], &figures["median_ms"], &figures["p99_ms"]), (&json!(3), &json!(2.0), &json!(3.0)));
}
