//! The metrics of a publisher, for any exporter that the application installs (the `metrics` facade; this crate installs none). These
//! tables hold their names and texts for the code and for the page `metrics.md`. Every metric has the label `sink`, the destination's name.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label};

use crate::PublisherSnapshot;
use crate::store::Backlog;

/// A metric's name, its help, and the number that it shows.
type Row<F> = (&'static str, &'static str, F);
type OfBacklog = fn(&Backlog, Duration) -> f64;
type Sum = fn(&PublisherSnapshot) -> u64;
type Now = fn(&PublisherSnapshot) -> f64;

/// Gauges of the whole outbox; the duration is the publishers' `poll`.
const BACKLOG: [Row<OfBacklog>; 7] = [
    (
        "shardwise_outbox_pending_events",
        "Events of the whole outbox that are not delivered yet, those behind a blocked one included; a lower bound if backlog_complete is 0",
        |backlog, _| backlog.pending as f64,
    ),
    (
        "shardwise_outbox_oldest_pending_age_seconds",
        "Age of the oldest of them by the writer's clock, 0 if there is none; a lower bound if backlog_complete is 0",
        |backlog, _| backlog.oldest_pending_age.unwrap_or_default().as_secs_f64(),
    ),
    (
        "shardwise_outbox_unpublished_events",
        "Events of the whole outbox in slots that no living publisher holds, so they are not sent",
        |backlog, _| backlog.unpublished as f64,
    ),
    (
        "shardwise_outbox_stuck",
        "1 if events have no living publisher; 1 if the oldest pending one is older than a minute and than ten polls; 1 if the outbox could \
         not be counted three times in a row; else 0",
        |backlog, poll| f64::from(u8::from(backlog.is_stuck(poll))),
    ),
    ("shardwise_outbox_blocked_aggregates", "Aggregates of the whole outbox that wait for an operator", |backlog, _| {
        backlog.blocked_aggregates as f64
    }),
    ("shardwise_outbox_parked_events", "Events of the whole outbox that are set aside", |backlog, _| backlog.parked as f64),
    (
        "shardwise_outbox_backlog_complete",
        "1 if the gauges of the whole outbox are exact, 0 if there was more than is counted or it could not be counted",
        |backlog, _| f64::from(u8::from(backlog.complete)),
    ),
];

const COUNTERS: [Row<Sum>; 8] = [
    ("shardwise_outbox_delivered_total", "Events that the sink accepted and that are marked as delivered", |now| now.delivered),
    ("shardwise_outbox_retried_total", "Heads that failed, or whose destination was down or slow, and that are tried later", |now| {
        now.retried
    }),
    ("shardwise_outbox_parked_total", "Events set aside by this publisher", |now| now.parked),
    ("shardwise_outbox_discarded_total", "Events given up for good by this publisher", |now| now.discarded),
    ("shardwise_outbox_blocked_total", "Aggregates blocked by this publisher", |now| now.blocked),
    (
        "shardwise_outbox_repeated_total",
        "Events sent again although an earlier send may have arrived: it took too long, or its slot was lost on the way",
        |now| now.repeated,
    ),
    (
        "shardwise_outbox_fenced_writes_total",
        "Slots found to be another publisher's, mostly by a write that the store refused; 0 while nothing changes",
        |now| now.fenced,
    ),
    (
        "shardwise_outbox_lapsed_total",
        "Times this publisher could not renew its fence in time and dropped everything in its hands",
        |now| now.lapsed,
    ),
];

const PUBLISH: Row<()> =
    ("shardwise_outbox_publish_latency_seconds", "From handing a batch to the sink until its answer, success or failure", ());
const MARK: Row<()> = ("shardwise_outbox_mark_latency_seconds", "From handing outcomes to the store until they are written", ());

const GAUGES: [Row<Now>; 5] = [
    ("shardwise_outbox_held_slots", "Slots that this publisher holds", |now| f64::from(now.held_slots)),
    ("shardwise_outbox_wanted_slots", "Slots that the sharding gives to this publisher", |now| f64::from(now.wanted_slots)),
    ("shardwise_outbox_in_memory_events", "Events in this publisher's memory", |now| now.in_memory as f64),
    (
        "shardwise_outbox_destination_down",
        "Destinations of the sink that refuse everything: three refusals in a row, or for ten seconds; 1 or 0 where the sink is one \
         destination",
        |now| now.destinations_down as f64,
    ),
    (
        "shardwise_outbox_destination_slow",
        "Destinations of the sink that were slow within a minute: an event waited for a second while no more could be read; 0 where \
         the sink is one destination",
        |now| now.destinations_slow as f64,
    ),
];

fn labels(sink: &str) -> [Label; 1] {
    [Label::new("sink", sink.to_owned())]
}

fn gauge<F>((name, help, _): Row<F>, sink: &str) -> Gauge {
    metrics::describe_gauge!(name, help);
    metrics::gauge!(name, labels(sink).iter())
}

fn histogram((name, help, ()): Row<()>, sink: &str) -> Histogram {
    metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
    metrics::histogram!(name, labels(sink).iter())
}

#[derive(Debug)]
pub(crate) struct BacklogMeters([Gauge; 7]);

impl BacklogMeters {
    pub(crate) fn new(sink: &str) -> Self {
        Self(BACKLOG.map(|row| gauge(row, sink)))
    }

    pub(crate) fn counted(&self, backlog: &Backlog, poll: Duration) {
        self.0.iter().zip(BACKLOG).for_each(|(gauge, (.., of))| gauge.set(of(backlog, poll)));
    }

    /// Sets the gauges when the state of the outbox is unknown, so that they do not show a healthy one.
    pub(crate) fn unknown(&self) {
        let [_, _, _, stuck, _, _, complete] = &self.0;
        complete.set(0.0);
        stuck.set(1.0);
    }
}

pub(crate) struct PublisherMeters {
    counters: [Counter; 8],
    gauges: [Gauge; 5],
    pub(crate) publish: Histogram,
    pub(crate) mark: Histogram,
    counted: PublisherSnapshot,
}

impl PublisherMeters {
    pub(crate) fn new(sink: &str) -> Self {
        let counter = |(name, help, _): Row<_>| {
            metrics::describe_counter!(name, help);
            metrics::counter!(name, labels(sink).iter())
        };
        Self {
            counters: COUNTERS.map(counter),
            gauges: GAUGES.map(|row| gauge(row, sink)),
            publish: histogram(PUBLISH, sink),
            mark: histogram(MARK, sink),
            counted: PublisherSnapshot::default(),
        }
    }

    pub(crate) fn count(&mut self, now: &PublisherSnapshot) {
        if *now == self.counted {
            return;
        }
        for (counter, (.., of)) in self.counters.iter().zip(COUNTERS) {
            counter.increment(of(now).saturating_sub(of(&self.counted)));
        }
        self.gauges.iter().zip(GAUGES).for_each(|(gauge, (.., of))| gauge.set(of(now)));
        self.counted = now.clone();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const BEGINNING: &str = "# Metrics of an outbox publisher

Generated from the table in `crates/outbox/src/metrics.rs`;
`SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise-outbox --lib metrics` writes it.

The library speaks through the `metrics` facade and installs no exporter: install yours before the publisher runs.
`shardwise outbox run --listen ADDR` serves these at `/metrics` in Prometheus' form. Each has the label `sink`, the
destination's name; no label carries a key.

Gauges of the whole outbox come from the store every ten seconds, the first time two seconds after the start, from each
publisher and from each `shardwise serve --outbox`: take their `max`, not their sum. So that a reading never costs more
than a few milliseconds, each of their counts stops at 10,000 aggregates with something to send, 10,000 blocked ones and
10,000 parked events, and on PostgreSQL at 10,000 events of each of these kinds; where one of them stopped,
`backlog_complete` is 0 and the numbers say \"at least\".

";

    /// Each metric's name, kind and help.
    fn all() -> Vec<(&'static str, &'static str, &'static str)> {
        fn of_kind<F>(kind: &'static str) -> impl Fn(Row<F>) -> (&'static str, &'static str, &'static str) {
            move |(name, help, _)| (name, kind, help)
        }
        let histograms = [PUBLISH, MARK].map(of_kind("histogram"));
        let (backlog, counters, gauges) = (BACKLOG.map(of_kind("gauge")), COUNTERS.map(of_kind("counter")), GAUGES.map(of_kind("gauge")));
        [&backlog[..], &counters, &histograms, &gauges].concat()
    }

    #[test]
    fn the_page_is_the_table() {
        let mut page = BEGINNING.to_owned();
        for (name, kind, help) in all() {
            writeln!(page, "- `{name}` ({kind}):\n  {}", help.replace("; ", ";\n  ")).unwrap();
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/metrics.md");
        if std::env::var_os("SHARDWISE_WRITE_PAGES").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), page, "metrics.md is not the table's: SHARDWISE_WRITE_PAGES=1 writes it");
    }

    #[test]
    fn names_say_what_they_are() {
        for (name, kind, help) in all() {
            assert!(name.starts_with("shardwise_outbox_") && !help.ends_with('.'), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(kind != "histogram" || name.ends_with("_seconds"), "{name}");
        }
    }
}
