//! The probes of a sidecar while its server is unreachable: it is always alive, and ready as long as it has its share.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use shardwise_testkit::Lag;

use crate::common::eventually;
use crate::common::process::Process;
use crate::http;
use crate::meeting::{Kind, Meeting, SOON, policy};

const TTL: Duration = Duration::from_secs(2);

on_both!(without_its_server_a_sidecar_is_not_ready_and_never_dead);

/// A free port: the sidecar prints its address only when it has joined, and is probed before.
fn free(meeting: &Meeting) -> SocketAddr {
    let at = meeting.unused();
    eventually("nobody listens there any more", SOON, || TcpListener::bind(at).ok());
    at
}

/// Whether it is ready. It must be alive in any case, because a restart would not make its server reachable.
fn is_ready(at: SocketAddr) -> bool {
    let alive = http::get(at, "/livez");
    assert_eq!(alive.status, 200, "{alive:?}");
    let answer = http::get(at, "/readyz");
    if answer.status != 200 {
        answer.refuses(503, "not ready");
    }
    answer.status == 200
}

fn without_its_server_a_sidecar_is_not_ready_and_never_dead(kind: Kind) {
    let meeting = Meeting::by_proxy(kind, "2s", &policy("workers", ""));
    // Connections are neither refused nor answered, so it waits, for less than the 7 s after which it would give up.
    meeting.proxy.cut_both();
    let at = free(&meeting);
    let listen = at.to_string();
    let mut sidecar = Process::start(meeting.place.command(&["serve", "--policy", "workers", "--listen", &listen]));
    eventually("it listens", SOON, || TcpStream::connect(at).ok());
    for _ in 0..10 {
        assert!(!is_ready(at), "it cannot have joined");
    }
    meeting.heal();
    let line = sidecar.prints_within(SOON, "it has joined", |line| line["listening"].is_string());
    assert_eq!(line["listening"], listen);
    eventually("it is ready", SOON, || is_ready(at).then_some(()));

    let (lag, cut) = (Lag::begin(), Instant::now());
    meeting.proxy.cut_both();
    eventually("it is not ready any more", SOON, || (!is_ready(at)).then_some(()));
    assert!(cut.elapsed() < 2 * TTL + lag.allowance(), "it was called ready for {:?} without its server", cut.elapsed());
    // Longer than a hanging thread counts as alive.
    while cut.elapsed() < 4 * TTL {
        assert!(!is_ready(at), "without its server");
        std::thread::sleep(Duration::from_millis(50));
    }
    meeting.heal();
    eventually("it is ready again", SOON, || is_ready(at).then_some(()));
    sidecar.signal(Signal::SIGTERM);
    assert_eq!(sidecar.ends("after SIGTERM").code, Some(0));
}
