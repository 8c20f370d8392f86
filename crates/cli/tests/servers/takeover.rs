//! The time of a takeover: a worker is killed, and the others take over its slots.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use shardwise_testkit::Lag;

use crate::common::lines::{longest_overlap, number};
use crate::meeting::{Kind, Meeting, SOON, is_active_of, now_ns, policy, settle, shared};
use crate::soak;

const TTL: Duration = Duration::from_secs(3);
const RENEWAL: Duration = Duration::from_secs(1);
/// The limit from the kill until the others own everything.
const TAKEOVER_MAX: Duration = Duration::from_secs(4);

on_all!(a_killed_worker_is_replaced_within_its_ttl_and_a_second);

fn a_killed_worker_is_replaced_within_its_ttl_and_a_second(kind: Kind) {
    let meeting = Meeting::direct(kind, "3s", &policy("workers", ""));
    let mut fleet = meeting.fleet("workers", ["worker-1", "worker-2", "worker-3"]);
    let runs = soak::runs(1);
    for run in 0..runs {
        let mut victim = fleet.remove(0);
        // A takeover takes longest right after a renewal; later runs are spread evenly over the time between two.
        victim.prints("a renewal", |line| line["state"] == "active" && number(line, "gained") + number(line, "lost") == 0);
        std::thread::sleep(RENEWAL * run / runs);
        let lag = Lag::begin();
        let killed = now_ns();
        victim.signal(Signal::SIGKILL);
        let taken = fleet.iter_mut().map(|other| other.prints_within(SOON, "it takes over", is_active_of(2)));
        let taken: Vec<_> = taken.map(|line| number(&line, "monotonic_ns")).collect();
        shared(&fleet);
        let took = Duration::from_nanos(taken.iter().max().unwrap() - killed);
        soak::note(&json!({ "backend": kind.name(), "takeover_ms": took.as_millis() }));
        let late = lag.allowance();
        assert!(
            took <= TAKEOVER_MAX + late,
            "run {run}: taken over {took:?} after the kill, with a TTL of {TTL:?} and {late:?} for this machine"
        );

        victim.ends("after SIGKILL");
        let deadline = number(victim.printed.last().unwrap(), "owned_until_ns");
        assert!(taken.iter().all(|taken| *taken > deadline), "taken {taken:?} before the dead one's deadline {deadline}");
        for other in &fleet {
            assert!(longest_overlap(&victim.printed, &other.printed) < TTL, "views differed for a TTL");
        }
        fleet.push(meeting.start_worker("workers", &format!("worker-{}", run + 4)));
        settle(&mut fleet);
    }
}
