//! The traces of `shardwise outbox run`.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::collector::{CLIENT, Collector, PRODUCER};
use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually, workers};
use crate::{KEY, SPAN, TRACE, exporting};

const OTHER_TRACE: &str = "1bf7651916cd43dd8448eb211c80319d";
const SECRET: &str = "payload-recognisable-93ab";

#[test]
fn readings_sends_and_marks_are_seen_and_the_spans_in_which_events_were_written() {
    let place = Place::with_settings(
        &(workers("2s", "slots = 16")
            + "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:delivered.jsonl\"\npoll = \"50ms\"\n"),
    );
    let enqueue = |trace: &str| {
        let headers = json!({"traceparent": format!("00-{trace}-{SPAN}-01"), "tenant": KEY});
        let line = |n: u32| json!({"aggregatetype": "order", "aggregateid": KEY, "type": "Changed", "payload": {"n": n, "secret": SECRET}, "headers": headers});
        let lines: String = (0..3).map(|n| line(n).to_string() + "\n").collect();
        place.run_with(&["outbox", "enqueue"], lines.as_bytes()).well();
    };
    place.run(&["outbox", "init"]).well();
    enqueue(TRACE);
    let collector = Collector::start();
    let mut command = exporting(place.command(&["outbox", "run"]), collector.at);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", "publisher-a").env("RUST_LOG", "debug");
    let mut publisher = Process::start(command);
    let send = collector.gets("a send", |span| span.name == "send file");
    assert!(send.kind == PRODUCER && send.parent.is_empty() && send.is_of("publisher-a"), "{send:?}");
    assert_eq!(send.links, [TRACE], "three events of one span are one link");
    let attributes = ["messaging.system", "messaging.operation.name", "messaging.batch.message_count", "shardwise.refused"];
    assert_eq!(attributes.map(|name| send.says(name)), ["file", "send", "3", "0"], "{send:?}");
    assert!(send.says("messaging.destination.name").ends_with("delivered.jsonl"), "{send:?}");
    let mark = collector.gets("a mark", |span| span.name == "outbox mark");
    assert_eq!((mark.kind, mark.says("shardwise.fenced")), (CLIENT, "0"));

    enqueue(OTHER_TRACE);
    collector.gets("the next send", |span| span.name == "send file" && span.links == [OTHER_TRACE]);
    eventually("nothing is pending", PATIENCE, || (place.run(&["outbox", "status", "--json"]).json()["pending"] == 0).then_some(()));
    publisher.signal(Signal::SIGTERM);
    let ran = publisher.ends("after SIGTERM");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    collector.gets("the leave", |span| span.name == "leave");
    let spans = collector.spans();
    let fetched: Vec<_> =
        spans.iter().filter(|span| span.name == "outbox fetch").map(|span| span.says("messaging.batch.message_count")).collect();
    assert!(!fetched.is_empty() && !fetched.contains(&"0"), "looks at nothing are not told: {fetched:?}");
    assert!(spans.iter().any(|span| span.name == "join") && spans.iter().all(|span| span.events == 0), "{spans:#?}");
    collector.never_sees(&[KEY, SECRET, "Changed"]);
}
