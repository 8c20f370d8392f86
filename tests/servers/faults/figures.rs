//! The figures of a play.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::intervals::Findings;
use super::lines::At;
use super::stage::Stage;
use super::{Fault, SINGLETON, TIMER};

/// A kill to which nothing else came: when, and what the dead one held.
pub(crate) struct Kill {
    pub(crate) at: At,
    pub(crate) held: BTreeSet<u32>,
}

/// What was done, and what came of it.
pub(crate) fn figures(backend: &str, counts: &BTreeMap<Fault, u32>, kills: &[Kill], found: &Findings) -> Value {
    let by_name: BTreeMap<_, _> = counts.iter().map(|(fault, count)| (fault.name(), count)).collect();
    let took = kills.iter().flat_map(|kill| kill.held.iter().map(|slot| (taken_after(found, *slot, kill.at), *slot, kill.at)));
    let (slowest, slowest_slot, slowest_at) = took.max().unwrap_or_default();
    // Between the jobs of a timer nobody works.
    let stays: Vec<_> = found.stays.iter().filter(|stay| stay.slot != TIMER).collect();
    let of_singleton = stays.iter().filter(|stay| stay.slot == SINGLETON).count();
    let gaps = stays.chunk_by(|one, other| one.slot == other.slot).flat_map(|stays| {
        stays.iter().scan(0, |end: &mut At, stay| {
            let gap = if *end == 0 { 0 } else { stay.begin.saturating_sub(*end) };
            *end = stay.end.max(*end);
            Some(gap)
        })
    });
    json!({
        "scene": "faults",
        "backend": backend,
        "faults": counts.iter().filter(|(fault, _)| **fault != Fault::Leave).map(|(_, count)| count).sum::<u32>(),
        "counts": by_name,
        "stays": stays.len() - of_singleton,
        "stays_of_singleton": of_singleton,
        "fired": found.fired,
        "fired_twice": found.fired_twice.len(),
        "overlaps": found.overlaps.len(),
        "writes": found.writes,
        "late": found.late,
        "late_refused": found.late_refused,
        "late_first": found.late_first,
        "ghosts": found.ghosts.len(),
        "kills_alone": kills.len(),
        "takeover_ms": slowest / 1_000_000,
        "takeover_of": if slowest_slot == SINGLETON { "singleton".into() } else { format!("slot {slowest_slot}") },
        "takeover_from": slowest_at,
        "gap_ms": gaps.max().unwrap_or_default() / 1_000_000,
    })
}

/// How long after that moment somebody else worked in the slot.
fn taken_after(found: &Findings, slot: u32, at: At) -> u64 {
    let next = found.stays.iter().find(|stay| stay.slot == slot && stay.begin > at);
    next.map_or(u64::MAX, |stay| stay.begin - at)
}

/// How many rows of the fenced table stand behind one of the same slot under a higher epoch.
pub(crate) async fn disorder(stage: &Stage) -> i64 {
    let table = super::worker::table(stage.folder()).await;
    let falls =
        "SELECT count(*) FROM (SELECT epoch, max(epoch) OVER (PARTITION BY slot ORDER BY number) AS top FROM work) WHERE epoch < top";
    sqlx::query_scalar(falls).fetch_one(&table).await.unwrap()
}
