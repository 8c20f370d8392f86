//! The server is unreachable for all workers for a while: they stop by their deadline or keep their slots, according to their policy, and
//! recover immediately afterwards.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::lines::{number, owns};
use crate::common::process::Process;
use crate::meeting::{Kind, Meeting, SOON, differ_at_most, is_active_of, leave, now_ns, policy, settle};
use crate::soak;

/// The time limit from the first possible answer until each owns slots again; in a soak, and on a machine that is busy with other tests.
const BACK_MAX: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(5)];
/// On NATS longer by this: a connection that was begun during the outage waits so long for the server's greeting, and is not begun again.
const GREETING_LIMIT: Duration = Duration::from_secs(2);
/// The limit on the delay of the line that reports the stop, in the same two cases. The worker has stopped by its deadline in any case.
const REPORTED_MAX: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

on_both!(an_outage_ends_ownership_or_not_as_the_policy_says_and_heals);

fn an_outage_ends_ownership_or_not_as_the_policy_says_and_heals(kind: Kind) {
    for _ in 0..soak::runs(1) {
        // In a soak a minute with the default TTL.
        let (ttl, lasts) = if soak::is_on() { (10, Duration::from_mins(1)) } else { (2, Duration::from_secs(6)) };
        let policies = policy("workers", "") + &policy("keepers", "on_backend_loss = \"keep\"");
        let meeting = Meeting::by_proxy(kind, &format!("{ttl}s"), &policies);
        let mut stopping = meeting.fleet("workers", ["worker-1", "worker-2", "worker-3"]);
        let mut keeping = meeting.fleet("keepers", ["keeper-1", "keeper-2", "keeper-3"]);

        let cut = now_ns();
        meeting.proxy.cut_both();
        std::thread::sleep(lasts);
        stopping.iter_mut().chain(&mut keeping).for_each(Process::catch_up);
        let before: Vec<_> = stopping.iter().chain(&keeping).map(|worker| worker.printed.len()).collect();
        stopping.iter().for_each(stopped_by_its_deadline);
        keeping.iter().for_each(kept_what_it_had);

        let healed = now_ns();
        meeting.heal();
        let back = |fleet: &mut [Process]| {
            let owning = |line: &Value| number(line, "monotonic_ns") > healed && line["state"] == "active" && owns(line) > 0;
            let lines = fleet.iter_mut().map(|worker| worker.shows(SOON, "it owns again", owning));
            Duration::from_nanos(lines.map(|line| number(&line, "monotonic_ns")).max().unwrap_or_default() - healed)
        };
        let (stopped_ms, kept_ms) = (back(&mut stopping), back(&mut keeping));
        settle(&mut stopping);
        settle(&mut keeping);
        // Workers that kept their slots and return together have nothing to move.
        let whole =
            |fleet: &[Process]| Duration::from_nanos(fleet.iter().map(whole_since).max().unwrap_or_default().saturating_sub(healed));
        let figures = json!({
            "backend": kind.name(),
            "outage_ms": (healed - cut) / 1_000_000,
            "stop_back_ms": stopped_ms.as_millis(),
            "stop_whole_ms": whole(&stopping).as_millis(),
            "keep_back_ms": kept_ms.as_millis(),
            "keep_whole_ms": whole(&keeping).as_millis(),
        });
        soak::note(&figures);
        let limit = BACK_MAX[usize::from(!soak::is_on())] + if kind == Kind::Nats { GREETING_LIMIT } else { Duration::ZERO };
        assert!(stopped_ms <= limit && kept_ms <= limit, "not back within {limit:?}: {figures}");
        for (worker, before) in stopping.iter().chain(&keeping).zip(before).skip(stopping.len()) {
            assert!(worker.printed[before..].iter().all(|line| line["state"] != "fenced"), "a keeper was fenced after all");
        }
        differ_at_most(Duration::from_secs(ttl), &stopping);
        leave(&mut stopping);
        leave(&mut keeping);
    }
}

/// Checks that the last line with owned slots is followed by one without, at the deadline.
fn stopped_by_its_deadline(worker: &Process) {
    let last = worker.printed.iter().rposition(|line| owns(line) > 0).unwrap();
    let deadline = number(&worker.printed[last], "owned_until_ns");
    let next = worker.printed.get(last + 1).unwrap_or_else(|| panic!("owns after the outage: {}", worker.printed[last]));
    assert_eq!(next["state"], "fenced", "{next}");
    let late = Duration::from_nanos(number(next, "monotonic_ns").saturating_sub(deadline));
    assert!(late < REPORTED_MAX[usize::from(!soak::is_on())], "reported {late:?} after the deadline: {next}");
}

/// Checks that the worker is stale and has lost nothing meanwhile.
fn kept_what_it_had(worker: &Process) {
    let last = worker.printed.last().unwrap();
    assert_eq!(last["state"], "stale", "{last}");
    let shared = worker.printed.iter().rposition(is_active_of(3)).unwrap();
    assert!(owns(last) > 0 && worker.printed[shared + 1..].iter().all(|line| number(line, "gained") + number(line, "lost") == 0), "{last}");
}

/// When its present share began.
fn whole_since(worker: &Process) -> u64 {
    let moved = |line: &Value| number(line, "gained") + number(line, "lost") > 0;
    worker.printed.iter().rfind(|line| moved(line)).map_or(0, |line| number(line, "monotonic_ns"))
}
