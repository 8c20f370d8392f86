//! What a client can take from a worker's lease: nothing with a stream that it does not read, and nothing with too many requests.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use crate::common::lease::Lease;
use crate::common::{PATIENCE, eventually};
use crate::leases::{exclusive, refused, stream_head};
use crate::{Served, http};

/// Less than the list of the grants of 64 slots.
const RECEIVE_BYTES: u32 = 2_048;
/// Longer than the first grants take on a busy machine, because the lease is not renewed before.
const TTL: Duration = Duration::from_secs(6);

/// Asks for the stream of the grants, in a connection that takes in hardly anything unless it is read.
fn unread(at: SocketAddr, lease: &Lease) -> TcpStream {
    let stream = Runtime::new().unwrap().block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(RECEIVE_BYTES).unwrap();
        socket.connect(at).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    (&stream).write_all(stream_head(at, lease).as_bytes()).unwrap();
    stream
}

/// Whether the process at the port `theirs` has this connection open: the system's table shows the inode 0 for one that no process has.
fn has_open(theirs: u16, ours: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_it = |row: &str| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let is_at = |field: usize, port: u16| fields.get(field).is_some_and(|address| address.ends_with(&format!(":{port:04X}")));
        is_at(1, theirs) && is_at(2, ours) && fields.get(9).is_some_and(|inode| *inode != "0")
    };
    table.lines().any(is_it)
}

#[test]
fn a_stream_that_is_never_read_is_closed_with_its_lease() {
    let place = exclusive("");
    let served = Served::start(&place, &[]);
    let begun = Instant::now();
    let lease = Lease::once(served.at, 6_000);
    let stream = unread(served.at, &lease);
    let is_open = || has_open(served.at.port(), stream.local_addr().unwrap().port());
    eventually("it is open", PATIENCE, || is_open().then_some(()));
    eventually("something was granted", PATIENCE, || (served.ownership()["slots_owned"] != 0).then_some(()));
    let refusal = eventually("it is renewed no more", PATIENCE, || {
        std::thread::sleep(Duration::from_millis(200));
        let answer = lease.asks("PUT", &format!("leases/{}", lease.id), Some(&json!({"seen": 0})));
        (answer.0 != 200).then_some(answer)
    });
    assert!(refused(&refusal, 410, "lease-ended").contains("were not read"), "{refusal:?}");
    assert!(begun.elapsed() > TTL, "a worker has a whole ttl for reading");
    eventually("its lease ends", PATIENCE, || {
        let seen = served.ownership();
        (seen["lease_ends_in_ms"].is_null() && seen["slots_owned"] == 0).then_some(())
    });
    eventually("its connection is closed", PATIENCE, || (!is_open()).then_some(()));
}

#[test]
fn requests_that_use_up_the_rate_cost_no_worker_its_lease() {
    let place = exclusive("");
    let served = Served::start(&place, &["--rate", "1"]);
    let lease = Lease::once(served.at, 60_000);
    let is_used_up = || http::get(served.at, &Served::path("ownership")).status == 429;
    eventually("the rate is used up", PATIENCE, || is_used_up().then_some(()));
    for _ in 0..20 {
        is_used_up();
        assert_eq!(lease.asks("PUT", &format!("leases/{}", lease.id), None).0, 200);
        assert_eq!(lease.asks("POST", "grants/finished", Some(&json!({"grants": []}))), (200, json!({"finished": 0})));
    }
    eventually("other requests count", PATIENCE, || (lease.asks("GET", "grants?wait=0", None).0 == 429).then_some(()));
}
