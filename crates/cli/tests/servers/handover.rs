//! The time of a planned change: a worker joins and leaves gracefully.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shardwise_testkit::Lag;

use crate::common::lines::{number, owns};
use crate::meeting::{Kind, Meeting, SOON, is_active_of, now_ns, policy, settle};
use crate::soak;

/// The limit for most handovers on a busy machine, in a debug build. The limits of the soak are in xtask.
const HANDOVER_MAX: Duration = Duration::from_millis(250);
/// The limit for each: no handover waits for a TTL to end.
const EACH_MAX: Duration = Duration::from_secs(2);

on_all!(joins_and_leaves_are_in_force_at_once);

fn at(line: &Value) -> u64 {
    number(line, "monotonic_ns")
}

fn joins_and_leaves_are_in_force_at_once(kind: Kind) {
    let meeting = Meeting::direct(kind, "10s", &policy("workers", ""));
    let mut fleet = meeting.fleet("workers", ["worker-1", "worker-2", "worker-3"]);
    let (lag, mut joins, mut leaves) = (Lag::begin(), Vec::new(), Vec::new());
    for run in 0..soak::runs(5) {
        let mut newcomer = meeting.start_worker("workers", &format!("newcomer-{run}"));
        // From before its registration was sent. All existing members must give something up, because all are close to their fair share.
        let asked = newcomer.shows(SOON, "it begins to join", |line| line["state"] == "joining");
        let owning = newcomer.shows(SOON, "it owns its share", |line| is_active_of(4)(line) && owns(line) > 0);
        let gave = fleet.iter_mut().map(|worker| worker.shows(SOON, "it gives to the newcomer", |line| is_active_of(4)(line)));
        let gave: Vec<_> = gave.collect();
        assert!(gave.iter().all(|line| number(line, "lost") > 0), "{gave:?}");
        let last = gave.iter().map(at).max().unwrap_or_default();
        let first = gave.iter().map(at).min().unwrap_or_default().min(at(&owning));
        // On a busy machine the others may be faster than the process that prints that it begins.
        let join = Duration::from_nanos(last.saturating_sub(at(&asked)));
        let spread = Duration::from_nanos(last.max(at(&owning)) - first);

        // From the signal, not from the line that it has stopped: the others may be faster than the process that prints that line.
        let signalled = now_ns();
        newcomer.signal(Signal::SIGTERM);
        let took = fleet.iter_mut().map(|worker| worker.prints_within(SOON, "it takes back", |line| number(line, "gained") > 0));
        let leave = Duration::from_nanos(took.map(|line| at(&line)).max().unwrap_or_default() - signalled);
        assert_eq!(newcomer.ends("after SIGTERM").code, Some(0));
        settle(&mut fleet);

        let figures = json!({
            "backend": kind.name(),
            "join_ms": join.as_secs_f64() * 1e3,
            "join_spread_ms": spread.as_secs_f64() * 1e3,
            "leave_ms": leave.as_secs_f64() * 1e3,
        });
        soak::note(&figures);
        let most = EACH_MAX + lag.allowance();
        assert!(join < most && leave < most, "run {run}: not within {most:?}: {figures}");
        joins.push(join);
        leaves.push(leave);
    }
    let late = lag.allowance();
    for mut took in [joins, leaves] {
        took.sort_unstable();
        assert!(took[took.len() / 2] < HANDOVER_MAX + late, "{took:?}, with {late:?} for this machine");
    }
}
