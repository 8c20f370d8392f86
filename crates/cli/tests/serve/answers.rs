//! The answers of each route.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::common::{PATIENCE, eventually};
use crate::{Served, http, place};

const JSON: &str = "Content-Type: application/json\r\n";
const TEXT: &str = "Content-Type: text/plain; charset=UTF-8\r\n";

/// Two sidecars of one group, from the first request to the end of one of them.
#[test]
fn two_sidecars_share_the_keys_and_say_who_has_which() {
    let place = place();
    let mut one = Served::start(&place, &[]);
    let other = Served::start(&place, &[]);
    one.settles(2, |owned| owned > 0 && owned < 256);
    other.settles(2, |owned| owned > 0 && owned < 256);
    assert_eq!(one.ownership()["view_fingerprint"], other.ownership()["view_fingerprint"]);

    lists(&one, &other);
    owners(&one, &other);
    the_group(&one);
    events(&mut one, other);
}

fn lists(one: &Served, other: &Served) {
    let keys: Vec<String> = (0..20_000).map(|n| format!("tenant-{n} \"größe\"")).collect();
    let as_json = |served: &Served| -> Vec<String> {
        serde_json::from_value(served.post("owned", JSON, serde_json::to_vec(&keys).unwrap()).well("a list")).unwrap()
    };
    let as_text = |served: &Served| {
        let answer = served.post("owned", TEXT, keys.join("\n"));
        assert!(answer.status == 200 && answer.is_whole && answer.head.contains("shardwise-state: active"), "{}", answer.head);
        String::from_utf8(answer.body).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (mine, theirs) = (as_json(one), as_json(other));
    assert_eq!((as_text(one), as_text(other)), (mine.clone(), theirs.clone()), "in either form the same keys");
    assert!(mine.len() > 4_000 && theirs.len() > 4_000 && mine.len() + theirs.len() == keys.len());
    let both: BTreeSet<_> = mine.iter().chain(&theirs).collect();
    assert_eq!(both.len(), keys.len(), "each key has one owner");
    assert!(keys.iter().filter(|key| mine.contains(key)).eq(&mine), "in their order");

    assert_eq!(one.post("owned", JSON, "[]").well("nothing"), json!([]));
    assert_eq!(one.post("owned", TEXT, "").body, b"");
    // The key of 0 bytes is a valid key with an owner.
    let empty = |served: &Served| served.post("owned", JSON, "[\"\"]").well("a key of 0 bytes") == json!([""]);
    assert_ne!(empty(one), empty(other));
    assert_eq!(empty(one), one.post("owned", TEXT, "\n").body == b"\n");
    assert_eq!(one.get("owner/").well("a key of 0 bytes")["mine"], empty(one));
}

fn owners(one: &Served, other: &Served) {
    for (path, key) in
        [("tenant-7", "tenant-7"), ("gr%C3%B6%C3%9Fe%20%2F..%2f%00", "größe /../\0"), ("%2e%2e%2flivez", "../livez"), ("", "")]
    {
        let (here, there) = (one.get(&format!("owner/{path}")).well(path), other.get(&format!("owner/{path}")).well(path));
        assert_eq!((&here["key"], &here["owner"], &here["slot"]), (&json!(key), &there["owner"], &there["slot"]));
        assert_eq!((here["mine"] == true, there["mine"] == true), (here["owner"] == one.id, here["owner"] == other.id), "{here}");
        let explained = one.get(&format!("explain/{path}")).well(path);
        assert_eq!((&explained["owner"]["instance_id"], &explained["slot"]), (&here["owner"], &here["slot"]));
        let next = if here["owner"] == one.id { &other.id } else { &one.id };
        assert_eq!(explained["next"], **next);
    }
    let long = "k".repeat(60_000);
    assert_eq!(one.get(&format!("owner/{long}")).well("a long key")["key"], long);
}

fn the_group(one: &Served) {
    let members = one.get("members").well("members");
    let slots: u64 = members["members"].as_array().unwrap().iter().map(|member| member["slots"].as_u64().unwrap()).sum();
    assert_eq!((members["members"].as_array().unwrap().len(), slots), (2, 256), "{members}");
    let leave = json!({"leave": [one.id], "join": [{"instance_id": "x", "weight": 2}]});
    let plan = one.post("plan", JSON, leave.to_string()).well("a plan");
    assert!(plan["after"]["members"] == 2 && plan["moved_share"].as_f64().unwrap() > 0.3, "{plan}");
    assert_eq!(one.post("plan", JSON, "{}").well("nothing changes")["moves"], json!([]));
    for (path, status) in [("/livez", 200), ("/readyz", 200), ("/openapi.json", 200), ("/nothing", 404)] {
        assert_eq!(http::get(one.at, path).status, status, "{path}");
    }
    let metrics = String::from_utf8(http::get(one.at, "/metrics").body).unwrap();
    assert!(metrics.contains("shardwise_sidecar_requests_total{route=\"/v1/policies/{policy}/owner/{key}\",status=\"200\"}"), "{metrics}");
    assert!(metrics.contains("# HELP shardwise_sidecar_requests_total Requests that were answered"), "{metrics}");
    assert!(!metrics.contains("tenant"), "no key is a label: {metrics}");
}

fn next_event(lines: &mut impl Iterator<Item = String>) -> (String, Value) {
    let mut id = String::new();
    loop {
        let line = lines.next().unwrap();
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.into();
        }
        if let Some(data) = line.strip_prefix("data: ") {
            return (id, serde_json::from_str(data).unwrap());
        }
    }
}

fn follow(served: &Served, last: &str) -> impl Iterator<Item = String> + use<> {
    let mut stream = http::connect(served.at);
    let path = Served::path("rebalances");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n{last}\r\n", served.at).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == ": following"));
    lines
}

fn events(one: &mut Served, mut other: Served) {
    let history = one.get("rebalances").well("history");
    let first = history["rebalances"].as_array().unwrap().first().unwrap().clone();
    assert_eq!((&first["cause"], &first["gained"]), (&json!("joined"), &json!(256)));

    let mut live = follow(one, "");
    other.process.signal(Signal::SIGTERM);
    assert_eq!(other.process.ends("after SIGTERM").code, Some(0));
    let (id, event) = next_event(&mut live);
    // The member is not gone yet: it drains.
    assert!(event["slots_owned"] == 256 && event["cause"] == "members_changed" && event["id"] == id, "{event}");
    let again = follow(one, &format!("Last-Event-ID: {}\r\n", first["id"].as_str().unwrap()));
    let ids: Vec<_> = std::iter::repeat_with({
        let mut again = again;
        move || next_event(&mut again).0
    })
    .take_while(|seen| *seen != id)
    .collect();
    assert!(!ids.is_empty() && !ids.contains(&first["id"].as_str().unwrap().to_owned()), "{ids:?}");
    let mut strange = follow(one, "Last-Event-ID: of-another-life\r\n");
    assert!(strange.any(|line| line == "event: gap"));

    one.process.signal(Signal::SIGTERM);
    assert_eq!(one.process.ends("after SIGTERM").code, Some(0));
}

#[test]
fn a_sidecar_is_drained_and_taken_back_by_a_client_with_the_token() {
    let place = place();
    let one = Served::start(&place, &["--token-file", "token"]);
    let get = |path: &str| {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAuthorization: bearer {}\r\nConnection: close\r\n\r\n",
            Served::path(path),
            one.at,
            crate::TOKEN
        );
        http::raw(one.at, request.as_bytes())
    };
    let ready = || http::get(one.at, "/readyz").status;
    let slots = |wanted: u64| {
        eventually("its slots change", PATIENCE, || (get("ownership").well("ownership")["slots_owned"] == wanted).then_some(()));
    };
    slots(256);
    assert_eq!(ready(), 200);
    let body = json!({"instance_id": one.id});
    assert_eq!(one.acts("drain", &body).well("drain"), json!({"instance_id": one.id, "drained": true, "changed": true}));
    slots(0);
    assert_eq!((ready(), http::get(one.at, "/livez").status), (503, 200), "drained it is alive and not ready");
    assert_eq!(one.acts("drain", &body).well("again")["changed"], false);
    assert_eq!(one.acts("undrain", &body).well("undrain")["changed"], true);
    slots(256);
    let unknown = one.acts("drain", &json!({"instance_id": "nobody"})).refuses(404, "nobody");
    assert!(unknown["detail"].as_str().unwrap().contains(&one.id), "the living are named: {unknown}");

    for (route, method) in [("drain", "POST"), ("ownership", "GET")] {
        for header in ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic eDp5\r\n", "Authorization: Bearer\r\n"] {
            let path = Served::path(route);
            let request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n{header}\r\n", one.at);
            http::raw(one.at, request.as_bytes()).refuses(401, header);
        }
    }
}
