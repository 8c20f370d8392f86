//! A group that is shown without joining it, including that of an outbox.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually, workers};
use crate::{Served, http};

pub(crate) fn observing(place: &Place, arguments: &[&str]) -> Served {
    let arguments = [&["serve", "--observe", "workers", "--listen", "127.0.0.1:0"], arguments].concat();
    let mut process = Process::start(place.command(&arguments));
    let line = process.prints("it listens", |line| line["listening"].is_string());
    assert_eq!((&line["policies"], &line["observes"]), (&serde_json::json!([]), &serde_json::json!(["workers"])));
    Served { process, at: line["listening"].as_str().unwrap().parse().unwrap(), id: line["instance_id"].as_str().unwrap().to_owned() }
}

fn sees(observer: &Served, members: u64) {
    eventually("so many are seen", PATIENCE, || (observer.ownership()["members"] == members).then_some(()));
}

/// The latest change, once the group is empty.
fn last_change(observer: &Served) -> Value {
    eventually("the change is listed", PATIENCE, || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let past = observer.get("rebalances").well("rebalances");
        past["rebalances"].as_array().unwrap().last().filter(|last| last["members"] == 0).cloned()
    })
}

fn ids(members: &Value) -> Vec<&str> {
    members["members"].as_array().unwrap().iter().filter_map(|member| member["instance_id"].as_str()).collect()
}

#[test]
fn what_is_only_observed_is_shown_and_not_joined() {
    let place = Place::of_workers("5s", "slots = 64");
    let mut worker = Served::start(&place, &[]);
    let mut observer = observing(&place, &[]);
    sees(&observer, 1);
    assert_eq!(ids(&observer.get("members").well("members")), [&worker.id]);
    let listed = http::get(observer.at, "/v1/policies").well("policies");
    assert_eq!(listed["policies"][0]["only_observed"], true, "{listed}");
    let own = observer.ownership();
    assert_eq!((&own["state"], &own["members"], &own["slots"]), (&"observing".into(), &1.into(), &64.into()), "{own}");
    for null in ["slots_owned", "owned_for_ms", "renewed_ms_ago", "ranges"] {
        assert!(own[null].is_null(), "{null}: {own}");
    }
    assert!(own["view_age_ms"].as_u64().unwrap() < 5_000, "{own}");
    let slots = observer.get("slots").well("slots");
    assert_eq!((slots["owners"].as_array().unwrap().len(), &slots["members"][0]["instance_id"]), (64, &worker.id.as_str().into()));
    assert_eq!(observer.get("owner/tenant-7").well("owner")["mine"], false);
    observer.post("owned", "Content-Type: application/json\r\n", "[\"tenant-7\"]").refuses(409, "it owns nothing");
    assert_eq!(http::get(observer.at, "/readyz").well("readyz")["status"], "ok");
    // The worker keeps everything, and its leaving is shown as such.
    worker.settles(1, |slots| slots == 64);
    worker.process.signal(Signal::SIGTERM);
    assert_eq!(worker.process.ends("after SIGTERM").code, Some(0));
    sees(&observer, 0);
    assert_eq!(observer.get("members").well("members")["vanished"], serde_json::json!([]), "it has left");
    let last = last_change(&observer);
    assert_eq!((&last["members_left"], &last["vanished"]), (&serde_json::json!([worker.id]), &0.into()), "{last}");
    observer.process.signal(Signal::SIGTERM);
    assert_eq!(observer.process.ends("after SIGTERM").code, Some(0));
}

#[test]
fn who_is_killed_has_vanished_and_a_policy_is_joined_or_observed() {
    let place = Place::of_workers("2s", "slots = 64");
    let worker = Served::start(&place, &[]);
    let observer = observing(&place, &[]);
    sees(&observer, 1);
    assert_eq!(ids(&observer.get("members").well("members")), [&worker.id]);
    worker.process.signal(Signal::SIGKILL);
    sees(&observer, 0);
    let members = observer.get("members").well("members");
    assert_eq!((&members["vanished"][0]["instance_id"], &members["vanished"][0]["is_back"]), (&worker.id.as_str().into(), &false.into()));
    let last = last_change(&observer);
    assert_eq!(last["members_vanished"], serde_json::json!([worker.id]), "{last}");
    place.run(&["serve", "--policy", "workers", "--observe", "workers", "--listen", "127.0.0.1:0"]).fails(2, &["workers", "--observe"]);
}

#[test]
fn an_outboxs_policy_is_observed() {
    let outbox = "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:events.jsonl\"\n";
    let place = Place::with_settings(&(workers("2s", "slots = 64") + outbox));
    place.run(&["outbox", "init"]).well();
    let observer = observing(&place, &["--outbox", "orders"]);
    assert_eq!(http::get(observer.at, "/v1/outbox").well("outbox")["pending"], 0);
}

/// Publishers count their outbox, but only while one of them is alive.
#[test]
fn a_sidecar_counts_an_outbox_without_a_publisher() {
    let outbox = "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:delivered.jsonl\"\n";
    let place = Place::with_settings(&(workers("2s", "slots = 64") + outbox));
    place.run(&["outbox", "init"]).well();
    let event = serde_json::json!({"aggregatetype": "order", "aggregateid": "1", "type": "Made", "payload": {}}).to_string() + "\n";
    place.run_with(&["outbox", "enqueue"], event.as_bytes()).well();
    let observer = observing(&place, &["--outbox", "orders"]);
    eventually("its metrics say that it is stuck", PATIENCE, || {
        let metrics = String::from_utf8(http::get(observer.at, "/metrics").body).unwrap();
        let says = |name: &str, value: u32| metrics.lines().any(|line| line.starts_with(name) && line.ends_with(&format!("}} {value}")));
        (says("shardwise_outbox_stuck{", 1) && says("shardwise_outbox_unpublished_events{", 1)).then_some(())
    });
}
