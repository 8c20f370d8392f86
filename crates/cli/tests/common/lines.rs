//! Evaluates the lines of `shardwise watch`: which worker had which slot when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

pub(crate) fn number(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap_or_default()
}

pub(crate) fn owns(line: &Value) -> u64 {
    number(line, "slots_owned")
}

pub(crate) fn members(line: &Value) -> usize {
    line["members"].as_array().unwrap().len()
}

fn ranges(line: &Value, field: &str) -> impl Iterator<Item = u32> {
    let ranges: Vec<[u32; 2]> = serde_json::from_value(line[field].clone()).unwrap();
    ranges.into_iter().flat_map(|[from, to]| from..=to)
}

/// A worker's slots after each of its lines, from the gained and lost slots in the lines.
pub(crate) fn sets(printed: &[Value]) -> Vec<BTreeSet<u32>> {
    let mut set = BTreeSet::new();
    let after = |line: &Value| {
        assert!(ranges(line, "gained_slots").all(|slot| set.insert(slot)), "gained what it had: {line}");
        assert!(ranges(line, "lost_slots").all(|slot| set.remove(&slot)), "lost what it had not: {line}");
        assert_eq!(owns(line), set.len() as u64, "{line}");
        set.clone()
    };
    printed.iter().map(after).collect()
}

/// The periods in which a worker had each slot: from a line until the next line or the deadline, whichever is first.
pub(crate) fn held(printed: &[Value]) -> BTreeMap<u32, Vec<(u64, u64)>> {
    let mut held = BTreeMap::<_, Vec<_>>::new();
    for (n, set) in sets(printed).into_iter().enumerate() {
        let next = printed.get(n + 1).map_or(u64::MAX, |line| number(line, "monotonic_ns"));
        let interval = (number(&printed[n], "monotonic_ns"), number(&printed[n], "owned_until_ns").min(next));
        set.into_iter().filter(|_| interval.0 < interval.1).for_each(|slot| held.entry(slot).or_default().push(interval));
    }
    held
}

/// The longest time for which both had the same slot.
pub(crate) fn longest_overlap(one: &[Value], other: &[Value]) -> Duration {
    let (one, other) = (held(one), held(other));
    let both = one.iter().flat_map(|(slot, mine)| mine.iter().map(move |interval| (slot, interval)));
    let overlaps = both.flat_map(|(slot, mine)| {
        other.get(slot).into_iter().flatten().map(move |theirs| mine.1.min(theirs.1).saturating_sub(mine.0.max(theirs.0)))
    });
    Duration::from_nanos(overlaps.max().unwrap_or_default())
}
