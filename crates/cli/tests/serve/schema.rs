//! `openapi.json` compared with the sidecar itself, by schemathesis.

use std::process::Command;

use serde_json::Value;

use crate::common::lease::Lease;
use crate::common::{Place, run};
use crate::{Served, TOKEN, http, place};

/// The tested release.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

#[test]
fn the_document_is_true() {
    let python = shardwise_testkit::python_with(&[SCHEMATHESIS]).unwrap();
    let place = place();
    let one = Served::start(&place, &["--token-file", "token"]);
    let document = place.path("openapi.json");
    let request = format!("GET /openapi.json HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n", one.at);
    let answer = http::raw(one.at, request.as_bytes());
    let reported: Value = answer.json();
    assert_eq!(reported["paths"].as_object().unwrap().len(), 27, "{reported}");
    std::fs::write(&document, &answer.body).unwrap();

    let tried = |which: &[&str]| {
        let mut schemathesis = Command::new(&python);
        schemathesis.args(["-m", "schemathesis.cli", "run"]).arg(&document).args(["--url", &format!("http://{}", one.at)]);
        schemathesis.args(["--header", &format!("Authorization: Bearer {TOKEN}"), "--seed", "7", "--max-examples", "8", "--no-color"]);
        schemathesis.args(["--request-timeout", "21"]).args(which).current_dir(place.path(""));
        let ran = run(schemathesis, b"");
        assert_eq!(ran.code, Some(0), "{which:?}: {}\n{}", ran.text(), ran.err);
    };
    // A stream of events has no end; a client that accepts only JSON does not receive one. A lease that ends would end the ownership.
    tried(&["--exclude-path-regex", "rebalances|grants$|leases"]);
    tried(&["--include-path-regex", "rebalances", "--header", "Accept: application/json"]);
    assert_eq!(one_state(&one), "active");
}

/// The routes of a worker that has a lease, but for the stream, which has no end. The lease stays live: its id is not in the paths that are tried.
#[test]
fn the_document_is_true_of_leases() {
    let python = shardwise_testkit::python_with(&[SCHEMATHESIS]).unwrap();
    let place = Place::of_workers("5s", "slots = 64\nownership = \"exclusive\"");
    let one = Served::start(&place, &[]);
    let lease = Lease::kept(one.at, 10_000);
    std::fs::write(place.path("openapi.json"), http::get(one.at, "/openapi.json").body).unwrap();
    let tried = |which: &[&str]| {
        let mut schemathesis = Command::new(&python);
        schemathesis.args(["-m", "schemathesis.cli", "run"]).arg(place.path("openapi.json")).args(["--url", &format!("http://{}", one.at)]);
        schemathesis.args(["--header", &format!("shardwise-lease: {}", lease.id), "--seed", "7", "--max-examples", "8", "--no-color"]);
        schemathesis.args(["--request-timeout", "40"]).args(which).current_dir(place.path(""));
        let ran = run(schemathesis, b"");
        assert_eq!(ran.code, Some(0), "{which:?}: {}\n{}", ran.text(), ran.err);
    };
    tried(&["--include-path-regex", "leases$|finished|enter|names|owned"]);
    // Any other lease is 410, which these two checks expect of no request.
    tried(&["--include-path-regex", "leases/", "--exclude-checks", "positive_data_acceptance,negative_data_rejection"]);
    assert_eq!(lease.asks("GET", "grants?wait=0", None).0, 200, "the lease is live still");
}

fn one_state(one: &Served) -> Value {
    let path = Served::path("ownership");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n", one.at);
    http::raw(one.at, request.as_bytes()).well("ownership")["state"].clone()
}
