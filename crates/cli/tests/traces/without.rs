//! A collector that is unreachable, hangs, or is invalid: nothing else changes.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use shardwise_testkit::Authority;

use crate::common::{PATIENCE, eventually};
use crate::{KEY, Served, TOKEN, exporting, metric, place};

/// The end waits two seconds for a collector; without that bound it would wait for an export's timeout, a minute here.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Checks that the sidecar answers as usual, renews in time, and ends soon; returns its stderr.
fn goes_on(served: &mut Served) -> String {
    let renewed = |served: &Served| metric(&served.metrics(), "shardwise_renewal_seconds_count", "");
    let before = renewed(served);
    eventually("some renewals more", PATIENCE, || {
        for _ in 0..10 {
            assert_eq!(served.get(&format!("/v1/policies/workers/owner/{KEY}"), TOKEN, "").status, 200);
        }
        (renewed(served) >= before + 5).then_some(())
    });
    assert_eq!(metric(&served.metrics(), "shardwise_rebalances_total", "fenced"), 0, "it was never late");
    let stopping = Instant::now();
    let err = served.stops();
    assert!(stopping.elapsed() < ENDS_WITHIN, "it took {:?} to end", stopping.elapsed());
    err
}

#[test]
fn a_collector_that_hangs_costs_spans_which_are_counted() {
    // Connections are established but never accepted.
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = place("3s", "slots = 16");
    let mut command = exporting(Served::command(&place), hangs.local_addr().unwrap());
    command.env("OTEL_EXPORTER_OTLP_TIMEOUT", "60000").env("OTEL_BSP_MAX_QUEUE_SIZE", "8");
    let mut served = Served::start(command);
    eventually("more than the queue holds", PATIENCE, || {
        served.get(&format!("/v1/policies/workers/owner/{KEY}"), TOKEN, "");
        (metric(&served.metrics(), "shardwise_traces_spans_total", "dropped") > 0).then_some(())
    });
    goes_on(&mut served);
}

#[test]
fn a_collector_that_is_not_there_is_reported_once() {
    // A port that the system does not assign; nothing listens there.
    let gone = "127.0.0.1:1".parse().unwrap();
    let place = place("3s", "slots = 16");
    let mut served = Served::start(exporting(Served::command(&place), gone));
    eventually("some were not taken", PATIENCE, || (metric(&served.metrics(), "shardwise_traces_spans_total", "failed") > 0).then_some(()));
    let err = goes_on(&mut served);
    assert_eq!(err.matches("the collector does not take traces").count(), 1, "{err}");
}

#[test]
fn what_cannot_be_exported_is_a_warning_and_the_worker_works() {
    let place = place("1s", "slots = 16");
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "there-is-none.pem"),
    ] {
        let mut command = exporting(Served::command(&place), ([127, 0, 0, 1], 1).into());
        command.env(name, value);
        let mut served = Served::start(command);
        assert_eq!(served.get("/readyz", "", "").status, 200);
        let err = served.stops();
        assert!(err.contains("no traces are exported") && err.contains(if name.ends_with("CERTIFICATE") { value } else { name }), "{err}");
    }
}

#[test]
fn of_a_damaged_file_of_certificates_nothing_is_quoted() {
    let place = place("1s", "slots = 16");
    let identity = Authority::new().unwrap().server().unwrap();
    let whole = std::fs::read_to_string(identity.key()).unwrap();
    let secret = &whole.lines().nth(1).unwrap()[..40];
    for text in [whole.replace('\n', " "), whole.replacen("END", "FIN", 1)] {
        place.write("damaged.pem", text);
        let mut command = exporting(Served::command(&place), ([127, 0, 0, 1], 1).into());
        command.env("OTEL_EXPORTER_OTLP_CERTIFICATE", "damaged.pem");
        let err = Served::start(command).stops();
        let decoded: String =
            err.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u8>().ok()).map(char::from).collect();
        assert!(
            err.contains("no traces are exported") && err.contains("damaged.pem") && err.contains("it must hold certificates in PEM"),
            "{err}"
        );
        assert!(!err.contains(secret) && !decoded.contains(secret), "the private key stands in the log: {err}");
    }
}

#[test]
fn without_an_endpoint_nothing_is_exported() {
    let place = place("1s", "slots = 16");
    let mut command = Served::command(&place);
    command.env("OTEL_SERVICE_NAME", "a").env("OTEL_TRACES_SAMPLER", "always_on");
    let mut served = Served::start(command);
    served.get(&format!("/v1/policies/workers/owner/{KEY}"), TOKEN, "");
    assert!(!served.metrics().contains("shardwise_traces"));
    assert!(!served.stops().contains("traces"));
}
