//! A sidecar with a low limit on open files.

use std::net::TcpStream;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually};
use crate::{Served, http, place};

fn limited(place: &Place, limits: &str) -> Served {
    let program = place.command(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0"]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")]).arg(program.get_program()).args(program.get_args());
    command.current_dir(place.path("")).env("TMPDIR", place.path(""));
    let mut process = Process::start(command);
    let line = process.prints("it listens", |line| line["listening"].is_string());
    Served { process, at: line["listening"].as_str().unwrap().parse().unwrap(), id: line["instance_id"].as_str().unwrap().to_owned() }
}

fn may_open(served: &Served) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", served.process.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().to_owned()
}

#[test]
fn what_the_system_allows_is_used_and_what_it_does_not_is_not_taken() {
    let place = place();
    let mut raised = limited(&place, "ulimit -Sn 200 && ulimit -Hn 900");
    assert_eq!(may_open(&raised), "768");
    raised.process.signal(Signal::SIGTERM);
    let log = raised.process.ends("after SIGTERM").err;
    assert!(!log.contains("--max-connections"), "{log}");

    let mut few = limited(&place, "ulimit -n 300");
    let idle: Vec<TcpStream> = (0..400).map(|_| http::connect(few.at)).collect();
    assert_eq!(few.get("ownership").status, 200, "beside {} idle ones", idle.len());
    let open = || std::fs::read_dir(format!("/proc/{}/fd", few.process.pid())).unwrap().count();
    eventually("there is room for the backend's files", PATIENCE, || (open() < 200).then_some(()));
    drop(idle);
    few.process.signal(Signal::SIGTERM);
    let log = few.process.ends("after SIGTERM").err;
    assert!(log.contains("--max-connections") && log.contains("connections=75"), "{log}");
}
