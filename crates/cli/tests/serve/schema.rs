//! `openapi.json` compared with the sidecar itself, by schemathesis.

use std::process::Command;

use serde_json::Value;

use crate::common::run;
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
    assert_eq!(reported["paths"].as_object().unwrap().len(), 21, "{reported}");
    std::fs::write(&document, &answer.body).unwrap();

    let tried = |which: &[&str]| {
        let mut schemathesis = Command::new(&python);
        schemathesis.args(["-m", "schemathesis.cli", "run"]).arg(&document).args(["--url", &format!("http://{}", one.at)]);
        schemathesis.args(["--header", &format!("Authorization: Bearer {TOKEN}"), "--seed", "7", "--max-examples", "8", "--no-color"]);
        schemathesis.args(["--request-timeout", "21"]).args(which).current_dir(place.path(""));
        let ran = run(schemathesis, b"");
        assert_eq!(ran.code, Some(0), "{which:?}: {}\n{}", ran.text(), ran.err);
    };
    // A stream of events has no end; a client that accepts only JSON does not receive one.
    tried(&["--exclude-path-regex", "rebalances"]);
    tried(&["--include-path-regex", "rebalances", "--header", "Accept: application/json"]);
    assert_eq!(one_state(&one), "active");
}

fn one_state(one: &Served) -> Value {
    let path = Served::path("ownership");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n", one.at);
    http::raw(one.at, request.as_bytes()).well("ownership")["state"].clone()
}
