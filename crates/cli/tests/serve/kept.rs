//! Connections between members: which requests share one, and to whom they lead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Runtime;

use crate::Served;
use crate::common::{PATIENCE, eventually};
use crate::middle::{Middle, PASSES};
use crate::peers::{asks, place_of_peers, service, service_at, status_of};

#[test]
fn requests_share_a_connection_and_a_read_outlives_its_end() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let tokened = format!("peer_token_file = '{}'\n", place.path("peers").display());
    let (member, count) = (service(&runtime, &place, "member", &tokened), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    let handler = move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { "ok" }
    };
    member.on_request("x", handler).unwrap();
    let middle = Middle::before(runtime.block_on(member.listen_for_requests()).unwrap(), PASSES);
    member.requests_arrive_at(middle.at, false).unwrap();
    runtime.block_on(member.register_self()).unwrap();
    let ask = |method: &str, body: &str| asks(&one, method, "instances/member/x", body).status;
    eventually("it is seen", PATIENCE, || (ask("GET", "") == 200).then_some(()));
    for _ in 0..10 {
        assert_eq!((ask("GET", ""), ask("POST", "{}")), (200, 200));
    }
    // A slow machine may lose it once because a PING is answered late.
    assert!(middle.count() < 3, "21 requests came on {} connections", middle.count());
    assert_eq!(count.load(Ordering::Relaxed), 21);
    for _ in 0..10 {
        middle.cut();
        assert_eq!(ask("GET", ""), 200);
    }
    assert_eq!(ask("POST", "{}"), 200);
    drop(runtime);
}

#[test]
fn a_member_is_called_by_the_name_in_its_record_and_another_one_there_is_recognized() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    // A name that resolves to this machine, and that clients may not call it by.
    let name = "127.1";
    let service = service_at(&runtime, &place, "mapped", "", &format!("address = \"{name}\"\nport = {}\n", one.at.port()));
    let shown = service.requests_arrive_at(([0, 0, 0, 0], one.at.port()).into(), false).unwrap();
    assert_eq!(shown, format!("tcp://{name}:{}", one.at.port()));
    runtime.block_on(service.register_self()).unwrap();
    let answer = eventually("it is seen", PATIENCE, || Some(status_of(&one, "mapped")).filter(|answer| answer.status != 404));
    let refusal = answer.refuses(502, "another member is there");
    assert!(refusal["detail"].as_str().unwrap().contains("another process is there now"), "{refusal}");
    drop(runtime);
}
