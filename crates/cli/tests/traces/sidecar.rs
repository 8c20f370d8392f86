//! The traces of `shardwise serve`.

use nix::sys::signal::Signal;
use shardwise_testkit::Authority;

use crate::collector::{CLIENT, Collector, ERROR, SERVER};
use crate::common::lease::Lease;
use crate::common::{PATIENCE, eventually};
use crate::{KEY, SPAN, Served, TOKEN, TRACE, exporting, metric, place};

const OWNER: &str = "GET /v1/policies/{policy}/owner/{key}";

fn traceparent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{SPAN}-{flags}\r\n")
}

#[test]
fn a_join_a_request_and_a_leave_are_seen_and_nothing_of_keys_or_secrets() {
    let (place, collector) = (place("5s", "slots = 256"), Collector::start());
    let mut command = exporting(Served::command(&place), collector.at);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=only-the-collector-may-see-this").env("RUST_LOG", "debug");
    let mut served = Served::start(command);
    let join = collector.gets("the join", |span| span.name == "join");
    assert!(join.parent.is_empty() && join.is_of(&served.id), "{join:?}");
    assert_eq!((join.says("shardwise.policy"), join.says("shardwise.instance")), ("workers", served.id.as_str()));
    assert_eq!((join.of["service.name"].as_str(), join.of["service.version"].as_str()), ("shardwise", env!("CARGO_PKG_VERSION")));
    let register = collector.gets("the registration", |span| span.name == "local register");
    assert_eq!((register.parent.as_str(), register.kind), (join.id.as_str(), CLIENT), "{register:?}");
    let rebalance = collector.gets("the rebalance", |span| span.name == "rebalance");
    assert_eq!(rebalance.parent, join.id);
    let attributes = ["cause", "gained", "lost", "owned", "members"].map(|name| rebalance.says(&format!("shardwise.{name}")).to_owned());
    assert_eq!(attributes, ["joined", "256", "0", "256", "1"], "{rebalance:?}");
    assert!(rebalance.says("shardwise.revision").parse::<u64>().is_ok(), "{rebalance:?}");

    let asked = format!("/v1/policies/workers/owner/{KEY}?note=of-the-caller");
    let others = format!("{}Cookie: of-the-caller\r\nbaggage: of=the-caller\r\n", traceparent("01"));
    assert_eq!(served.get(&asked, TOKEN, &others).status, 200);
    let request = collector.gets("the request", |span| span.name == OWNER);
    assert_eq!((request.trace.as_str(), request.parent.as_str(), request.kind), (TRACE, SPAN, SERVER), "it goes on with the caller's");
    let attributes = ["http.request.method", "http.route", "http.response.status_code"].map(|name| request.says(name));
    assert_eq!(attributes, ["GET", "/v1/policies/{policy}/owner/{key}", "200"]);

    assert_eq!(served.get(&asked, "not-the-token-that-is-right", &traceparent("01")).status, 401);
    let refused = collector.gets("the refusal", |span| span.says("http.response.status_code") == "401");
    assert!(refused.trace != TRACE && refused.parent.is_empty(), "a stranger's trace is not gone on with: {refused:?}");

    for odd in ["traceparent: of-the-caller\r\n".to_owned(), traceparent("01") + &traceparent("01")] {
        assert_eq!(served.get("/v1/policies/workers/members", TOKEN, &odd).status, 200);
    }
    // A request that its caller does not record is not recorded here.
    assert_eq!(served.get("/v1/policies/workers/ownership", TOKEN, &traceparent("00")).status, 200);
    let word = http_word(&served);
    let err = served.stops();
    let leave = collector.gets("the leave", |span| span.name == "leave");
    collector.gets("the end of the record", |span| span.name == "local deregister" && span.parent == leave.id);
    let spans = collector.spans();
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let members = named("GET /v1/policies/{policy}/members");
    assert!(members.len() == 2 && members.iter().all(|span| span.trace != TRACE && span.parent.is_empty()), "{members:?}");
    assert!(named("GET /v1/policies/{policy}/ownership").is_empty());
    assert!(named("_OTHER /v1/policies/{policy}/members").len() == 1, "{spans:#?}");
    // Each joining member reads the note that says whether it must drain.
    let is_steady = |name: &str| ["local renew", "local members", "local note", "GET /livez", "GET /metrics"].contains(&name);
    assert!(!spans.iter().any(|span| is_steady(&span.name)), "that is for those who ask for all: {spans:#?}");
    // Log events may name more than a span does, and are not exported.
    assert!(spans.iter().all(|span| span.events == 0 && span.status != ERROR && !span.says.contains_key("code.file.path")), "{spans:#?}");
    collector.never_sees(&[KEY, TOKEN, "not-the-token-that-is-right", "of-the-caller", "only-the-collector", &word]);
    assert!(collector.heads().contains("x-collector-key: only-the-collector-may-see-this"));
    assert!(collector.heads().starts_with("post /v1/traces http/1.1"));
    assert!(!err.contains("only-the-collector"), "{err}");
}

/// Sends a request with an arbitrary word as the method, and returns the word.
fn http_word(served: &Served) -> String {
    let word = "RECOGNISABLE";
    let request = format!(
        "{word} /v1/policies/workers/members HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        served.at
    );
    assert_eq!(crate::http::raw(served.at, request.as_bytes()).status, 405);
    word.to_owned()
}

#[test]
fn what_goes_on_all_the_time_is_seen_by_those_who_ask_for_it() {
    let (place, collector) = (place("1s", "slots = 16"), Collector::start());
    let mut command = exporting(Served::command(&place), collector.at);
    command
        .env("SHARDWISE_TRACES", "debug")
        .env("OTEL_SERVICE_NAME", "billing")
        .env("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=mine");
    let served = Served::start(command);
    collector.gets("what operators want", |span| span.name == "local note");
    let renewal = collector.gets("a renewal", |span| span.name == "local renew");
    assert_eq!((renewal.of["service.name"].as_str(), renewal.is_of("mine")), ("billing", true));
    assert_eq!(served.get("/livez", "", "").status, 200);
    collector.gets("a probe", |span| span.name == "GET /livez");
}

#[test]
fn a_collector_is_believed_if_the_right_ca_has_signed_for_it() {
    let (right, wrong) = (Authority::new().unwrap(), Authority::new().unwrap());
    let (place, collector) = (place("5s", "slots = 16"), Collector::with_tls(&right.server().unwrap()));
    let start = |ca: &Authority| {
        let mut command = exporting(Served::command(&place), collector.at);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("https://{}", collector.at)).env("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.file());
        Served::start(command)
    };
    let mut doubting = start(&wrong);
    eventually("it is not believed", PATIENCE, || {
        (metric(&doubting.metrics(), "shardwise_traces_spans_total", "failed") > 0).then_some(())
    });
    doubting.stops();
    assert!(collector.spans().is_empty());
    let believing = start(&right);
    collector.gets("the join", |span| span.name == "join" && span.is_of(&believing.id));
}

#[test]
fn a_request_to_another_member_is_one_trace() {
    let (place, collector) = (place("5s", "slots = 16"), Collector::start());
    place.write("peers", "peers-show-each-other-this\n");
    let start = || {
        let mut command = exporting(Served::command(&place), collector.at);
        command.args(["--peer-token-file", "peers"]);
        Served::start(command)
    };
    let (one, mut other) = (start(), start());
    let path = format!("/v1/policies/workers/instances/{}/status", other.id);
    eventually("the other one is seen", PATIENCE, || (one.get(&path, TOKEN, "").status == 200).then_some(()));
    assert_eq!(one.get(&path, TOKEN, &traceparent("01")).status, 200);
    let of_trace = |name: &str| collector.gets(name, |span| span.trace == TRACE && span.name == name);
    let request = of_trace("GET /v1/policies/{policy}/instances/{instance_id}/{*path}");
    let asking = of_trace("GET member");
    let answering = of_trace("GET /{*path}");
    assert!(request.parent == SPAN && request.is_of(&one.id), "{request:?}");
    assert!(asking.parent == request.id && asking.kind == CLIENT && asking.is_of(&one.id), "{asking:?}");
    assert_eq!((asking.says("shardwise.instance"), asking.says("http.response.status_code")), (other.id.as_str(), "200"));
    assert!(answering.parent == asking.id && answering.kind == SERVER && answering.is_of(&other.id), "{answering:?}");

    let spans = collector.spans();
    let mut answering = spans.iter().filter(|span| span.name == "GET /{*path}");
    assert!(answering.all(|span| !span.parent.is_empty()), "a connection is no trace of its own: {spans:#?}");

    other.process.signal(Signal::SIGKILL);
    other.process.ends("after SIGKILL");
    assert_eq!(one.get(&path, TOKEN, "").status, 502);
    let failed = collector.gets("does not answer", |span| span.name == "GET member" && span.status == ERROR);
    assert_eq!(failed.says("error.type"), "unreachable");
    collector.never_sees(&[TOKEN, "peers-show-each-other-this"]);
}

#[test]
fn a_handover_is_seen_where_the_slots_come_from_and_where_they_go() {
    let (place, collector) = (place("5s", "slots = 16\nownership = \"exclusive\""), Collector::start());
    let start = || Served::start(exporting(Served::command(&place), collector.at));
    let one = start();
    let _first = Lease::kept_with(one.at, 10_000, TOKEN);
    let gained = |id: &str| {
        let handover =
            collector.gets("it gains", |span| span.name == "handover" && span.says("shardwise.direction") == "gain" && span.is_of(id));
        assert!(["graceful", "emergency"].contains(&handover.says("shardwise.kind")), "{handover:?}");
        handover
    };
    gained(&one.id);
    let other = start();
    let _second = Lease::kept_with(other.at, 10_000, TOKEN);
    assert_eq!(gained(&other.id).says("shardwise.kind"), "graceful");
    let given = collector.gets("the first one gives", |span| span.says("shardwise.direction") == "lose" && span.is_of(&one.id));
    collector.gets("its claims", |span| span.name == "local release" && span.parent == given.id);
    collector.gets("the other one's claims", |span| span.name == "local acquire" && span.is_of(&other.id) && span.kind == CLIENT);
}
