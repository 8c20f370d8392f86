//! The metrics of a publisher, for any exporter that the application installs (the `metrics` facade; this crate installs none). One table
//! holds their names and texts for the code and for the page `metrics.md`.
//!
//! Install the exporter before the publisher runs: a publisher requests its counters once.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label};

use crate::decide::Counters;
use crate::store::Backlog;

/// How to read a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublisherMetricKind {
    /// A sum since the publisher's start.
    Counter,
    /// A current value.
    Gauge,
    /// The duration of something, in seconds.
    Histogram,
}

impl PublisherMetricKind {
    /// The kind's name in the page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric. Every metric has the label `sink`, the destination's name.
#[derive(Debug, Clone, Copy)]
pub struct PublisherMetric {
    /// Its name.
    pub name: &'static str,
    /// How to read it.
    pub kind: PublisherMetricKind,
    /// Its meaning and unit.
    pub help: &'static str,
}

const fn metric(name: &'static str, kind: PublisherMetricKind, help: &'static str) -> PublisherMetric {
    PublisherMetric { name, kind, help }
}

const DELIVERED: PublisherMetric = metric(
    "shardwise_outbox_delivered_total",
    PublisherMetricKind::Counter,
    "Events that the sink accepted and that are marked as delivered",
);
const RETRIED: PublisherMetric = metric(
    "shardwise_outbox_retried_total",
    PublisherMetricKind::Counter,
    "Heads that failed, or whose destination was down, and that are tried later",
);
const PARKED: PublisherMetric = metric("shardwise_outbox_parked_total", PublisherMetricKind::Counter, "Events set aside by this publisher");
const DISCARDED: PublisherMetric =
    metric("shardwise_outbox_discarded_total", PublisherMetricKind::Counter, "Events given up for good by this publisher");
const BLOCKED: PublisherMetric =
    metric("shardwise_outbox_blocked_total", PublisherMetricKind::Counter, "Aggregates blocked by this publisher");
const REPEATED: PublisherMetric = metric(
    "shardwise_outbox_repeated_total",
    PublisherMetricKind::Counter,
    "Events sent again although an earlier send may have arrived: it took too long, or its slot was lost on the way",
);
const FENCED: PublisherMetric = metric(
    "shardwise_outbox_fenced_writes_total",
    PublisherMetricKind::Counter,
    "Slots found to be another publisher's, mostly by a write that the store refused; 0 while nothing changes",
);
const LAPSED: PublisherMetric = metric(
    "shardwise_outbox_lapsed_total",
    PublisherMetricKind::Counter,
    "Times this publisher could not renew its fence in time and dropped everything in its hands",
);
const PUBLISH: PublisherMetric = metric(
    "shardwise_outbox_publish_latency_seconds",
    PublisherMetricKind::Histogram,
    "From handing a batch to the sink until its answer, success or failure",
);
const MARK: PublisherMetric = metric(
    "shardwise_outbox_mark_latency_seconds",
    PublisherMetricKind::Histogram,
    "From handing outcomes to the store until they are written",
);
const HELD: PublisherMetric = metric("shardwise_outbox_held_slots", PublisherMetricKind::Gauge, "Slots that this publisher holds");
const WANTED: PublisherMetric =
    metric("shardwise_outbox_wanted_slots", PublisherMetricKind::Gauge, "Slots that the sharding gives to this publisher");
const IN_MEMORY: PublisherMetric =
    metric("shardwise_outbox_in_memory_events", PublisherMetricKind::Gauge, "Events in this publisher's memory");
const DOWN: PublisherMetric = metric(
    "shardwise_outbox_destination_down",
    PublisherMetricKind::Gauge,
    "Destinations of the sink that refuse everything, so that only single events are tried there; 1 or 0 where the sink is one destination",
);
const PENDING: PublisherMetric = metric(
    "shardwise_outbox_pending_events",
    PublisherMetricKind::Gauge,
    "Events of the whole outbox that are not delivered yet, those behind a blocked one included; a lower bound if backlog_complete is 0",
);
const OLDEST: PublisherMetric = metric(
    "shardwise_outbox_oldest_pending_age_seconds",
    PublisherMetricKind::Gauge,
    "Age of the oldest of them by the writer's clock, 0 if there is none; a lower bound if backlog_complete is 0",
);
const BLOCKED_NOW: PublisherMetric =
    metric("shardwise_outbox_blocked_aggregates", PublisherMetricKind::Gauge, "Aggregates of the whole outbox that wait for an operator");
const UNPUBLISHED: PublisherMetric = metric(
    "shardwise_outbox_unpublished_events",
    PublisherMetricKind::Gauge,
    "Events of the whole outbox in slots that no living publisher holds, so they are not sent",
);
const STUCK: PublisherMetric = metric(
    "shardwise_outbox_stuck",
    PublisherMetricKind::Gauge,
    "1 if events have no living publisher; 1 if the oldest pending one is older than a minute and than ten polls; 1 if the outbox could \
     not be counted three times in a row; else 0",
);
const PARKED_NOW: PublisherMetric =
    metric("shardwise_outbox_parked_events", PublisherMetricKind::Gauge, "Events of the whole outbox that are set aside");
const COMPLETE: PublisherMetric = metric(
    "shardwise_outbox_backlog_complete",
    PublisherMetricKind::Gauge,
    "1 if the gauges of the whole outbox are exact, 0 if there was more than is counted or it could not be counted",
);

/// All metrics.
pub const METRICS: [PublisherMetric; 21] = [
    PENDING,
    OLDEST,
    UNPUBLISHED,
    STUCK,
    BLOCKED_NOW,
    PARKED_NOW,
    COMPLETE,
    DELIVERED,
    RETRIED,
    PARKED,
    DISCARDED,
    BLOCKED,
    REPEATED,
    FENCED,
    LAPSED,
    PUBLISH,
    MARK,
    HELD,
    WANTED,
    IN_MEMORY,
    DOWN,
];

/// A metric, and the engine's number that it shows.
type MeterReading<M, T> = (M, fn(&Counters) -> T);

#[derive(Debug, Clone)]
pub(crate) struct PublisherMeters {
    counters: [MeterReading<Counter, u64>; 8],
    gauges: [MeterReading<Gauge, f64>; 4],
    publish: Histogram,
    mark: Histogram,
    counted: Counters,
}

#[derive(Debug)]
pub(crate) struct BacklogMeters([Gauge; 7]);

impl BacklogMeters {
    pub(crate) fn new(sink: &str) -> Self {
        let labels = [Label::new("sink", sink.to_owned())];
        Self([PENDING, OLDEST, BLOCKED_NOW, PARKED_NOW, COMPLETE, UNPUBLISHED, STUCK].map(|metric| gauge(metric, &labels)))
    }

    pub(crate) fn counted(&self, backlog: &Backlog, poll: Duration) {
        let values = [
            backlog.pending as f64,
            backlog.oldest_pending_age.unwrap_or(Duration::ZERO).as_secs_f64(),
            backlog.blocked_aggregates as f64,
            backlog.parked as f64,
            f64::from(u8::from(backlog.complete)),
            backlog.unpublished as f64,
            f64::from(u8::from(backlog.is_stuck(poll))),
        ];
        self.0.iter().zip(values).for_each(|(gauge, value)| gauge.set(value));
    }

    /// Sets the gauges when the state of the outbox is unknown, so that they do not show a healthy one.
    pub(crate) fn unknown(&self) {
        let [.., complete, _, stuck] = &self.0;
        complete.set(0.0);
        stuck.set(1.0);
    }
}

fn counter(metric: PublisherMetric, labels: &[Label]) -> Counter {
    metrics::describe_counter!(metric.name, metric.help);
    metrics::counter!(metric.name, labels.iter())
}

fn gauge(metric: PublisherMetric, labels: &[Label]) -> Gauge {
    metrics::describe_gauge!(metric.name, metric.help);
    metrics::gauge!(metric.name, labels.iter())
}

fn histogram(metric: PublisherMetric, labels: &[Label]) -> Histogram {
    metrics::describe_histogram!(metric.name, metrics::Unit::Seconds, metric.help);
    metrics::histogram!(metric.name, labels.iter())
}

impl PublisherMeters {
    pub(crate) fn new(sink: &str) -> Self {
        let labels = [Label::new("sink", sink.to_owned())];
        let counter = |metric| counter(metric, &labels);
        let gauge = |metric| gauge(metric, &labels);
        Self {
            counters: [
                (counter(DELIVERED), |counters| counters.delivered),
                (counter(RETRIED), |counters| counters.retried),
                (counter(PARKED), |counters| counters.parked),
                (counter(DISCARDED), |counters| counters.discarded),
                (counter(BLOCKED), |counters| counters.blocked),
                (counter(REPEATED), |counters| counters.repeated),
                (counter(FENCED), |counters| counters.fenced),
                (counter(LAPSED), |counters| counters.lapsed),
            ],
            gauges: [
                (gauge(HELD), |counters| f64::from(counters.held)),
                (gauge(WANTED), |counters| f64::from(counters.wanted)),
                (gauge(IN_MEMORY), |counters| counters.in_memory as f64),
                (gauge(DOWN), |counters| counters.destinations_down as f64),
            ],
            publish: histogram(PUBLISH, &labels),
            mark: histogram(MARK, &labels),
            counted: Counters::default(),
        }
    }

    pub(crate) fn count(&mut self, now: &Counters) {
        if *now == self.counted {
            return;
        }
        for (counter, of) in &self.counters {
            counter.increment(of(now).saturating_sub(of(&self.counted)));
        }
        for (gauge, of) in &self.gauges {
            gauge.set(of(now));
        }
        self.counted = *now;
    }

    pub(crate) fn publish_histogram(&self) -> Histogram {
        self.publish.clone()
    }

    pub(crate) fn mark_histogram(&self) -> Histogram {
        self.mark.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const BEGINNING: &str = "# Metrics of an outbox publisher

Generated from the table in `crates/outbox/src/metrics.rs`;
`SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise-outbox --lib metrics` writes it.

The library speaks through the `metrics` facade and installs no exporter. `shardwise outbox run --listen ADDR` serves
these at `/metrics` in Prometheus' form. Each has the label `sink`, the destination's name; no label carries a key.

Gauges of the whole outbox come from the store every ten seconds, the first time two seconds after the start, from each
publisher and from each `shardwise serve --outbox`: take their `max`, not their sum. So that a look never costs more
than a few milliseconds, each of their counts stops at 10,000 aggregates with something to send, 10,000 blocked ones and
10,000 parked events; where one of them stopped, `backlog_complete` is 0 and the numbers say \"at least\".

";

    #[test]
    fn the_page_is_the_table() {
        let mut page = BEGINNING.to_owned();
        for PublisherMetric { name, kind, help } in METRICS {
            writeln!(page, "- `{name}` ({}):\n  {}", kind.as_str(), help.replace("; ", ";\n  ")).unwrap();
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/metrics.md");
        if std::env::var_os("SHARDWISE_WRITE_PAGES").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), page, "metrics.md is not the table's: SHARDWISE_WRITE_PAGES=1 writes it");
    }

    #[test]
    fn names_say_what_they_are() {
        for PublisherMetric { name, kind, help } in METRICS {
            assert!(name.starts_with("shardwise_outbox_") && !help.ends_with('.'), "{name}");
            assert_eq!(name.ends_with("_total"), kind == PublisherMetricKind::Counter, "{name}");
            assert!(kind != PublisherMetricKind::Histogram || name.ends_with("_seconds"), "{name}");
        }
    }
}
