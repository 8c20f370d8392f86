//! The interfaces for supervisors: systemd, over a datagram socket, and a container's health check.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]

mod common;

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

use common::process::Process;
use common::{PATIENCE, Place, eventually, workers};
use nix::sys::signal::Signal;

const SERVE: [&str; 5] = ["serve", "--policy", "workers", "--listen", "127.0.0.1:0"];

/// systemd's end of the socket.
struct Systemd(UnixDatagram);

impl Systemd {
    fn at(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn hears(&self) -> String {
        let mut bytes = [0; 256];
        let length = self.0.recv(&mut bytes).unwrap_or_else(|error| panic!("nothing was said: {error}"));
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// Everything sent until the process has ended.
    fn hears_to_the_end(&self, process: &mut Process) -> Vec<String> {
        process.signal(Signal::SIGTERM);
        let ran = process.ends("after SIGTERM");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        self.0.set_nonblocking(true).unwrap();
        let mut bytes = [0; 256];
        let mut heard = Vec::new();
        while let Ok(length) = self.0.recv(&mut bytes) {
            heard.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
        }
        heard
    }
}

/// Checks the messages: ready, then watchdog notifications, then stopping, and nothing else.
fn lives_as_systemd_wants(systemd: &Systemd, command: Command) {
    let mut process = Process::start(command);
    assert_eq!(systemd.hears(), "READY=1");
    for _ in 0..5 {
        assert_eq!(systemd.hears(), "WATCHDOG=1");
    }
    let rest = systemd.hears_to_the_end(&mut process);
    assert_eq!(rest.iter().filter(|line| *line == "STOPPING=1").count(), 1, "{rest:?}");
    assert!(rest.iter().all(|line| line == "WATCHDOG=1" || line == "STOPPING=1"), "{rest:?}");
}

fn watched(mut command: Command, socket: &str) -> Command {
    command.env("NOTIFY_SOCKET", socket).env("WATCHDOG_USEC", "90000");
    command
}

#[test]
fn a_sidecar_notifies_systemd_how_it_goes() {
    let place = Place::of_workers("5s", "slots = 256");
    let path = place.path("notify");
    let systemd = Systemd::at(UnixDatagram::bind(&path).unwrap());
    lives_as_systemd_wants(&systemd, watched(place.command(&SERVE), path.to_str().unwrap()));
}

#[test]
fn a_publisher_notifies_systemd_how_it_goes() {
    let outbox = "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:events.jsonl\"\n";
    let place = Place::with_settings(&(workers("5s", "") + outbox));
    place.run(&["outbox", "init"]).well();
    let name = format!("shardwise-test-{}", std::process::id());
    let systemd = Systemd::at(UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap());
    lives_as_systemd_wants(&systemd, watched(place.command(&["outbox", "run"]), &format!("@{name}")));
}

#[test]
fn what_is_meant_for_others_or_cannot_be_is_passed_over() {
    let place = Place::of_workers("5s", "slots = 256");
    let path = place.path("notify");
    let systemd = Systemd::at(UnixDatagram::bind(&path).unwrap());
    let mut command = watched(place.command(&SERVE), path.to_str().unwrap());
    command.env("WATCHDOG_PID", "1");
    let mut process = Process::start(command);
    assert_eq!(systemd.hears(), "READY=1");
    assert_eq!(systemd.hears_to_the_end(&mut process), ["STOPPING=1"], "the watchdog is another process's");

    for socket in ["", "@", "/no/such/socket", "relative"] {
        let mut command = watched(place.command(&SERVE), socket);
        command.env("WATCHDOG_USEC", "soon");
        let mut process = Process::start(command);
        process.prints("it listens all the same", |line| line["listening"].is_string());
        process.signal(Signal::SIGTERM);
        assert_eq!(process.ends("after SIGTERM").code, Some(0), "{socket:?}");
    }
}

#[test]
fn a_health_check_asks_the_program_itself() {
    let place = Place::of_workers("5s", "slots = 256");
    place.write("token", "correct-horse-battery-staple\n");
    let mut process = Process::start(place.command(&[&SERVE[..], &["--token-file", "token"]].concat()));
    let line = process.prints("it listens", |line| line["listening"].is_string());
    let (at, id) = (line["listening"].as_str().unwrap(), line["instance_id"].as_str().unwrap());
    let probe = |path: &str| place.run(&["probe", "--json", "--at", at, "--path", path]);
    eventually("it is ready", PATIENCE, || (probe("/readyz").code == Some(0)).then_some(()));
    let well = probe("/livez");
    assert!(well.code == Some(0) && well.json()["well"] == true && well.json()["status"] == 200, "{well:?}");
    assert!(place.run(&["probe", "--at", at]).well().starts_with("200 "));

    // With a warning, because no other member is left.
    assert_eq!(place.run(&["drain", id]).code, Some(0));
    eventually("drained it is not ready", PATIENCE, || {
        let answer = probe("/readyz");
        (answer.code == Some(1) && answer.json()["status"] == 503).then_some(())
    });
    assert_eq!(probe("/livez").code, Some(0), "and alive");

    process.signal(Signal::SIGSTOP);
    place.run(&["probe", "--at", at, "--within", "1"]).fails(3, &[at, "no answer within 1 s"]);
    process.signal(Signal::SIGKILL);
    process.ends("after SIGKILL");
    place.run(&["probe", "--at", at]).fails(3, &["cannot ask", at]);
    place.run(&["probe", "--path", "/metrics"]).fails(2, &["/metrics", "/readyz"]);
}
