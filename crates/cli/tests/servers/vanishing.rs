//! Half of the members are killed at the same moment.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use shardwise_testkit::Lag;

use crate::common::lines::{number, owns};
use crate::common::process::Process;
use crate::meeting::{Kind, Meeting, SLOTS, SOON, differ_at_most, is_active_of, leave, now_ns, policy, shared};

const TTL: Duration = Duration::from_secs(3);
/// The limit from the kill until the others own everything, without `max_loss`.
const TAKEOVER_MAX: Duration = Duration::from_secs(4);

on_both!(half_of_the_members_vanish_with_and_without_max_loss);

fn half_of_the_members_vanish_with_and_without_max_loss(kind: Kind) {
    let policies = policy("workers", "") + &policy("guarded", "max_loss = \"25%\"");
    let meeting = Meeting::direct(kind, "3s", &policies);
    let mut workers = meeting.fleet("workers", ["worker-1", "worker-2", "worker-3", "worker-4"]);
    let mut guarded = meeting.fleet("guarded", ["guarded-1", "guarded-2", "guarded-3", "guarded-4"]);
    let lag = Lag::begin();
    let killed = now_ns();
    let victims: Vec<_> = [workers.split_off(2), guarded.split_off(2)].into_iter().flatten().collect();
    for victim in &victims {
        victim.signal(Signal::SIGKILL);
    }

    for worker in &mut workers {
        let line = worker.prints_within(SOON, "it sees the members that are left", is_active_of(2));
        let took = Duration::from_nanos(number(&line, "monotonic_ns") - killed);
        let late = lag.allowance();
        assert!(took <= TAKEOVER_MAX + late, "taken over {took:?} after the kill, with a TTL of {TTL:?} and {late:?} for this machine");
    }
    shared(&workers);

    // They expire one after another: the slots of the first may be taken over, because one of four members may be gone.
    let still = |line: &Value| is_active_of(2)(line) && line["stands_still"] == true;
    for worker in &mut guarded {
        worker.prints_within(SOON, "it waits for the confirmation", still);
    }
    let later = |worker: &mut Process| {
        let until = number(worker.printed.last().unwrap(), "monotonic_ns") + u64::try_from(TTL.as_nanos()).unwrap();
        worker.prints("a renewal much later", |line| number(line, "monotonic_ns") > until)
    };
    // Until its mark is written, a member has only the slots that the group's view gives it both with and without the mark.
    let stood: Vec<_> = guarded.iter_mut().map(later).collect();
    let kept: u64 = stood.iter().map(owns).sum();
    assert!(kept < u64::from(SLOTS), "everything is taken over although too many have vanished: {stood:?}");
    let later: Vec<_> = guarded.iter_mut().map(later).collect();
    assert!(later.iter().all(still) && later.iter().map(owns).sum::<u64>() == kept, "nobody has confirmed it: {later:?} after {stood:?}");

    let confirmed = meeting.place.run(&["confirm-loss", "--policy", "guarded", "--json"]);
    assert_eq!(confirmed.code, Some(0), "{confirmed:?}");
    for worker in &mut guarded {
        worker.shows(SOON, "it goes on", |line| line["stands_still"] == false);
    }
    shared(&guarded);
    for fleet in [&mut workers, &mut guarded] {
        leave(fleet);
        differ_at_most(TTL, fleet);
    }
}
