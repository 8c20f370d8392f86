//! Daemons over HTTP: workers offer a set, and the first offer or an operator sets their number.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::common::lease::{Lease, request};
use crate::common::{PATIENCE, eventually};
use crate::leases::{exclusive, refused};
use crate::observing::observing;
use crate::{Served, TOKEN};

/// Asks with the operator's token.
fn asks(served: &Served, method: &str, rest: &str, body: Option<&Value>) -> (u16, Value) {
    request(served.at, method, &Lease::path(rest), &[("Authorization", &format!("Bearer {TOKEN}"))], body)
}

/// Waits until these daemons run, each in one worker, and no others.
fn runs(leases: &[Lease], names: &[&str]) {
    eventually("these daemons run", PATIENCE, || {
        let tables = leases.iter().map(Lease::table);
        let grants = tables.flat_map(|table| table["grants"].as_array().unwrap().clone()).filter(|grant| grant["finish"] == false);
        let mut held: Vec<String> = grants.filter_map(|grant| Some(grant["name"].as_str()?.to_owned())).collect();
        held.sort();
        (held == names).then_some(())
    });
}

#[test]
fn daemons_run_over_http_in_the_number_that_an_offer_or_an_operator_has_set() {
    let place = exclusive("");
    let served = [(); 2].map(|()| Served::start(&place, &["--token-file", "token"]));
    let leases = served.each_ref().map(|served| Lease::kept_with(served.at, 5_000, TOKEN));
    // The second offer finds a number.
    for (lease, count) in leases.iter().zip([3, 5]) {
        let offer = json!({"daemons": ["ingest"], "counts": {"ingest": count}});
        assert_eq!(lease.asks("PUT", "names", Some(&offer)), (200, json!({"names": 1})));
    }
    runs(&leases, &["daemon/ingest/0", "daemon/ingest/1", "daemon/ingest/2"]);
    assert_eq!(asks(&served[0], "GET", "daemons/ingest", None), (200, json!({"set": "ingest", "count": 3})));
    let changed = asks(&served[1], "PUT", "daemons/ingest", Some(&json!({"count": 1})));
    assert_eq!(changed, (200, json!({"set": "ingest", "count": 1, "before": 3})));
    runs(&leases, &["daemon/ingest/0"]);

    let observer = observing(&place, &["--token-file", "token"]);
    let changed = asks(&observer, "PUT", "daemons/ingest", Some(&json!({"count": 2})));
    assert_eq!(changed, (200, json!({"set": "ingest", "count": 2, "before": 1})));
    runs(&leases, &["daemon/ingest/0", "daemon/ingest/1"]);
    assert_eq!(asks(&observer, "GET", "daemons/ingest", None), (200, json!({"set": "ingest", "count": 2})));
}

#[test]
fn a_set_without_a_number_is_logged_and_a_number_that_is_not_allowed_is_refused() {
    let place = exclusive("");
    let mut served = Served::start(&place, &["--token-file", "token"]);
    let lease = Lease::kept_with(served.at, 5_000, TOKEN);
    let strange = [json!({"other": 1}), json!({"ingest": 1_025}), json!({"ingest": -1}), json!({"": 1})];
    for counts in strange {
        refused(&lease.asks("PUT", "names", Some(&json!({"daemons": ["ingest"], "counts": counts}))), 400, "bad-request");
    }
    for bad in [json!({}), json!({"count": 1_025}), json!({"count": null}), json!({"count": 1, "more": 1})] {
        refused(&asks(&served, "PUT", "daemons/ingest", Some(&bad)), 400, "bad-request");
    }
    assert_eq!(asks(&served, "GET", "daemons/ingest", None), (200, json!({"set": "ingest", "count": null})));

    for _ in 0..2 {
        let offer = json!({"daemons": ["ingest", ""], "counts": {"": 1}});
        assert_eq!(lease.asks("PUT", "names", Some(&offer)), (200, json!({"names": 2})));
    }
    runs(std::slice::from_ref(&lease), &["daemon/0"]);
    // The set without a name is at the path that ends with the slash.
    assert_eq!(asks(&served, "GET", "daemons/", None), (200, json!({"set": "", "count": 1})));
    assert_eq!(lease.asks("DELETE", &format!("leases/{}", lease.id), None).0, 204);
    served.process.signal(Signal::SIGTERM);
    let log = served.process.ends("after SIGTERM").err;
    let line = "no daemon of the set \"ingest\" runs, because its number is not set; to set it: shardwise daemons \"ingest\" COUNT --policy workers";
    assert_eq!((log.matches(line).count(), log.matches("no daemon of the set").count()), (1, 1), "{log}");
}

#[test]
fn only_an_operator_sets_a_number_and_only_under_exclusive_ownership() {
    let (worker, place) = ("workers-show-this-one-here", exclusive(""));
    place.write("worker", format!("{worker}\n"));
    let served = Served::start(&place, &["--token-file", "token", "--worker-token-file", "worker"]);
    let bearer = format!("Bearer {worker}");
    let refusal = request(served.at, "PUT", &Lease::path("daemons/ingest"), &[("Authorization", &bearer)], Some(&json!({"count": 1})));
    refused(&refusal, 403, "forbidden");

    let elsewhere = exclusive("");
    let open = Served::start(&elsewhere, &[]);
    refused(&asks(&open, "PUT", "daemons/ingest", Some(&json!({"count": 1}))), 403, "forbidden");
    assert_eq!(asks(&open, "GET", "daemons/ingest", None), (200, json!({"set": "ingest", "count": null})));

    let elsewhere = crate::place();
    let eventual = Served::start(&elsewhere, &["--token-file", "token"]);
    assert!(refused(&asks(&eventual, "GET", "daemons/ingest", None), 409, "conflict").contains("ownership = \"eventual\""));
}
