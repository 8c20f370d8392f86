//! Publishers over PostgreSQL that are killed and stopped while 64 writers write, and then restarted in good order.

use std::time::Duration;

use serde_json::Value;

use super::{SoakReport, SoakRun};
use crate::failure::TaskFailure;
use crate::measured::row;

/// The columns of its table, as the test names them.
const FIELDS: &str = "sink events kills stops lost out_of_order repeated rolled_repeated gap_ms steady_gap_ms takeovers takeover_ms";

/// Events of one life, a tenth of which is rolled back, while publishers are killed and stopped, and about how long they are written for;
/// at the same rate more come for a tenth of that time in the rolling restart.
const EVENTS: &str = "1120000";
const SECONDS: &str = "400";
/// For building, and for the lives of a run, one for each sink.
const ALLOWANCE: Duration = Duration::from_mins(20);
const RUN_MAX: Duration = Duration::from_mins(100);
/// For the broker, once on a machine.
const COMPILING: Duration = Duration::from_hours(1);
/// In the rolling restart an event comes after at most so long.
const GAP_MS_MAX: u64 = 500;
/// After a crash, with a TTL of 3 s, its events flow again within so long.
const TAKEOVER_MS_MAX: u64 = 4_000;

pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let tests = (0..soak.runs).map(|_| {
        let mut tests = soak.tests("shardwise-cli --test outbox_soak -- --nocapture --test-threads=1");
        tests.env("SHARDWISE_SOAK_EVENTS", EVENTS).env("SHARDWISE_SOAK_SECONDS", SECONDS);
        tests
    });
    let reported = soak.figures(ALLOWANCE + RUN_MAX, tests)?;
    Ok(SoakReport { text: table(&reported), short: shortfall(&reported).into_iter().collect() })
}

/// The same into Kafka with TLS and SCRAM, whose broker is killed as well. A wrong password and an unknown CA are tried too.
pub(super) fn kafka(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let tests = (0..soak.runs).map(|_| {
        let mut tests = soak.tests("shardwise-cli --test outbox_soak kafka -- --nocapture --test-threads=1 --ignored");
        tests.env("SHARDWISE_SOAK_EVENTS", EVENTS).env("SHARDWISE_SOAK_SECONDS", SECONDS);
        tests
    });
    let reported = soak.figures(ALLOWANCE + COMPILING + RUN_MAX, tests)?;
    let text = "As `outbox`, into a topic of four partitions of Nisshi (Tansu before 0.7), a broker that speaks Kafka's protocol, over TLS with \
                a CA of the test, which a proxy ends in front of it, and with SCRAM-SHA-512. It is killed (SIGKILL) every seven seconds while \
                publishers are killed and stopped: `sink_kills`.\n\n";
    let fields = format!("{FIELDS} sink_kills");
    Ok(SoakReport { text: text.to_owned() + &rows(&fields, &reported), short: shortfall(&reported).into_iter().collect() })
}

fn table(reported: &[Value]) -> String {
    let mut text = "Four `shardwise outbox run` over PostgreSQL with a TTL of 3 s, 64 writers with transactions of ten events over 500 \
         aggregates, one in ten rolled back; into each sink but Kafka. JetStream's own de-duplication must leave each event once. Every \
         three seconds a publisher is killed (SIGKILL) and started again, or stopped (SIGSTOP) for up to twice the TTL. Then all are \
         restarted one after the other (SIGTERM) under the same load: `rolled_repeated`, and the longest time from an event's commit to \
         its delivery, `gap_ms`; `steady_gap_ms` is that under the same load once all have been restarted. In the end three are killed at \
         rest, one after the other: from the kill to the last event of its aggregates, `takeovers`, and of these the longest, \
         `takeover_ms`.\n\n"
        .to_owned();
    text += &rows(FIELDS, reported);
    text
}

fn rows(fields: &str, reported: &[Value]) -> String {
    let mut text = row(fields.split(' '));
    text.extend(["|", &"---:|".repeat(fields.split(' ').count()), "\n"]);
    text.extend(reported.iter().map(|run| row(fields.split(' ').map(|field| &run[field])).replace('"', "")));
    text
}

/// What is worse than it may be; what is lost or out of order has failed the test already.
fn shortfall(reported: &[Value]) -> Option<String> {
    let short = |run: &&Value| {
        run["rolled_repeated"] != 0
            || run["gap_ms"].as_u64().is_none_or(|gap| gap >= GAP_MS_MAX)
            || run["takeover_ms"].as_u64().is_none_or(|took| took > TAKEOVER_MS_MAX)
            || run["under_load"] != true
    };
    match reported.iter().find(short) {
        Some(run) => Some(format!(
            "the rolling restart repeated events, had a gap of {GAP_MS_MAX} ms or more or was not under load, or a takeover took more than \
             {TAKEOVER_MS_MAX} ms: {run}"
        )),
        None if reported.is_empty() => Some("no run has any figures".into()),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rolling_restart_falls_short_by_repeats_and_by_its_gap() {
        let run = |repeated: u64, gap: u64| {
            serde_json::json!({
                "rolled_repeated": repeated, "gap_ms": gap, "takeover_ms": 4_000, "under_load": true
            })
        };
        assert_eq!(shortfall(&[run(0, 499)]), None);
        assert!(shortfall(&[serde_json::json!({"rolled_repeated": 0, "gap_ms": 1, "takeover_ms": 4_001, "under_load": true})]).is_some());
        assert!(shortfall(&[run(0, 499), run(1, 20)]).is_some() && shortfall(&[run(0, 500)]).is_some() && shortfall(&[]).is_some());
        assert!(table(&[run(0, 20)]).ends_with("| null | null | null | null | null | null | null | 0 | 20 | null | null | 4000 |\n"));
    }
}
