//! Scenes for workers on any backend.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::lines::{longest_overlap, members, number, owns};
use super::process::Process;

/// Two workers have joined a group of `slots` slots; one is paused until the other has taken over, and then continues.
pub(crate) fn stopped_beyond_its_ttl(mut a: Process, mut b: Process, slots: u32) {
    let slots = u64::from(slots);
    for attempt in 1.. {
        a.prints("sees both", |line| members(line) == 2 && line["state"] == "active");
        // Right after a renewal nothing is being written, if the machine runs this process in time.
        a.prints("a renewal", |line| number(line, "gained") + number(line, "lost") == 0);
        a.signal(Signal::SIGSTOP);
        let line = b.prints("has taken over, or cannot renew", |line| [0, slots].contains(&owns(line)));
        if owns(&line) == slots {
            break;
        }
        // With a file, a process that is paused inside a write blocks the others, as documented. Then the scene is repeated.
        assert!(attempt < 10, "stopped {attempt} times inside a write");
        a.signal(Signal::SIGCONT);
        b.prints("is back", |line| members(line) == 2 && line["state"] == "active" && owns(line) > 0);
        a.catch_up();
    }
    b.prints("a renewal", |line| number(line, "gained") == 0);
    a.catch_up();
    let before = a.printed.len();
    a.signal(Signal::SIGCONT);
    a.prints("is back", |line| owns(line) > 0);
    b.prints("shares again", |line| owns(line) < slots);
    for process in [&mut a, &mut b] {
        process.signal(Signal::SIGTERM);
        assert_eq!(process.ends("after SIGTERM").code, Some(0));
    }

    let (last, first) = (&a.printed[before - 1], &a.printed[before]);
    assert!(number(last, "owned_until_ns") < number(first, "monotonic_ns"), "stopped for less than its lease:\n{last}\n{first}");
    assert_eq!((&first["state"], owns(first), number(first, "lost")), (&"fenced".into(), 0, owns(last)));
    let back = before + a.printed[before..].iter().position(|line| line["state"] == "active").unwrap();
    for line in &a.printed[before..back] {
        assert!(owns(line) == 0 && ["fenced", "joining"].contains(&line["state"].as_str().unwrap()), "{line}");
    }
    // Until its return it never had a slot at the same time as the worker that took over.
    let joined = number(&a.printed[before - 1], "monotonic_ns");
    let shared = b.printed.iter().position(|line| members(line) == 2 && line["state"] == "active").unwrap();
    let takeover = b.printed.iter().position(|line| number(line, "monotonic_ns") > joined && owns(line) == slots).unwrap();
    assert!(shared < takeover);
    let gained = number(&b.printed[takeover], "monotonic_ns");
    let overlap = a.printed[..back].iter().map(|line| number(line, "owned_until_ns").saturating_sub(gained)).max();
    assert_eq!(overlap, Some(0), "a slot was taken before the deadline of the one that had it");
    let overlap = longest_overlap(&a.printed, &b.printed);
    assert!(overlap < Duration::from_secs(1), "views differed for {overlap:?}");
}
