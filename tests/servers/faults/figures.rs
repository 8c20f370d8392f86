//! The figures of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use shardwise_testkit::overlap_judge::{At, Findings};

use super::stage::Stage;
use super::{Fault, SINGLETON, TIMER};

/// A kill to which nothing else came: when, and what the dead one held.
pub(crate) struct Kill {
    pub(crate) at: At,
    pub(crate) held: BTreeSet<u32>,
    /// When the leading server was killed last before it.
    pub(crate) leader_killed: Option<At>,
}

/// A new leader of etcd lets every lease live for its time to live and an election timeout (1 s) from its election on, which comes up to 2
/// s after the old one's death. A member that is killed before its next renewal, a third of the TTL later, keeps what it held for so long.
const ELECTION_AND_RENEWAL: Duration = Duration::from_secs(3);

/// How long a takeover took, of what, and since when.
type Takeover = (u64, u32, At);

/// The slowest takeovers, if there were any: after a kill soon after the leading server's, and after any other one.
fn slowest(kills: &[Kill], found: &Findings) -> [Option<Takeover>; 2] {
    [true, false].map(|soon| {
        let kills = kills.iter().filter(|kill| kill.is_soon_after_the_leaders() == soon);
        let after = |slot: u32, at: At| found.taken_after(slot, at).unwrap_or(u64::MAX);
        let took = kills.flat_map(|kill| kill.held.iter().map(move |slot| (after(*slot, kill.at), *slot, kill.at)));
        took.max()
    })
}

impl Kill {
    fn is_soon_after_the_leaders(&self) -> bool {
        self.leader_killed.is_some_and(|leader| Duration::from_nanos(self.at - leader) < ELECTION_AND_RENEWAL)
    }
}

/// What was done, and what came of it.
pub(crate) fn figures(backend: &str, counts: &BTreeMap<Fault, u32>, kills: &[Kill], found: &Findings) -> Value {
    let by_name: BTreeMap<_, _> = counts.iter().map(|(fault, count)| (fault.name(), count)).collect();
    let [after_leader, slowest] = slowest(kills, found);
    let after_leaders = kills.iter().filter(|kill| kill.is_soon_after_the_leaders()).count();
    // A timer has no work between its jobs.
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
        "ghosts": found.stale_writes.len(),
        "kills_alone": kills.len() - after_leaders,
        "kills_after_leader": after_leaders,
        "takeover_after_leader_ms": after_leader.map(|(took, ..)| took / 1_000_000),
        "takeover_ms": slowest.map(|(took, ..)| took / 1_000_000),
        "takeover_of": slowest.map(|(_, slot, _)| if slot == SINGLETON { "singleton".into() } else { format!("slot {slot}") }),
        "takeover_from": slowest.map(|(.., at)| at),
        "gap_ms": gaps.max().unwrap_or_default() / 1_000_000,
    })
}

/// How many rows of the fenced table stand behind one of the same slot under a higher epoch.
pub(crate) async fn disorder(stage: &Stage) -> i64 {
    let table = super::worker::table(stage.folder()).await;
    let falls =
        "SELECT count(*) FROM (SELECT epoch, max(epoch) OVER (PARTITION BY slot ORDER BY number) AS top FROM work) WHERE epoch < top";
    sqlx::query_scalar(falls).fetch_one(&table).await.unwrap()
}

#[test]
fn a_kill_soon_after_the_leading_servers_is_distinguished() {
    const SECOND: At = 1_000_000_000;
    let kill = |at: At, leader_killed| Kill { at: at * SECOND, held: BTreeSet::new(), leader_killed };
    let soon = [kill(10, None), kill(10, Some(7 * SECOND)), kill(10, Some(8 * SECOND)), kill(10, Some(10 * SECOND))];
    assert_eq!(soon.map(|kill| kill.is_soon_after_the_leaders()), [false, false, true, true]);
}
