//! A worker is paused (SIGSTOP) for longer than its TTL. That its late write is rejected as well: `examples/paused/` and
//! `tests/servers/faults/`.

use crate::common::scenes;
use crate::meeting::{Kind, Meeting, SLOTS, SOON, policy};

on_both!(a_worker_stopped_beyond_its_ttl_owns_nothing_until_it_has_joined_again);

fn a_worker_stopped_beyond_its_ttl_owns_nothing_until_it_has_joined_again(kind: Kind) {
    let meeting = Meeting::direct(kind, "2s", &policy("workers", ""));
    let join = |id| {
        let mut worker = meeting.start_worker("workers", id);
        worker.prints_within(SOON, "it is active", |line| line["state"] == "active");
        worker
    };
    scenes::stopped_beyond_its_ttl(join("a"), join("b"), SLOTS);
}
