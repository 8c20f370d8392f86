//! `openapi.json` compared with the sidecar itself, by schemathesis.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::lease::{Lease, request};
use crate::common::{Place, run};
use crate::{Served, TOKEN, place};

/// The tested release.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// A sidecar and its document, in a file of this place.
struct Documented<'a> {
    python: PathBuf,
    place: &'a Place,
    one: Served,
    document: Value,
}

impl<'a> Documented<'a> {
    fn start(place: &'a Place) -> Self {
        let python = shardwise_testkit::python_with(&[SCHEMATHESIS]).unwrap();
        let one = Served::start(place, &["--token-file", "token"]);
        let (status, document) = request(one.at, "GET", "/openapi.json", &[("Authorization", &format!("Bearer {TOKEN}"))], None);
        assert_eq!(status, 200, "{document}");
        Self { python, place, one, document }
    }

    /// Tries what the document says, with these arguments.
    fn tried(&self, arguments: &[&str]) {
        let file = self.place.path("openapi.json");
        std::fs::write(&file, self.document.to_string()).unwrap();
        let mut schemathesis = Command::new(&self.python);
        schemathesis.args(["-m", "schemathesis.cli", "run"]).arg(file).args(["--url", &format!("http://{}", self.one.at)]);
        schemathesis.args(["--header", &format!("Authorization: Bearer {TOKEN}"), "--seed", "7", "--max-examples", "3", "--no-color"]);
        schemathesis.args(["--request-timeout", "40"]).args(arguments).current_dir(self.place.path(""));
        let ran = run(schemathesis, b"");
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}\n{}", ran.text(), ran.err);
    }
}

#[test]
fn the_document_is_true() {
    let place = place();
    let api = Documented::start(&place);
    assert_eq!(api.document["paths"].as_object().unwrap().len(), 35, "{}", api.document);
    // A stream of events has no end; a client that accepts only JSON does not receive one. A lease that ends would end the ownership. No
    // random id is that of a session.
    api.tried(&["--exclude-path-regex", "rebalances|grants$|leases|sessions|keys/|names/|route$"]);
    // Once all members are drained, there is no route, and no member takes a request to a key or a name: 503.
    let briefly = "shardwise-within-ms: 100";
    api.tried(&["--include-path-regex", "keys/|names/|route$", "--header", briefly, "--exclude-checks", "not_a_server_error"]);
    let checks = "positive_data_acceptance,negative_data_rejection";
    api.tried(&["--include-path-regex", "sessions", "--exclude-checks", checks]);
    api.tried(&["--include-path-regex", "rebalances", "--header", "Accept: application/json"]);
    let (_, seen) = request(api.one.at, "GET", &Served::path("ownership"), &[("Authorization", &format!("Bearer {TOKEN}"))], None);
    assert_eq!(seen["state"], "active");
}

/// The routes of a worker that has a lease, and those whose answers are others under exclusive ownership. The lease stays live: its id is
/// not in the paths that are tried.
#[test]
fn the_document_is_true_under_exclusive_ownership() {
    let place = Place::of_workers("5s", "slots = 64\nownership = \"exclusive\"");
    place.write("token", format!("{TOKEN}\n"));
    let mut api = Documented::start(&place);
    let lease = Lease::kept_with(api.one.at, 10_000, TOKEN);
    let header = format!("shardwise-lease: {}", lease.id);
    // A count needs its set in the same offer, which no schema can say.
    let offer = &mut api.document["components"]["schemas"]["OfferRequest"]["properties"];
    offer.as_object_mut().unwrap().remove("counts").unwrap();
    api.tried(&["--header", &header, "--include-path-regex", "leases$|finished|enter|names$|owned|daemons"]);
    api.tried(&["--header", &header, "--include-path-regex", "holders|owner|explain|members"]);
    // Any other lease is 410, which these two checks expect of no request.
    let checks = "positive_data_acceptance,negative_data_rejection";
    api.tried(&["--header", &header, "--include-path-regex", "leases/", "--exclude-checks", checks]);

    // Without wait the answer is a stream, which has no end.
    let parameters = &mut api.document["paths"]["/v1/policies/{policy}/grants"]["get"]["parameters"];
    let wait = parameters.as_array_mut().unwrap().iter_mut().find(|parameter| parameter["name"] == "wait").unwrap();
    (wait["required"], wait["schema"]) = (json!(true), json!({"type": "integer", "enum": [0]}));
    api.tried(&["--header", &header, "--include-path-regex", "grants$", "--mode", "positive"]);
    assert_eq!(lease.asks("GET", "grants?wait=0", None).0, 200, "the lease is live still");
}
